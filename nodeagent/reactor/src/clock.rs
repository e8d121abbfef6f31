//! The real clock and the real source of chance.

use api_types::{Clock, Rng};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time of this machine. All copies in one process share one origin, so their times compare. Sleeps need a running
/// tokio runtime and end on whole milliseconds, never early.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl RealClock {
    /// The clock of this process.
    #[must_use]
    pub fn new() -> Self {
        RealClock
    }

    /// Monotonic time since the first call in this process; also usable off the core's thread.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is where the clock comes from")]
    pub fn monotonic() -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        RealClock::monotonic()
    }

    #[expect(clippy::disallowed_methods, reason = "this is where the clock comes from")]
    fn wall_ms(&self) -> u64 {
        // A clock set before 1970 reads as zero: wall time decides nothing.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }
}

/// Chance from the operating system's seed: for jitter, ids and sampling, never for keys.
#[derive(Debug)]
pub struct RealRng {
    state: RefCell<SmallRng>,
}

impl RealRng {
    /// A fresh generator, seeded by the operating system.
    #[must_use]
    pub fn new() -> Self {
        RealRng { state: RefCell::new(SmallRng::from_os_rng()) }
    }

    /// A generator that repeats itself for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        RealRng { state: RefCell::new(SmallRng::seed_from_u64(seed)) }
    }
}

impl Default for RealRng {
    fn default() -> Self {
        Self::new()
    }
}

impl Rng for RealRng {
    fn next_u64(&self) -> u64 {
        self.state.borrow_mut().next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_the_clock_share_their_origin() {
        let first = RealClock::new().now();
        let second = RealClock::new().now();
        assert!(second >= first);
        assert!(RealClock::new().wall_ms() > 1_600_000_000_000);
    }

    #[test]
    fn a_seed_repeats_itself_and_the_system_seed_does_not() {
        let draw = |rng: &RealRng| [rng.next_u64(), rng.next_u64()];
        assert_eq!(draw(&RealRng::seeded(7)), draw(&RealRng::seeded(7)));
        assert_ne!(draw(&RealRng::new()), draw(&RealRng::new()));
    }
}
