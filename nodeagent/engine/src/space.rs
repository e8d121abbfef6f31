//! Who may take which extents when: the free ones, the reserved ones, and those that wait until nobody reads them any
//! more or until they are trimmed.

use crate::extent::{FreeExtents, Run, TwoOwners};
use std::collections::{BTreeSet, VecDeque};

/// The longest run that is trimmed at once, in extents, so that little space is away meanwhile.
const TRIM_EXTENTS_MAX: u32 = 64;
/// Runs that wait to be trimmed; trimming is advice, so what is more goes untrimmed.
const UNTRIMMED_MAX: usize = 65_536;

/// Names a request at the device that touches extents of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

/// For whom space is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Appends: they leave the reserve alone.
    Appends,
    /// Repair: it may use the reserve.
    Repair,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    free: FreeExtents,
    extents: u32,
    /// What only repair may take, in extents.
    reserve: u32,
    /// Reserved in the journal, waiting for a first unit.
    pool: VecDeque<u32>,
    pool_target: usize,
    /// Being reserved.
    refilling: usize,
    next_ticket: u64,
    /// Requests at the device.
    active: BTreeSet<u64>,
    /// Given up, but a request older than the number may still touch them.
    retiring: VecDeque<(u64, Vec<Run>)>,
    untrimmed: VecDeque<Run>,
    trims: bool,
    trimming: u32,
}

impl Space {
    /// Everything but `held` is free.
    pub(crate) fn new(extents: u32, mut held: Vec<Run>, pool_target: usize, trims: bool) -> Result<Space, TwoOwners> {
        Ok(Space {
            free: FreeExtents::all_but(extents, &mut held)?,
            extents,
            reserve: (extents / 50).clamp(2, 2048),
            pool: VecDeque::new(),
            pool_target: pool_target.clamp(1, 64),
            refilling: 0,
            next_ticket: 0,
            active: BTreeSet::new(),
            retiring: VecDeque::new(),
            untrimmed: VecDeque::new(),
            trims,
            trimming: 0,
        })
    }

    /// Extents that appends may ever take.
    pub(crate) fn usable(&self) -> u32 {
        self.extents - self.reserve.min(self.extents)
    }

    /// Extents that appends may take now.
    pub(crate) fn available(&self) -> u32 {
        let pool = u32::try_from(self.pool.len() + self.refilling).unwrap_or(0);
        (self.free.total() + self.trimming).saturating_sub(self.reserve) + pool
    }

    pub(crate) fn pool_len(&self) -> usize {
        self.pool.len()
    }

    /// A reserved extent, for a first unit.
    pub(crate) fn take_reserved(&mut self) -> Option<u32> {
        self.pool.pop_front()
    }

    /// Up to `want` extents side by side.
    pub(crate) fn take(&mut self, want: u32, whom: For) -> Option<Run> {
        let keep = if whom == For::Appends { self.reserve } else { 0 };
        let allowed = self.free.total().saturating_sub(keep).min(want);
        if allowed == 0 { None } else { self.free.take(allowed) }
    }

    /// The pool is running low and can be filled.
    pub(crate) fn wants_refill(&self) -> bool {
        self.refilling == 0 && self.pool.len() <= self.pool_target / 2 && self.free.total() > self.reserve
    }

    /// Extents to reserve next.
    pub(crate) fn take_refill(&mut self) -> Vec<u32> {
        let mut extents = Vec::new();
        while self.pool.len() + extents.len() < self.pool_target {
            let Some(run) = self.take(1, For::Appends) else { break };
            extents.push(run.start);
        }
        self.refilling = extents.len();
        extents
    }

    /// Extents are reserved durably.
    pub(crate) fn refilled(&mut self, extents: Vec<u32>) {
        self.refilling = 0;
        self.pool.extend(extents);
    }

    /// Reserving failed.
    pub(crate) fn refill_failed(&mut self, extents: &[u32]) -> Result<(), TwoOwners> {
        self.refilling = 0;
        extents.iter().try_for_each(|extent| self.free.give(Run { start: *extent, count: 1 }))
    }

