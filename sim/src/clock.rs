//! Time that passes only when nothing else can happen.

use api_types::{Clock, Rng};
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Simulated time: sleepers are woken one by one, in the order of their times, then of their calls.
#[derive(Debug, Default)]
pub(crate) struct SimClock {
    now: Cell<Duration>,
    /// How far the wall clock was set away from where it would be.
    wall_off_ms: Cell<i64>,
    calls: Cell<u64>,
    sleepers: RefCell<BTreeMap<(Duration, u64), Option<Waker>>>,
}

impl SimClock {
    /// Sets the wall clock, forth or back. Time itself goes on as it did.
    pub(crate) fn set_wall(&self, by_ms: i64) {
        self.wall_off_ms.set(self.wall_off_ms.get() + by_ms);
    }

    /// Goes to the time of the next sleeper and wakes it; false when nobody sleeps.
    pub(crate) fn advance(&self) -> bool {
        let Some(((at, _), waker)) = self.sleepers.borrow_mut().pop_first() else { return false };
        self.now.set(self.now.get().max(at));
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Takes its entry away when the sleep is dropped.
struct Sleeper {
    clock: Rc<SimClock>,
    key: (Duration, u64),
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.clock.sleepers.borrow_mut().remove(&self.key);
    }
}

/// A handle to the clock, as cores take it.
#[derive(Debug, Clone)]
pub(crate) struct Time(pub(crate) Rc<SimClock>);

impl Clock for Time {
    fn now(&self) -> Duration {
        self.0.now.get()
    }

    fn wall_ms(&self) -> u64 {
        let wall_ms = 1_700_000_000_000 + u64::try_from(self.0.now.get().as_millis()).unwrap_or(0);
        wall_ms.saturating_add_signed(self.0.wall_off_ms.get())
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        let clock = Rc::clone(&self.0);
        let call = clock.calls.get();
        clock.calls.set(call + 1);
        let key = (clock.now.get() + duration, call);
        clock.sleepers.borrow_mut().insert(key, None);
        let sleeper = Sleeper { clock, key };
        Box::pin(poll_fn(move |context| {
            // The entry is gone once it was its turn.
            match sleeper.clock.sleepers.borrow_mut().get_mut(&sleeper.key) {
                Some(waker) => {
                    *waker = Some(context.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        }))
    }
}

/// SplitMix64: small, and the same everywhere.
#[derive(Debug)]
pub(crate) struct Chance(Cell<u64>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Rc<Self> {
        Rc::new(Chance(Cell::new(seed)))
    }

    /// A source of its own for one part, so that one more draw here doesn't change everything there.
    pub(crate) fn fork(&self) -> Rc<Self> {
        Chance::new(self.next_u64())
    }

    /// True `percent` times of a hundred.
    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time between two.
    pub(crate) fn between(&self, least: Duration, most: Duration) -> Duration {
        let spread = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.below(spread.max(1)))
    }
}

impl Rng for Chance {
    fn next_u64(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
