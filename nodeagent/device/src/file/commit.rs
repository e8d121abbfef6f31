//! When durable writes share one flush: a pure core.
//!
//! A lone write is cheapest with its own `RWF_DSYNC`. Of many at once, each would flush the disk's cache for itself; so
//! from some depth on they are written plainly and the next flush answers for all that were written before it began.

/// Decides between the two and keeps who waits for a flush.
#[derive(Debug)]
pub(super) struct Commit<T> {
    /// Durable writes at once from which on they share a flush.
    group_at: u32,
    /// Written, to be answered by the next flush.
    written: Vec<T>,
    /// Answered by the flush under way; `None` without one.
    flushing: Option<Vec<T>>,
    /// Writes under way that will join.
    coming: u32,
}

impl<T> Commit<T> {
    pub(super) fn new(group_at: u32) -> Self {
        Commit { group_at, written: Vec::new(), flushing: None, coming: 0 }
    }

    /// A durable write starts, so many waiting and under way with it. `true`: write plainly, then call
    /// [`Self::written`] or [`Self::failed`]. `false`: make it durable by itself.
    pub(super) fn joins(&mut self, at_once: u32) -> bool {
        let joins = self.group_at > 0 && at_once >= self.group_at;
        self.coming += u32::from(joins);
        joins
    }

    /// A write that joined is on the disk. `true`: start a flush.
    #[must_use]
    pub(super) fn written(&mut self, waiter: T) -> bool {
        self.coming -= 1;
        self.wait(waiter)
    }

    /// A write that joined failed, and waits for nothing.
    #[must_use]
    pub(super) fn failed(&mut self) -> bool {
        self.coming -= 1;
        self.starts()
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
    fn a_lone_write_is_durable_by_itself_and_many_share_flushes() {
        let mut commit = Commit::new(4);
        assert!(!commit.joins(1));
        assert!((0..6).all(|_| commit.joins(6)));
        assert!(commit.written(0), "the first starts a flush");
        assert!(!commit.written(1), "one at a time");
        assert!(!commit.written(2));
        assert_eq!(commit.flushed(), (vec![0], true), "only what was written before it began");
        assert!(!commit.written(3));
        assert_eq!(commit.flushed(), (vec![1, 2], true));
        assert!(!commit.failed());
        assert_eq!(commit.flushed(), (vec![3], false));
        assert!(commit.written(5));
    }

    #[test]
    fn without_a_threshold_nothing_joins() {
        assert!(!Commit::<()>::new(0).joins(1000));
    }
}