    /// A request that touches extents goes to the device.
    pub(crate) fn begin(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.active.insert(ticket);
        Ticket(ticket)
    }

    /// It came back.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Result<(), TwoOwners> {
        self.active.remove(&ticket.0);
        self.release()
    }

    /// Nobody owns these runs any more; they are free once the requests under way have come back.
    pub(crate) fn retire(&mut self, runs: Vec<Run>) -> Result<(), TwoOwners> {
        if !runs.is_empty() {
            self.retiring.push_back((self.next_ticket, runs));
        }
        self.release()
    }

    fn release(&mut self) -> Result<(), TwoOwners> {
        let oldest = self.active.first().copied().unwrap_or(u64::MAX);
        while let Some((barrier, _)) = self.retiring.front()
            && *barrier <= oldest
        {
            let Some((_, runs)) = self.retiring.pop_front() else { break };
            for run in runs {
                self.free.give(run)?;
                if self.trims && self.untrimmed.len() < UNTRIMMED_MAX {
                    self.untrimmed.push_back(run);
                }
            }
        }
        Ok(())
    }

    /// Something waits to be trimmed.
    pub(crate) fn wants_trim(&self) -> bool {
        !self.untrimmed.is_empty()
    }

    /// The next run to trim, taken out of what is free meanwhile.
    pub(crate) fn take_trim(&mut self) -> Option<Run> {
        while let Some(run) = self.untrimmed.pop_front() {
            let Some(part) = self.free.free_part(run) else { continue };
            let part = Run { start: part.start, count: part.count.min(TRIM_EXTENTS_MAX) };
            if part.end() < run.end() {
                self.untrimmed.push_front(Run { start: part.end(), count: run.end() - part.end() });
            }
            if self.free.take_exactly(part) {
                self.trimming += part.count;
                return Some(part);
            }
        }
        None
    }

    /// It is trimmed, or couldn't be.
    pub(crate) fn trimmed(&mut self, run: Run) -> Result<(), TwoOwners> {
        self.trimming -= run.count;
        self.free.give(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, count: u32) -> Run {
        Run { start, count }
    }

    #[test]
    fn appends_leave_the_reserve_to_repair() {
        let mut space = Space::new(100, Vec::new(), 4, false).unwrap();
        assert_eq!(space.usable(), 98);
        assert_eq!(space.take(99, For::Appends).unwrap().count, 98);
        assert_eq!(space.available(), 0);
        assert_eq!(space.take(1, For::Appends), None);
        assert_eq!(space.take(4, For::Repair).unwrap().count, 2);
    }

    #[test]
    fn what_is_given_up_is_free_only_when_older_requests_are_back() {
        let mut space = Space::new(10, vec![run(0, 10)], 4, false).unwrap();
        let old = space.begin();
        space.retire(vec![run(0, 5)]).unwrap();
        let new = space.begin();
        space.retire(vec![run(5, 5)]).unwrap();
        assert_eq!(space.free.total(), 0);
        space.finish(old).unwrap();
        assert_eq!(space.free.total(), 5);
        space.finish(new).unwrap();
        assert_eq!(space.free.total(), 10);
    }

    #[test]
    fn a_run_is_away_while_it_is_trimmed_and_taken_space_is_not_trimmed() {
        let mut space = Space::new(10, vec![run(0, 10)], 4, true).unwrap();
        space.retire(vec![run(0, 8)]).unwrap();
        assert_eq!(space.take(3, For::Repair), Some(run(0, 3)));
        assert_eq!(space.take_trim(), Some(run(3, 5)));
        assert_eq!(space.take(1, For::Repair), None);
        space.trimmed(run(3, 5)).unwrap();
        assert_eq!(space.take_trim(), None);
        assert_eq!(space.take(5, For::Repair), Some(run(3, 5)));
    }

    #[test]
    fn giving_back_twice_is_noticed() {
        let mut space = Space::new(10, vec![run(0, 10)], 4, false).unwrap();
        space.retire(vec![run(0, 5)]).unwrap();
        assert_eq!(space.retire(vec![run(4, 2)]), Err(TwoOwners(run(4, 2))));
    }
}
