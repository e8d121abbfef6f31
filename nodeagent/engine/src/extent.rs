//! Extents: which are free, and which run of them holds which bytes of a chunk.

use api_types::limits::EXTENT_BYTES;
use std::collections::{BTreeMap, BTreeSet};

/// Extents side by side on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Run {
    /// The first of them.
    pub(crate) start: u32,
    /// How many; never zero.
    pub(crate) count: u32,
}

impl Run {
    /// The extent after the last.
    pub(crate) fn end(self) -> u32 {
        self.start + self.count
    }
}

/// The longest run a chunk takes at once, in extents.
pub(crate) const RUN_EXTENTS_MAX: u32 = 64;

/// How many extents hold so many bytes.
pub(crate) fn extents_for(bytes: u32) -> u32 {
    bytes.div_ceil(EXTENT_BYTES)
}

/// A piece of a chunk, as it lies on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Bytes from the first extent's start.
    pub(crate) at: u64,
    /// Length in bytes.
    pub(crate) bytes: u32,
}

/// The runs of a chunk, in chunk order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Runs {
    runs: Vec<Run>,
    /// `ends[i]` is how many extents the runs up to and with `i` have.
    ends: Vec<u32>,
}

impl Runs {
    pub(crate) fn push(&mut self, run: Run) {
        self.ends.push(self.extents() + run.count);
        self.runs.push(run);
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    /// Extents in all.
    pub(crate) fn extents(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes that fit.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.extents()) * u64::from(EXTENT_BYTES)
    }

    /// How long the next run of a chunk of this capacity should be: double the last, never more than is missing. Zero
    /// when nothing is missing.
    pub(crate) fn next_count(&self, capacity: u32) -> u32 {
        let have = self.extents();
        let missing = extents_for(capacity).saturating_sub(have);
        // 1, 1, 2, 4 ...: as much again as there is.
        have.clamp(1, RUN_EXTENTS_MAX).min(missing)
    }

    /// Gives back what lies beyond the extents that `bytes` need. One extent always stays: it is the chunk's place.
    pub(crate) fn shrink_to(&mut self, bytes: u32) -> Vec<Run> {
        let keep = extents_for(bytes).max(1);
        let mut freed = Vec::new();
        while self.extents() > keep {
            let Some(last) = self.runs.pop() else { break };
            self.ends.pop();
            let before = self.extents();
            let kept = keep.saturating_sub(before).min(last.count);
            freed.push(Run { start: last.start + kept, count: last.count - kept });
            if kept > 0 {
                self.push(Run { start: last.start, count: kept });
            }
        }
        freed
    }

    /// Where the bytes `offset..offset + length` lie, in order, neighbours joined. The caller knows that they are within
    /// the runs.
    pub(crate) fn pieces(&self, offset: u32, length: u32) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(1);
        let (mut offset, mut length) = (u64::from(offset), length);
        let mut index = self.ends.partition_point(|end| u64::from(*end) * u64::from(EXTENT_BYTES) <= offset);
        while length > 0 {
            let Some((run, end)) = self.runs.get(index).zip(self.ends.get(index)) else { break };
            let run_end = u64::from(*end) * u64::from(EXTENT_BYTES);
            let within = offset - (run_end - u64::from(run.count) * u64::from(EXTENT_BYTES));
            let bytes = u32::try_from(run_end - offset).unwrap_or(u32::MAX).min(length);
            let at = u64::from(run.start) * u64::from(EXTENT_BYTES) + within;
            match pieces.last_mut() {
                Some(last) if last.at + u64::from(last.bytes) == at => last.bytes += bytes,
                _ => pieces.push(Piece { at, bytes }),
            }
            offset += u64::from(bytes);
            length -= bytes;
            index += 1;
        }
        pieces
    }
}

/// The extents that nothing holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeExtents {
    by_start: BTreeMap<u32, u32>,
    by_count: BTreeSet<(u32, u32)>,
    total: u32,
}

/// Extents were given back that are free already: two owners, so something is deeply wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("extents {}..{} have two owners", .0.start, .0.end())]
pub(crate) struct TwoOwners(pub(crate) Run);

impl FreeExtents {
    /// Everything of `extents` but what is `held`.
    pub(crate) fn all_but(extents: u32, held: &mut [Run]) -> Result<FreeExtents, TwoOwners> {
        held.sort_unstable();
        let mut free = FreeExtents::default();
        let mut next = 0;
        for run in held.iter() {
            if run.start < next || run.start.checked_add(run.count).is_none_or(|end| end > extents) {
                return Err(TwoOwners(*run));
            }
            if run.start > next {
                free.insert(Run { start: next, count: run.start - next });
            }
            next = run.end();
        }
        if extents > next {
            free.insert(Run { start: next, count: extents - next });
        }
        Ok(free)
    }

    /// Extents in all.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Takes a run of `want` extents: the shortest free run that has them; when none has, the longest there is.
    pub(crate) fn take(&mut self, want: u32) -> Option<Run> {
        let (count, start) = match self.by_count.range((want, 0)..).next() {
            Some(found) => *found,
            None => *self.by_count.last()?,
        };
        let run = Run { start, count };
        self.remove(run);
        let taken = Run { start, count: want.min(count) };
        if count > taken.count {
            self.insert(Run { start: taken.end(), count: count - taken.count });
        }
        Some(taken)
    }

    /// Takes exactly this run, if all of it is free.
    pub(crate) fn take_exactly(&mut self, run: Run) -> bool {
        let Some((start, count)) = self.by_start.range(..=run.start).next_back().map(|(start, count)| (*start, *count)) else {
            return false;
        };
        let around = Run { start, count };
        if around.end() < run.end() {
            return false;
        }
        self.remove(around);
        if run.start > start {
            self.insert(Run { start, count: run.start - start });
        }
        if around.end() > run.end() {
            self.insert(Run { start: run.end(), count: around.end() - run.end() });
        }
        true
    }

    /// The first part of a run that is free.
    pub(crate) fn free_part(&self, run: Run) -> Option<Run> {
        let before = self.by_start.range(..=run.start).next_back();
        let after = self.by_start.range(run.start..run.end()).next();
        [before, after].into_iter().flatten().find_map(|(start, count)| {
            let (first, end) = (run.start.max(*start), run.end().min(start + count));
            (first < end).then(|| Run { start: first, count: end - first })
        })
    }

    /// Gives a run back, joined with its neighbours.
    pub(crate) fn give(&mut self, run: Run) -> Result<(), TwoOwners> {
        let before = self.by_start.range(..=run.start).next_back().map(|(start, count)| Run { start: *start, count: *count });
        let after = self.by_start.range(run.start..).next().map(|(start, count)| Run { start: *start, count: *count });
        if before.is_some_and(|before| before.end() > run.start) || after.is_some_and(|after| after.start < run.end()) {
            return Err(TwoOwners(run));
        }
        let mut joined = run;
        if let Some(before) = before.filter(|before| before.end() == run.start) {
            self.remove(before);
            joined = Run { start: before.start, count: before.count + joined.count };
        }
        if let Some(after) = after.filter(|after| after.start == run.end()) {
            self.remove(after);
            joined.count += after.count;
        }
        self.insert(joined);
        Ok(())
    }

    fn insert(&mut self, run: Run) {
        self.by_start.insert(run.start, run.count);
        self.by_count.insert((run.count, run.start));
        self.total += run.count;
    }

    fn remove(&mut self, run: Run) {
        self.by_start.remove(&run.start);
        self.by_count.remove(&(run.count, run.start));
        self.total -= run.count;
    }
}

#[cfg(test)]
mod tests;
