//! What runs beside the requests: reserving extents, trimming, and looking for requests that hang.

use super::Shell;
use crate::observe::Op;
use crate::poison;
use api_types::QosClass;
use api_types::limits::EXTENT_BYTES;
use bytes::Bytes;
use futures::future::join_all;
use nodeagent_device::Durability;
use std::rc::Rc;
use std::time::Duration;

/// After a failed reservation: wait before the next.
const REFILL_PAUSE: Duration = Duration::from_secs(1);
/// Between two trims, of 64 MiB at most each.
const TRIM_PAUSE: Duration = Duration::from_millis(50);
/// How often hanging requests are looked for. [`crate::core::Core::expire`] counts on a second.
const WATCH_EVERY: Duration = Duration::from_secs(1);

impl Shell {
    pub(super) async fn refill_loop(self: Rc<Self>) {
        loop {
            self.bells.refill.notified().await;
            if !self.refill().await {
                self.clock.sleep(REFILL_PAUSE).await;
                self.bells.refill.notify_one();
            }
        }
    }

    /// Fills the pool of reserved extents. False: the device failed.
    pub(super) async fn refill(self: &Rc<Self>) -> bool {
        let extents = self.core.borrow_mut().take_refill();
        if extents.is_empty() {
            return true;
        }
        let incarnation = self.journal.borrow().incarnation();
        let writes = extents.iter().map(|extent| {
            let at = self.superblock.layout.extents_offset + u64::from(*extent) * u64::from(EXTENT_BYTES);
            let block = Bytes::from(poison::block(self.superblock.device, incarnation, *extent));
            self.write(at, block, Durability::Durable, QosClass::Foreground)
        });
        let results = join_all(writes.collect::<Vec<_>>()).await;
        let failed = results.into_iter().map(|result| self.note(Op::Own, result)).filter(Result::is_err).count();
        let is_whole = failed == 0;
        if is_whole {
            self.core.borrow_mut().reserve(extents);
        } else {
            self.core.borrow_mut().refill_failed(&extents);
        }
        self.pump();
        is_whole
    }

    pub(super) async fn trim_loop(self: Rc<Self>) {
        loop {
            self.bells.trim.notified().await;
            loop {
                let Some(run) = self.core.borrow_mut().take_trim() else { break };
                let at = self.superblock.layout.extents_offset + u64::from(run.start) * u64::from(EXTENT_BYTES);
                if self.is_stopped.get() {
                    return;
                }
                let trim = self.device.trim(at, u64::from(run.count) * u64::from(EXTENT_BYTES));
                // Trimming is advice: an error changes nothing but the count.
                let _ = self.note(Op::Own, trim.await);
                self.core.borrow_mut().trimmed(run);
                self.pump();
                self.clock.sleep(TRIM_PAUSE).await;
            }
        }
    }

    pub(super) async fn watch_loop(self: Rc<Self>) {
        loop {
            self.clock.sleep(WATCH_EVERY).await;
            self.core.borrow_mut().expire(self.clock.now());
            self.pump();
        }
    }
}
