//! The only time and the only chance that a core may know. Real ones live in `nodeagent-reactor`, simulated ones in
//! `sim`.

use futures::FutureExt;
use futures::future::{Either, LocalBoxFuture, select};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// Time as a core sees it. Owned by one thread.
pub trait Clock {
    /// Monotonic time since an arbitrary origin of this process. Never goes back, whatever the wall clock does.
    fn now(&self) -> Duration;

    /// Milliseconds since 1970 on the wall clock: for people and records, never for a decision.
    fn wall_ms(&self) -> u64;

    /// Ready once `duration` has passed. May be dropped at any time.
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()>;
}

/// A source of chance. Owned by one thread; a seed repeats it.
pub trait Rng {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;

    /// A number below `bound`, which must not be zero.
    fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below zero was asked for");
        self.next_u64() % bound
    }
}

/// Ran out of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out after {} ms", .0.as_millis())]
pub struct Elapsed(pub Duration);

/// Runs `future`, for `limit` at most. On the limit the future is dropped.
pub async fn timeout<F: Future>(clock: &dyn Clock, limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let future = pin!(future);
    match select(future, clock.sleep(limit).fuse()).await {
        Either::Left((output, _)) => Ok(output),
        Either::Right(((), _)) => Err(Elapsed(limit)),
    }
}
