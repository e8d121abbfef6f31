//! What all parts of a run share.

use crate::check::Checks;
use crate::clock::{Chance, SimClock, Time};
use crate::network::Network;
use api_types::checksum::FooterSeed;
use api_types::{Clock, ClusterId};
use master_state::State;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::task::LocalSet;

/// The cluster's name in every run.
pub(crate) const CLUSTER: ClusterId = ClusterId(0x0051_4d00_0000_0000_0000_0000_0000_0001);

/// See the module.
pub(crate) struct World {
    /// Owned by the run alone: tasks hold the world, and would keep each other alive.
    tasks: Weak<LocalSet>,
    pub(crate) time: Time,
    pub(crate) chance: Rc<Chance>,
    pub(crate) network: Network,
    pub(crate) state: RefCell<State>,
    /// No master leads until then.
    pub(crate) leaderless_until: Cell<Duration>,
    /// The next store that answers a seal loses power in that moment.
    pub(crate) power_fails_at_seal: Cell<bool>,
    pub(crate) checks: RefCell<Checks>,
    story: RefCell<Vec<String>>,
}

impl World {
    pub(crate) fn new(clock: Rc<SimClock>, tasks: &Rc<LocalSet>, chance: Rc<Chance>) -> Rc<Self> {
        let network = Network::new(chance.fork());
        Rc::new(World {
            tasks: Rc::downgrade(tasks),
            time: Time(clock),
            chance,
            network,
            state: RefCell::new(State::new()),
            leaderless_until: Cell::new(Duration::ZERO),
            power_fails_at_seal: Cell::new(false),
            checks: RefCell::new(Checks::default()),
            story: RefCell::default(),
        })
    }

    pub(crate) fn seed(&self) -> FooterSeed {
        FooterSeed::of(CLUSTER)
    }

    /// Adds a task that belongs to no process.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.spawn_local(task);
        }
    }

    /// Adds a line to the story.
    pub(crate) fn tell(&self, what: &str) {
        let now = self.time.now();
        self.story.borrow_mut().push(format!("{:>12.6} {what}", now.as_secs_f64()));
    }

    pub(crate) fn take_story(&self) -> Vec<String> {
        self.story.take()
    }
}
