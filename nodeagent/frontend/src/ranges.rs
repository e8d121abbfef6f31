//! Who may touch which bytes now: a lock over byte ranges, granted in order of arrival.
//!
//! Whole-block writes are *shared*: they may overlap, as writes of one disk may. A write of a part of a block is
//! *exclusive*: it reads the block, changes the part and writes it back, and no write to that block may fall between.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, range: &Range<u64>, exclusive: bool) -> bool {
        (self.exclusive || exclusive) && self.range.start < range.end && range.start < self.range.end
    }
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    exclusives: usize,
    /// Held and waiting, in order of arrival. As many as there are writes under way, which callers bound.
    entries: Vec<Entry>,
}

impl Table {
    /// Nothing that came before `ticket` is in its way.
    fn clear(&self, ticket: u64, range: &Range<u64>, exclusive: bool) -> bool {
        (self.exclusives == 0) || !self.entries.iter().take_while(|e| e.ticket != ticket).any(|e| e.conflicts(range, exclusive))
    }
}

/// The lock of one device.
#[derive(Debug, Default, Clone)]
pub(crate) struct RangeLock(Rc<RefCell<Table>>);

/// The right to write a range, given back when dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    table: Rc<RefCell<Table>>,
    ticket: u64,
}

impl RangeLock {
    /// Waits for the range. Dropping the future gives the place in the queue back.
    pub(crate) async fn acquire(&self, range: Range<u64>, exclusive: bool) -> RangeGuard {
        let ticket = {
            let mut table = self.0.borrow_mut();
            let ticket = table.next;
            table.next += 1;
            table.exclusives += usize::from(exclusive);
            table.entries.push(Entry { ticket, range: range.clone(), exclusive, waker: None });
            ticket
        };
        // Made before the wait, so that a dropped future leaves no entry behind.
        let guard = RangeGuard { table: Rc::clone(&self.0), ticket };
        poll_fn(|context| {
            let mut table = self.0.borrow_mut();
            if table.clear(ticket, &range, exclusive) {
                return Poll::Ready(());
            }
            if let Some(entry) = table.entries.iter_mut().find(|e| e.ticket == ticket) {
                entry.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        guard
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut wakers = Vec::new();
        {
            let mut table = self.table.borrow_mut();
            let Some(at) = table.entries.iter().position(|e| e.ticket == self.ticket) else { return };
            let gone = table.entries.remove(at);
            table.exclusives -= usize::from(gone.exclusive);
            let waiting = table.entries.iter_mut().skip(at).filter(|e| gone.conflicts(&e.range, e.exclusive));
            wakers.extend(waiting.filter_map(|e| e.waker.take()));
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::executor::LocalPool;
    use futures::task::LocalSpawnExt;
    use std::cell::Cell;

    fn now(lock: &RangeLock, range: Range<u64>, exclusive: bool) -> Option<RangeGuard> {
        lock.acquire(range, exclusive).now_or_never()
    }

    #[test]
    fn shared_ranges_overlap_and_exclusive_ones_do_not() {
        let lock = RangeLock::default();
        let first = now(&lock, 0..10, false).unwrap();
        let _second = now(&lock, 5..15, false).unwrap();
        assert!(now(&lock, 9..11, true).is_none());
        assert!(now(&lock, 15..20, true).is_some());
        drop(first);
        assert!(now(&lock, 0..5, true).is_some());
        assert!(now(&lock, 4..6, true).is_none());
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_nothing_behind() {
        let lock = RangeLock::default();
        let held = now(&lock, 0..10, true).unwrap();
        assert!(now(&lock, 0..10, false).is_none());
        drop(held);
        assert!(lock.0.borrow().entries.is_empty());
        assert_eq!(lock.0.borrow().exclusives, 0);
    }

    #[test]
    fn the_queue_is_served_in_order_of_arrival() {
        let lock = RangeLock::default();
        let held = now(&lock, 0..10, false).unwrap();
        let mut pool = LocalPool::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let concurrent = Rc::new(Cell::new(0u32));
        for (name, exclusive) in [("exclusive", true), ("shared", false), ("shared", false)] {
            let (lock, order, concurrent) = (lock.clone(), order.clone(), concurrent.clone());
            let task = async move {
                let _guard = lock.acquire(0..10, exclusive).await;
                concurrent.set(concurrent.get() + 1);
                order.borrow_mut().push(name);
                concurrent.set(concurrent.get() - 1);
            };
            pool.spawner().spawn_local(task).unwrap();
        }
        pool.run_until_stalled();
        assert!(order.borrow().is_empty(), "a later shared write doesn't overtake a waiting exclusive one");
        drop(held);
        pool.run();
        assert_eq!(*order.borrow(), ["exclusive", "shared", "shared"]);
    }
}
