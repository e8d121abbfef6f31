//! Each block reads as the last write that was acknowledged before the read began, or as one that was under way beside
//! it, and what was read once is never older again: a register for each block, across takeovers.

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

/// A read that was answered: its write had taken effect by then, and any other one that is found later came after it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    stamp: Stamp,
    began: Duration,
    ended: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Blocks {
    next: Stamp,
    seen: BTreeMap<u64, Vec<Seen>>,
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
    pub(crate) fn check(&mut self, block: u64, stamp: Stamp, began: Duration, now: Duration) -> Result<(), String> {
        let seen = self.seen.entry(block).or_default();
        seen.push(Seen { stamp, began, ended: now });
        let writes = self.writes.get(&block).map(Vec::as_slice).unwrap_or_default();
        let zero = Write { stamp: 0, began: Duration::ZERO, ended: Some(Duration::ZERO), acknowledged: true };
        let found = if stamp == 0 { Some(&zero) } else { writes.iter().find(|write| write.stamp == stamp) };
        let Some(found) = found.filter(|write| write.began <= now) else {
            return Err(format!("block {block} reads as {stamp}, which nobody wrote there"));
        };
        let Some(ended) = found.ended else { return Ok(()) };
        let newer = writes.iter().find(|write| write.began > ended && write.acknowledged_before(began));
        if let Some(newer) = newer {
            return Err(format!("block {block} reads as {stamp}, ended at {ended:?}, but {} is newer: {newer:?}", newer.stamp));
        }
        let newer = seen.iter().find(|seen| seen.ended < began && seen.stamp != stamp && seen.began > ended);
        newer.map_or(Ok(()), |newer| {
            Err(format!(
                "block {block} reads as {stamp}, ended at {ended:?}, but a read before this one found another: {newer:?}"
            ))
        })
    }
}

impl Write {
    fn acknowledged_before(&self, at: Duration) -> bool {
        self.acknowledged && self.ended.is_some_and(|ended| ended < at)
    }
}

#[cfg(test)]
mod tests {
    use super::Blocks;
    use std::time::Duration;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Two writes of block 7: the first one from 1 to 2, the second one from `second` on.
    fn two_writes(second: std::ops::Range<u64>) -> Blocks {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.begin(7..8, at(1)), 1);
        if second.start > 2 {
            blocks.end(7..8, 1, at(2));
            blocks.begin(7..8, at(second.start));
        } else {
            blocks.begin(7..8, at(second.start));
            blocks.end(7..8, 1, at(2));
        }
        blocks.end(7..8, 2, at(second.end));
        blocks
    }

    #[test]
    fn an_older_write_than_the_last_acknowledged_one_is_found() {
        assert!(two_writes(3..4).check(7, 2, at(5), at(6)).is_ok());
        assert!(two_writes(3..4).check(7, 1, at(5), at(6)).unwrap_err().contains("is newer"));
        assert!(two_writes(3..4).check(7, 0, at(5), at(6)).unwrap_err().contains("is newer"));
        assert!(two_writes(3..4).check(7, 9, at(5), at(6)).unwrap_err().contains("nobody wrote"));
    }

    #[test]
    fn of_two_writes_beside_each_other_either_may_be_found_but_always_the_same() {
        let mut blocks = two_writes(1..2);
        assert!(blocks.check(7, 1, at(5), at(6)).is_ok());
        assert!(blocks.check(7, 1, at(7), at(8)).is_ok());
        assert!(blocks.check(7, 2, at(9), at(10)).unwrap_err().contains("found another"));
    }

    #[test]
    fn reads_beside_a_write_may_change_once() {
        let mut blocks = two_writes(3..9);
        assert!(blocks.check(7, 1, at(4), at(5)).is_ok());
        assert!(blocks.check(7, 2, at(6), at(7)).is_ok());
        assert!(blocks.check(7, 1, at(8), at(10)).unwrap_err().contains("found another"));
    }
}
