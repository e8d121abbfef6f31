//! A data thread.

use std::future::Future;
use tokio::task::JoinHandle;

/// Starts a task on this thread's `LocalSet`.
pub fn spawn_local<F: Future + 'static>(_name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F::Output: 'static,
{
    tokio::task::spawn_local(future)
}
