//! What runs beside the requests: reserving extents, trimming, and looking for requests that hang.

use super::Shell;
use crate::observe::Op;
use crate::poison;
use api_types::QosClass;
use api_types::limits::EXTENT_BYTES;
use bytes::Bytes;
use futures::future::try_join_all;
use nodeagent_device::Durability;
use std::io;
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
        let mut is_whole = true;
        for extent in &extents {
            // One after the other: this is ahead of need and shall not crowd out those who wait.
            is_whole &= self.note(Op::Own, self.make_ready(*extent).await).is_ok();
        }
        if is_whole {
            self.core.borrow_mut().reserve(extents);
        } else {
            self.core.borrow_mut().refill_failed(&extents);
        }
        self.pump();
        is_whole
    }

    /// Overwrites whatever a mount could take for a first unit.
    async fn make_ready(&self, extent: u32) -> io::Result<()> {
        let at = self.superblock.layout.extents_offset + u64::from(extent) * u64::from(EXTENT_BYTES);
        let bytes = self.read(at, poison::SEARCH_BYTES, QosClass::Repair).await?;
        let incarnation = self.journal.borrow().incarnation();
        let block = Bytes::from(poison::block(self.superblock.device, incarnation, extent));
        let blocks = std::iter::once(0).chain(poison::stale_footers(&bytes, self.seed));
        let writes = blocks.map(|within| self.write(at + within as u64, block.clone(), Durability::Durable, QosClass::Repair));
        try_join_all(writes.collect::<Vec<_>>()).await.map(|_| ())
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
