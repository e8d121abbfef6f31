//! Each block reads as the last write that was acknowledged before the read began, or as one that was under way beside
//! it: a register for each block, across takeovers.

use api_types::Epoch;
use std::collections::BTreeMap;
use std::time::Duration;

/// Names a write; zero is "never written".
pub(crate) type Stamp = u64;

#[derive(Debug, Clone, Copy)]
struct Write {
    stamp: Stamp,
    began: Duration,
    /// When it took effect at the latest. `None`: not known yet.
    ended: Option<Duration>,
    acknowledged: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Blocks {
    next: Stamp,
    writes: BTreeMap<u64, Vec<Write>>,
    acknowledged: usize,
    newest: Epoch,
}

impl Blocks {
    /// How many writes of blocks were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// A write of some blocks begins; returns its name.
    pub(crate) fn begin(&mut self, blocks: std::ops::Range<u64>, now: Duration) -> Stamp {
        self.next += 1;
        let write = Write { stamp: self.next, began: now, ended: None, acknowledged: false };
        for block in blocks {
            self.writes.entry(block).or_default().push(write);
        }
        self.next
    }

    /// It was acknowledged.
    pub(crate) fn end(&mut self, blocks: std::ops::Range<u64>, stamp: Stamp, now: Duration) {
        for block in blocks {
            self.acknowledged += 1;
            let writes = self.writes.entry(block).or_default();
            for write in writes.iter_mut().filter(|write| write.stamp == stamp) {
                write.acknowledged = true;
                write.ended = Some(write.ended.map_or(now, |ended| ended.min(now)));
            }
        }
    }

    /// A new owner has opened the volume: what older ones began before has happened by now, or never will.
    pub(crate) fn opened(&mut self, epoch: Epoch, now: Duration) {
        self.newest = self.newest.max(epoch);
        for write in self.writes.values_mut().flatten() {
            write.ended.get_or_insert(now);
        }
    }

    /// Nobody newer has opened the volume: only such an owner's reads must be fresh. Older ones are kept from serving by
    /// the lease of their agent, which isn't simulated.
    pub(crate) fn is_newest(&self, epoch: Epoch) -> bool {
        epoch >= self.newest
    }

    /// Whether a read that began then, of a block, may have found this.
    pub(crate) fn check(&self, block: u64, stamp: Stamp, began: Duration, now: Duration) -> Result<(), String> {
        let writes = self.writes.get(&block).map(Vec::as_slice).unwrap_or_default();
        let zero = Write { stamp: 0, began: Duration::ZERO, ended: Some(Duration::ZERO), acknowledged: true };
        let found = if stamp == 0 { Some(&zero) } else { writes.iter().find(|write| write.stamp == stamp) };
        let Some(found) = found.filter(|write| write.began <= now) else {
            return Err(format!("block {block} reads as {stamp}, which nobody wrote there"));
        };
        let Some(ended) = found.ended else { return Ok(()) };
        let newer = writes.iter().find(|write| write.began > ended && write.acknowledged_before(began));
        newer.map_or(Ok(()), |newer| {
            Err(format!("block {block} reads as {stamp}, ended at {ended:?}, but {} is newer: {newer:?}", newer.stamp))
        })
    }
}

impl Write {
    fn acknowledged_before(&self, at: Duration) -> bool {
        self.acknowledged && self.ended.is_some_and(|ended| ended < at)
    }
}
