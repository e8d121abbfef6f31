//! What goes wrong in a run, and when it is mended.

use crate::disk;
use crate::network::Host;
use crate::node::Node;
use crate::world::World;
use crate::writer::{self, Session, Task};
use api_types::{Clock, Rng};
use std::rc::Rc;
use std::time::Duration;

/// What a run is made of.
pub(crate) struct Scene {
    pub(crate) world: Rc<World>,
    pub(crate) nodes: Vec<Rc<Node>>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) task: Task,
    /// Sessions serve a volume instead of appending units.
    pub(crate) disk: bool,
}

/// The longest that something stays broken.
const MEND_MAX: Duration = Duration::from_secs(4);
/// A day, in milliseconds.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl Scene {
    /// Lets things go wrong for a while.
    pub(crate) async fn trouble(&mut self, steps: u64) {
        for _ in 0..steps {
            let wait = self.world.chance.between(Duration::from_millis(20), Duration::from_millis(1500));
            self.world.time.sleep(wait).await;
            self.one();
        }
    }

    /// Mends everything, and ends all writers.
    pub(crate) fn mend(&mut self) {
        self.world.tell("all is mended");
        self.world.network.heal();
        self.world.network.lost_of_10k.set(0);
        self.world.network.late.set(Duration::ZERO);
        self.world.leaderless_until.set(Duration::ZERO);
        self.world.power_fails_at_seal.set(false);
        for session in self.sessions.drain(..) {
            session.process.kill();
        }
        for node in &self.nodes {
            node.set_stopped(false);
            if !node.is_up() {
                node.start(&self.world);
            }
        }
    }

    pub(crate) fn start_writer(&mut self) {
        let host = Host(self.world.chance.below(self.nodes.len() as u64) as u32);
        let task = Task { host, close: self.world.chance.percent(30), ..self.task };
        self.world.tell(&format!("a writer starts on n{}", host.0));
        let session = if self.disk { disk::start(&self.world, task, false) } else { writer::start(&self.world, task) };
        self.sessions.push(session);
    }

    fn one(&mut self) {
        let chance = Rc::clone(&self.world.chance);
        let node = Rc::clone(&self.nodes[chance.below(self.nodes.len() as u64) as usize]);
        let mend_after = chance.between(Duration::from_millis(20), MEND_MAX);
        match chance.below(14) {
            0..=2 => self.crash(&node, chance.percent(70), mend_after),
            3 => {
                self.world.tell(&format!("{} is stopped for {mend_after:?}", node.name));
                node.set_stopped(true);
                self.later(mend_after, move |_| node.set_stopped(false));
            }
            4 | 5 => self.cut(mend_after),
            6 => {
                self.world.tell(&format!("the device of {} is slow for 5 s", node.name));
                node.device.slow_for(Duration::from_millis(200), Duration::from_secs(5));
            }
            7 => {
                self.world.tell(&format!("no master leads for {mend_after:?}"));
                self.world.leaderless_until.set(self.world.time.now() + mend_after);
            }
            8 => {
                self.world.tell(&format!("the network loses and delays messages for {mend_after:?}"));
                self.world.network.lost_of_10k.set(200);
                self.world.network.late.set(Duration::from_secs(2));
                self.later(mend_after, |world| {
                    world.network.lost_of_10k.set(0);
                    world.network.late.set(Duration::ZERO);
                });
            }
            9 => {
                if let Some(session) = self.sessions.pop() {
                    self.world.tell("the newest writer is killed");
                    session.process.kill();
                }
                self.start_writer();
            }
            10 => {
                if let Some(session) = self.sessions.last() {
                    self.world.tell(&format!("the newest writer is stopped for {mend_after:?}"));
                    session.process.set_stopped(true);
                    let process = Rc::clone(&session.process);
                    self.later(mend_after, move |_| process.set_stopped(false));
                }
                self.start_writer();
            }
            11 => {
                // A day at most, either way: as if somebody had set the machines' clocks.
                let by_ms = chance.below(2 * DAY_MS) as i64 - DAY_MS as i64;
                self.world.tell(&format!("the wall clock is set by {by_ms} ms"));
                self.world.time.0.set_wall(by_ms);
            }
            12 => {
                self.world.tell("the next store that answers a seal will lose power");
                self.world.power_fails_at_seal.set(true);
            }
            _ => {
                if self.sessions.last().is_none_or(|session| session.ended.get()) || chance.percent(30) {
                    self.start_writer();
                }
            }
        }
    }

    fn crash(&self, node: &Rc<Node>, power: bool, mend_after: Duration) {
        if !node.is_up() {
            return;
        }
        let how = if power { "loses power" } else { "is killed" };
        self.world.tell(&format!("{} {how}, back after {mend_after:?}", node.name));
        node.crash(power);
        let node = Rc::clone(node);
        self.later(mend_after, move |world| {
            if !node.is_up() {
                node.start(world);
            }
        });
    }

    fn cut(&self, mend_after: Duration) {
        let chance = &self.world.chance;
        let a = self.any_host();
        let hosts = self.nodes.len() as u32;
        let b = Host((a.0 + 1 + chance.below(u64::from(hosts) - 1) as u32) % hosts);
        self.world.network.cut(a, b);
        let both = chance.percent(60);
        if both {
            self.world.network.cut(b, a);
        }
        let arrow = if both { "<->" } else { "->" };
        self.world.tell(&format!("the link n{} {arrow} n{} is cut for {mend_after:?}", a.0, b.0));
        self.later(mend_after, |world| world.network.heal());
    }

    fn any_host(&self) -> Host {
        Host(self.world.chance.below(self.nodes.len() as u64) as u32)
    }

    fn later(&self, after: Duration, what: impl FnOnce(&Rc<World>) + 'static) {
        let world = Rc::clone(&self.world);
        self.world.spawn(async move {
            world.time.sleep(after).await;
            what(&world);
        });
    }
}
