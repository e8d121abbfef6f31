//! Starting a request: at once when its answer is already there, as a task of its own otherwise.

use futures::future::LocalBoxFuture;

/// Polls `request` once where we are; spawns it when it has to wait. Saves a task for what a cache answers.
pub(crate) async fn start(mut request: LocalBoxFuture<'static, ()>) {
    if futures::poll!(request.as_mut()).is_pending() {
        tokio::task::spawn_local(request);
    }
}
