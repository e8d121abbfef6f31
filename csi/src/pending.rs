//! One call at a time for each volume or name: a second one gets ABORTED at once. No key is held for ever, because
//! every call has a deadline; and a caller that hangs up doesn't stop the call half-way, because it runs in a task of
//! its own.

use crate::error::Error;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The most calls under way at once.
const PENDING_MAX: usize = 1024;

/// The keys whose calls are under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    keys: Arc<Mutex<BTreeSet<String>>>,
}

/// Gives the key back when dropped.
#[derive(Debug)]
struct Held {
    key: String,
    keys: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}

impl Pending {
    /// Runs `call` alone for `key`, for `limit` at most.
    pub(crate) async fn run<T, F>(&self, key: String, limit: Duration, call: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let held = self.hold(key)?;
        let what = format!("the call on {}", held.key);
        let task = tokio::spawn(async move {
            let result = tokio::time::timeout(limit, call).await;
            drop(held);
            result
        });
        match task.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::TimedOut { what, seconds: limit.as_secs() }),
            Err(_) => Err(Error::Host(format!("{what} broke off"))),
        }
    }

    fn hold(&self, key: String) -> Result<Held, Error> {
        let mut keys = self.keys.lock();
        if keys.len() >= PENDING_MAX {
            return Err(Error::Unavailable(format!("{PENDING_MAX} calls are under way: try again later")));
        }
        if !keys.insert(key.clone()) {
            return Err(Error::Busy(key));
        }
        Ok(Held { key, keys: Arc::clone(&self.keys) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_second_call_on_the_same_key_is_aborted_and_works_after_the_first() {
        let pending = Pending::default();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let first = pending.clone();
        let first = tokio::spawn(async move {
            let call = async move {
                released.await.ok();
                Ok(1)
            };
            first.run("v-1".into(), LIMIT, call).await
        });
        tokio::task::yield_now().await;
        assert_eq!(pending.run("v-1".into(), LIMIT, async { Ok(2) }).await, Err(Error::Busy("v-1".into())));
        assert_eq!(pending.run("v-2".into(), LIMIT, async { Ok(3) }).await, Ok(3));
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(1));
        assert_eq!(pending.run("v-1".into(), LIMIT, async { Ok(4) }).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_gives_its_key_back() {
        let pending = Pending::default();
        let hung = pending.run::<(), _>("v-1".into(), LIMIT, std::future::pending());
        assert_eq!(hung.await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert_eq!(pending.run("v-1".into(), LIMIT, async { Ok(()) }).await, Ok(()));
    }

    #[tokio::test]
    async fn a_call_that_breaks_gives_its_key_back() {
        let pending = Pending::default();
        let broken = pending.run::<(), _>("v-1".into(), LIMIT, async { panic!("on purpose") });
        assert!(matches!(broken.await, Err(Error::Host(_))));
        assert_eq!(pending.run("v-1".into(), LIMIT, async { Ok(()) }).await, Ok(()));
    }

    #[tokio::test]
    async fn a_caller_that_hangs_up_does_not_stop_its_call() {
        let pending = Pending::default();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (done, is_done) = tokio::sync::oneshot::channel::<()>();
        let inner = pending.clone();
        let caller = tokio::spawn(async move {
            inner
                .run("v-1".into(), LIMIT, async move {
                    released.await.ok();
                    done.send(()).ok();
                    Ok(())
                })
                .await
        });
        while pending.keys.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        caller.abort();
        caller.await.unwrap_err();
        assert_eq!(pending.hold("v-1".into()).unwrap_err(), Error::Busy("v-1".into()));
        release.send(()).unwrap();
        is_done.await.unwrap();
    }
}
