//! Which copy a read asks, and when another. Pure: one plan is one pass over the copies of a chunk.

use crate::blacklist::Doubt;
use api_types::DeviceId;
use std::collections::VecDeque;

/// A copy that could be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) device: DeviceId,
    /// On the reader's node.
    pub(crate) near: bool,
    /// Holds every byte, as far as the masters know.
    pub(crate) whole: bool,
    /// On a blacklist.
    pub(crate) doubt: Option<Doubt>,
    /// A random number: the order among equals.
    pub(crate) lot: u64,
    /// A device in probable doubt is tried in its usual place this time, so that it gets a chance.
    pub(crate) pardoned: bool,
}

/// How asking one copy ended, when not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Bytes that don't verify.
    Bad,
    /// The chunk isn't there.
    Missing,
    /// No answer, or one that may be different next time.
    Silent,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask this copy.
    Ask(DeviceId),
    /// Wait for those that were asked.
    Wait,
    /// All have failed.
    Exhausted,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    left: VecDeque<DeviceId>,
    under_way: Vec<DeviceId>,
    failures: Vec<(DeviceId, Failure)>,
}

impl Plan {
    /// Orders the copies: well before doubtful before certainly away, whole before short, near before far.
    pub(crate) fn new(mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_by_key(|copy| {
            let doubt = match copy.doubt {
                Some(Doubt::Certain) => 2,
                Some(Doubt::Probable) if !copy.pardoned => 1,
                _ => 0,
            };
            (doubt == 2, !copy.whole, doubt, !copy.near, copy.lot, copy.device)
        });
        let left = candidates.iter().map(|copy| copy.device).collect();
        Plan { left, under_way: Vec::new(), failures: Vec::new() }
    }

    /// The next copy to ask, because nothing is under way.
    pub(crate) fn start(&mut self) -> Step {
        self.ask_next()
    }

    /// The wait for a backup read is over: `may` says whether one is in the budget.
    pub(crate) fn late(&mut self, may: bool) -> Step {
        if may && !self.left.is_empty() { self.ask_next() } else { Step::Wait }
    }

    /// Whether a backup read could be of use at all.
    pub(crate) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }

    /// A copy failed.
    pub(crate) fn failed(&mut self, device: DeviceId, failure: Failure) -> Step {
        self.under_way.retain(|asked| *asked != device);
        self.failures.push((device, failure));
        if self.under_way.is_empty() || failure != Failure::Silent { self.ask_next() } else { Step::Wait }
    }

    /// Every failure so far.
    pub(crate) fn failures(&self) -> &[(DeviceId, Failure)] {
        &self.failures
    }

    fn ask_next(&mut self) -> Step {
        match self.left.pop_front() {
            Some(device) => {
                self.under_way.push(device);
                Step::Ask(device)
            }
            None if self.under_way.is_empty() => Step::Exhausted,
            None => Step::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(device: u64) -> Candidate {
        Candidate { device: DeviceId(device), near: false, whole: true, doubt: None, lot: device, pardoned: false }
    }

    #[test]
    fn the_near_copy_comes_first_unless_it_is_in_doubt() {
        let near = Candidate { near: true, ..copy(9) };
        assert_eq!(Plan::new(vec![copy(1), near]).start(), Step::Ask(DeviceId(9)));
        let doubtful = Candidate { doubt: Some(Doubt::Probable), ..near };
        assert_eq!(Plan::new(vec![copy(1), doubtful]).start(), Step::Ask(DeviceId(1)));
        let pardoned = Candidate { pardoned: true, ..doubtful };
        assert_eq!(Plan::new(vec![copy(1), pardoned]).start(), Step::Ask(DeviceId(9)));
    }

    #[test]
    fn a_short_copy_comes_before_one_that_is_away_only() {
        let short = Candidate { whole: false, ..copy(1) };
        let away = Candidate { doubt: Some(Doubt::Certain), ..copy(2) };
        let mut plan = Plan::new(vec![away, short, copy(3)]);
        assert_eq!(plan.start(), Step::Ask(DeviceId(3)));
        assert_eq!(plan.failed(DeviceId(3), Failure::Silent), Step::Ask(DeviceId(1)));
        assert_eq!(plan.failed(DeviceId(1), Failure::Silent), Step::Ask(DeviceId(2)));
        assert_eq!(plan.failed(DeviceId(2), Failure::Silent), Step::Exhausted);
    }

    #[test]
    fn a_backup_read_goes_out_only_within_the_budget() {
        let mut plan = Plan::new(vec![copy(1), copy(2)]);
        plan.start();
        assert_eq!(plan.late(false), Step::Wait);
        assert_eq!(plan.late(true), Step::Ask(DeviceId(2)));
        assert_eq!(plan.late(true), Step::Wait);
        assert_eq!(plan.failed(DeviceId(1), Failure::Silent), Step::Wait);
        assert_eq!(plan.failed(DeviceId(2), Failure::Bad), Step::Exhausted);
        assert_eq!(plan.failures(), [(DeviceId(1), Failure::Silent), (DeviceId(2), Failure::Bad)]);
    }
}
