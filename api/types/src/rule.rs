//! The rules that everything else stands on, by name, so that a test can break one and see that somebody notices.
//!
//! Each rule is asked at the one place that keeps it: `Rule::SealLongest.is_kept()`. In a release build the answer is the
//! constant `true`. In a build with debug assertions [`Rule::broken_while`] breaks one rule for the current thread; only
//! tests call it. A rule that can be broken without a checker of the simulator noticing means that a checker is missing:
//! `sim/tests/rules.rs` holds that every one is noticed.

/// A promise that one place of the code keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A store acknowledges a unit once it is durable, not once the device has it in its cache.
    DurableFirst,
    /// A store answers a seal or a deletion once its journal holds it.
    JournalFirst,
    /// A sealed copy takes no append any more.
    SealStopsAppends,
    /// A copy that was sealed before its first append never comes to be.
    AbsentStaysAbsent,
    /// A checkpoint of a store counts once it was flushed.
    CheckpointBarrier,
    /// A unit is committed on `min_copy` copies, not on fewer.
    CommitOnMinCopy,
    /// Units of a chunk that is left are appended again in the order in which they were asked.
    RequeueInOrder,
    /// Only a copy that holds every byte is called whole.
    WholeMeansAll,
    /// Recovery hears `max_copy - min_copy + 1` copies before it decides where a chunk ends.
    SealQuorum,
    /// Recovery ends a chunk at the longest length it heard.
    SealLongest,
    /// The map changes in the order of the log, however appends come back.
    ApplyInLogOrder,
    /// A block that reclaim moves counts only where the map still points to its source.
    MovesYield,
    /// A chunk is given back once the root that doesn't need it is recorded.
    FreeAfterRoot,
    /// An id is given out once.
    IdsOnce,
    /// The masters refuse who comes with an old epoch.
    MastersFence,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 15] = [
        Rule::DurableFirst,
        Rule::JournalFirst,
        Rule::SealStopsAppends,
        Rule::AbsentStaysAbsent,
        Rule::CheckpointBarrier,
        Rule::CommitOnMinCopy,
        Rule::RequeueInOrder,
        Rule::WholeMeansAll,
        Rule::SealQuorum,
        Rule::SealLongest,
        Rule::ApplyInLogOrder,
        Rule::MovesYield,
        Rule::FreeAfterRoot,
        Rule::IdsOnce,
        Rule::MastersFence,
    ];

    /// Whether the rule holds. Always, but for a test that breaks it.
    #[inline(always)]
    #[must_use]
    pub fn is_kept(self) -> bool {
        #[cfg(debug_assertions)]
        return breaking::BROKEN.get() != Some(self);
        #[cfg(not(debug_assertions))]
        return true;
    }

    /// Runs `what` in this thread with the rule broken; `false` from [`Rule::is_kept`] until it returns or panics.
    #[cfg(debug_assertions)]
    pub fn broken_while<T>(self, what: impl FnOnce() -> T) -> T {
        let _mended = breaking::Mended;
        breaking::BROKEN.set(Some(self));
        what()
    }
}

#[cfg(debug_assertions)]
mod breaking {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        pub(super) static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Mends the rule when it goes.
    pub(super) struct Mended;

    impl Drop for Mended {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rule;

    #[test]
    fn all_rules_are_listed_once_and_kept() {
        assert!(Rule::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(Rule::ALL.into_iter().all(Rule::is_kept));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn one_is_broken_for_as_long_as_it_is_asked_for() {
        Rule::IdsOnce.broken_while(|| {
            assert!(!Rule::IdsOnce.is_kept() && Rule::SealLongest.is_kept());
            assert!(std::thread::spawn(|| Rule::IdsOnce.is_kept()).join().unwrap());
        });
        assert!(Rule::IdsOnce.is_kept());
        let panicked = std::panic::catch_unwind(|| Rule::IdsOnce.broken_while(|| panic!("on purpose")));
        assert!(panicked.is_err() && Rule::IdsOnce.is_kept());
    }
}
