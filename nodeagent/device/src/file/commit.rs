//! How durable writes become durable: a pure core.
//!
//! Either a write carries `RWF_DSYNC`, or it is written plainly and the next flush answers for all that were written
//! before that flush began. Which is cheaper depends on how many there are at once. On a disk without FUA the kernel ends
//! an asynchronous `RWF_DSYNC` write on a worker bound to one CPU: alone on a busy machine it waits there for
//! milliseconds, where write and flush take two tenths of one. At depth the kernel merges the flushes of many such
//! writes by itself, better than we can from here; a threshold for sharing them exists for disks where that is untrue.

/// When durable writes are written plainly and flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushPolicy {
    /// When at most so many are waiting and under way at once; zero: never for being few.
    pub up_to: u32,
    /// When at least so many are at once; zero: never for being many.
    pub from: u32,
}

impl FlushPolicy {
    /// Measured on a file on ext4 on a disk with a volatile cache and without FUA.
    pub const WITHOUT_FUA: FlushPolicy = FlushPolicy { up_to: 2, from: 0 };
    /// A disk with FUA makes a single write durable by itself.
    pub const WITH_FUA: FlushPolicy = FlushPolicy { up_to: 0, from: 0 };
}

/// Decides between the two and keeps who waits for a flush.
#[derive(Debug)]
pub(super) struct Commit<T> {
    policy: FlushPolicy,
    /// Written, to be answered by the next flush.
    written: Vec<T>,
    /// Answered by the flush under way; `None` without one.
    flushing: Option<Vec<T>>,
}

impl<T> Commit<T> {
    pub(super) fn new(policy: FlushPolicy) -> Self {
        Commit { policy, written: Vec::new(), flushing: None }
    }

    /// A durable write starts, so many waiting and under way with it. `true`: write plainly, then [`Self::wait`].
    /// `false`: make it durable by itself.
    pub(super) fn joins(&self, at_once: u32) -> bool {
        at_once <= self.policy.up_to || (self.policy.from > 0 && at_once >= self.policy.from)
    }

    /// Somebody wants a flush. `true`: start one.
    #[must_use]
    pub(super) fn wait(&mut self, waiter: T) -> bool {
        self.written.push(waiter);
        self.starts()
    }

    /// The flush is done: whom it answers, and whether the next one starts.
    #[must_use]
    pub(super) fn flushed(&mut self) -> (Vec<T>, bool) {
        let answered = self.flushing.take().unwrap_or_default();
        (answered, self.starts())
    }

    fn starts(&mut self) -> bool {
        if self.flushing.is_some() || self.written.is_empty() {
            return false;
        }
        self.flushing = Some(std::mem::take(&mut self.written));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_looks_at_how_many_there_are() {
        let joins = |up_to, from| (1..=5).map(|n| Commit::<()>::new(FlushPolicy { up_to, from }).joins(n)).collect::<Vec<_>>();
        assert_eq!(joins(0, 0), [false; 5]);
        assert_eq!(joins(2, 0), [true, true, false, false, false]);
        assert_eq!(joins(1, 4), [true, false, false, true, true]);
    }

    #[test]
    fn a_flush_answers_only_what_was_written_before_it_began() {
        let mut commit = Commit::new(FlushPolicy { up_to: 0, from: 1 });
        assert!(commit.wait(0), "the first starts a flush");
        assert!(!commit.wait(1), "one at a time");
        assert!(!commit.wait(2));
        assert_eq!(commit.flushed(), (vec![0], true));
        assert!(!commit.wait(3));
        assert_eq!(commit.flushed(), (vec![1, 2], true));
        assert_eq!(commit.flushed(), (vec![3], false));
        assert!(commit.wait(5));
    }
}
