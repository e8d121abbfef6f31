//! Heavy computing, off the core's thread.

use super::here;
use tokio::sync::Semaphore;

/// Pieces of work that may wait or run for one core.
const WAITING_MAX: usize = 1024;

/// A piece of background work gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackgroundError {
    /// Too much is waiting.
    #[error("too much background work is waiting")]
    Busy,
    /// It panicked, or the core is stopping.
    #[error("the background work was cut short")]
    Ended,
}

pub(super) struct Background {
    room: std::sync::Arc<Semaphore>,
}

impl Background {
    pub(super) fn new() -> Self {
        Background { room: std::sync::Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

/// Runs `work` on a background thread, below the priority of data threads, and waits for what it gives. Dropping the
/// future doesn't stop work that has begun.
pub async fn background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BackgroundError> {
    let permit = match here() {
        Some(here) => Some(here.background.room.clone().try_acquire_owned().map_err(|_| BackgroundError::Busy)?),
        None => None,
    };
    let task = tokio::task::spawn_blocking(move || {
        yield_to_others();
        let result = work();
        drop(permit);
        result
    });
    task.await.map_err(|_| BackgroundError::Ended)
}

/// Lowers this thread's priority, once.
fn yield_to_others() {
    thread_local! {
        static LOWERED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if !LOWERED.replace(true) {
        // Only a wish: without the right to it the work is done all the same.
        let _refused = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 5);
    }
}
