//! Messages between processes: each pair of hosts is one connection, which keeps the order; different ones overtake
//! each other. A message can be late, or lost together with nothing else.

use crate::clock::Chance;
use crate::node::Node;
use crate::world::World;
use api_types::chunk::{ChunkStore, ChunkTransport, Error, Request, Response};
use api_types::{Clock, DeviceId, Rng};
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// A machine with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host(pub(crate) u32);

/// See the module.
pub(crate) struct Network {
    chance: Rc<Chance>,
    nodes: RefCell<BTreeMap<DeviceId, Rc<Node>>>,
    /// The direction in which nothing gets through.
    cut: RefCell<BTreeSet<(Host, Host)>>,
    /// When the last message of a connection arrives.
    arrivals: RefCell<BTreeMap<(Host, Host), Duration>>,
    /// Of ten thousand messages, so many are lost.
    pub(crate) lost_of_10k: Cell<u64>,
    /// A message in a hundred may take so long.
    pub(crate) late: Cell<Duration>,
}

impl Network {
    pub(crate) fn new(chance: Rc<Chance>) -> Self {
        Network {
            chance,
            nodes: RefCell::default(),
            cut: RefCell::default(),
            arrivals: RefCell::default(),
            lost_of_10k: Cell::new(0),
            late: Cell::new(Duration::ZERO),
        }
    }

    pub(crate) fn add(&self, node: Rc<Node>) {
        self.nodes.borrow_mut().insert(node.device_id, node);
    }

    /// Ends all agents, in the end of a run.
    pub(crate) fn end(&self) {
        for node in std::mem::take(&mut *self.nodes.borrow_mut()).into_values() {
            node.crash(false);
        }
    }

    pub(crate) fn cut(&self, from: Host, to: Host) {
        self.cut.borrow_mut().insert((from, to));
    }

    pub(crate) fn heal(&self) {
        self.cut.borrow_mut().clear();
    }

    fn is_cut(&self, from: Host, to: Host) -> bool {
        self.cut.borrow().contains(&(from, to))
    }

    /// When a message that is sent now arrives, if it does.
    fn arrival(&self, from: Host, to: Host, now: Duration) -> Option<Duration> {
        if from == to {
            return Some(now);
        }
        if self.is_cut(from, to) || self.chance.below(10_000) < self.lost_of_10k.get() {
            return None;
        }
        let mut delay = self.chance.between(Duration::from_micros(20), Duration::from_micros(400));
        if !self.late.get().is_zero() && self.chance.percent(1) {
            delay += self.chance.between(Duration::ZERO, self.late.get());
        }
        let mut arrivals = self.arrivals.borrow_mut();
        let last = arrivals.entry((from, to)).or_default();
        *last = (*last).max(now + delay);
        Some(*last)
    }
}

/// The way of one client to all stores.
pub(crate) struct Transport {
    pub(crate) world: Weak<World>,
    pub(crate) host: Host,
}

impl ChunkTransport for Transport {
    fn call(&self, device: DeviceId, request: Request, limit: Duration) -> LocalBoxFuture<'static, Result<Response, Error>> {
        let Some(world) = self.world.upgrade() else {
            return Box::pin(async { Err(Error::Unreachable("the world ended".to_owned())) });
        };
        let Some(node) = world.network.nodes.borrow().get(&device).cloned() else {
            return Box::pin(async move { Err(Error::Unreachable(format!("no such device as {device}"))) });
        };
        let (sender, receiver) = oneshot::channel();
        let arrival = world.network.arrival(self.host, node.host, world.time.now());
        // Slept from this moment on: messages of one connection arrive in the order of the calls.
        let travel = arrival.map(|at| world.time.sleep(at - world.time.now()));
        world.spawn(deliver(Rc::clone(&world), self.host, node, request, travel, sender));
        let sleep = world.time.sleep(limit);
        Box::pin(async move {
            match select(receiver, sleep).await {
                Either::Left((answer, _)) => answer.unwrap_or(Err(Error::Unreachable("the connection broke".to_owned()))),
                Either::Right(((), _)) => Err(Error::Deadline),
            }
        })
    }
}

type Answer = oneshot::Sender<Result<Response, Error>>;

async fn deliver(
    world: Rc<World>,
    from: Host,
    node: Rc<Node>,
    request: Request,
    travel: Option<LocalBoxFuture<'static, ()>>,
    answer: Answer,
) {
    let Some(travel) = travel else { return hold(&world, answer).await };
    travel.await;
    let Some((process, engine)) = node.running() else {
        let _ = answer.send(Err(Error::Unreachable("nobody listens".to_owned())));
        return;
    };
    let asked = world.checks.borrow().seals.arrived(node.device_id, &request);
    process.spawn(async move {
        let result = engine.serve(request).await;
        if let (Some(asked), Ok(response)) = (asked, &result) {
            let judged = world.checks.borrow_mut().seals.answered(node.device_id, asked, response);
            if let Err(broken) = judged {
                world.checks.borrow_mut().fail(broken);
            }
            if matches!(response, Response::Seal(_)) && world.power_fails_at_seal.take() {
                node.lose_power_now(&world);
            }
        }
        let arrival = world.network.arrival(node.host, from, world.time.now());
        let here = Rc::clone(&world);
        here.spawn(async move {
            let Some(at) = arrival else { return hold(&world, answer).await };
            world.time.sleep(at.saturating_sub(world.time.now())).await;
            let _ = answer.send(result);
        });
    });
}

/// A lost message isn't noticed by anyone: the asker waits until its limit.
async fn hold(world: &World, answer: Answer) {
    world.time.sleep(Duration::from_secs(60)).await;
    drop(answer);
}
