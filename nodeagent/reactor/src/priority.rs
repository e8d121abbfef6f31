//! Who goes to the disk next: a pure queue by class.
//!
//! A request of a lower class starts only while no higher one waits, and never more than its class's share is under way:
//! what a user's request may find before it at the disk is bounded. So that endless foreground load doesn't stop repair
//! and reclaim for good, a class that has waited through [`Limits::patience`] starts of higher ones, with nothing under
//! way, gets one through.

use api_types::QosClass;
use std::collections::VecDeque;

const CLASSES: usize = QosClass::ALL.len();

/// Bounds of a [`PriorityQueue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests under way, of all classes together.
    pub under_way: u32,
    /// Requests under way, by class.
    pub class_under_way: [u32; CLASSES],
    /// Requests waiting, by class.
    pub class_waiting: u32,
    /// Starts of higher classes after which a waiting class with nothing under way gets one through.
    pub patience: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { under_way: 64, class_under_way: [64, 8, 4, 2], class_waiting: 16_384, patience: 64 }
    }
}

/// The class has too many waiting; the request comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests wait for the disk")]
pub struct Full<T>(pub T);

/// Requests by class, with a bound on what is under way.
#[derive(Debug)]
pub struct PriorityQueue<T> {
    limits: Limits,
    waiting: [VecDeque<T>; CLASSES],
    under_way: [u32; CLASSES],
    /// Starts of higher classes since this one waits.
    passed_over: [u32; CLASSES],
}

impl<T> PriorityQueue<T> {
    /// An empty queue. Limits of zero count as one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limits = Limits {
            under_way: limits.under_way.max(1),
            class_under_way: limits.class_under_way.map(|limit| limit.max(1)),
            ..limits
        };
        let waiting = std::array::from_fn(|_| VecDeque::new());
        PriorityQueue { limits, waiting, under_way: [0; CLASSES], passed_over: [0; CLASSES] }
    }

    /// Lets a request wait.
    pub fn push(&mut self, class: QosClass, request: T) -> Result<(), Full<T>> {
        let waiting = &mut self.waiting[class as usize];
        if waiting.len() >= self.limits.class_waiting as usize {
            return Err(Full(request));
        }
        waiting.push_back(request);
        Ok(())
    }

    /// The request to start now, which counts as under way until [`Self::finish`].
    pub fn pop(&mut self) -> Option<(QosClass, T)> {
        if self.under_way.iter().sum::<u32>() >= self.limits.under_way {
            return None;
        }
        let class = self.next_class()?;
        let request = self.waiting[class as usize].pop_front()?;
        self.under_way[class as usize] += 1;
        self.passed_over[class as usize] = 0;
        for lower in class as usize + 1..CLASSES {
            if !self.waiting[lower].is_empty() {
                self.passed_over[lower] = self.passed_over[lower].saturating_add(1);
            }
        }
        Some((class, request))
    }

    fn next_class(&self) -> Option<QosClass> {
        let waits = |class: &QosClass| !self.waiting[*class as usize].is_empty();
        let starved =
            |class: &QosClass| self.under_way[*class as usize] == 0 && self.passed_over[*class as usize] >= self.limits.patience;
        if let Some(class) = QosClass::ALL.into_iter().rev().find(|class| waits(class) && starved(class)) {
            return Some(class);
        }
        // A higher class at its limit holds the lower ones back as well: its requests are what the disk is busy with.
        let first = QosClass::ALL.into_iter().find(waits)?;
        (self.under_way[first as usize] < self.limits.class_under_way[first as usize]).then_some(first)
    }

    /// A request of this class is done.
    pub fn finish(&mut self, class: QosClass) {
        let under_way = &mut self.under_way[class as usize];
        assert!(*under_way > 0, "a request finished that never started");
        *under_way -= 1;
    }

    /// Requests waiting, of all classes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Requests under way, of all classes.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.under_way.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue() -> PriorityQueue<u32> {
        PriorityQueue::new(Limits { under_way: 4, class_under_way: [4, 2, 1, 1], class_waiting: 8, patience: 5 })
    }

    #[test]
    fn the_most_urgent_class_goes_first_and_in_order() {
        let mut queue = queue();
        for (class, request) in
            [(QosClass::Scrub, 1), (QosClass::Repair, 2), (QosClass::Foreground, 3), (QosClass::Foreground, 4)]
        {
            queue.push(class, request).unwrap();
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, request)| request).collect();
        assert_eq!(order, [3, 4, 2, 1]);
    }

    #[test]
    fn a_class_never_exceeds_its_share_so_that_the_rest_stays_free_for_users() {
        let mut queue = queue();
        for request in 0..6 {
            queue.push(QosClass::Repair, request).unwrap();
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 2);
        queue.push(QosClass::Foreground, 9).unwrap();
        assert_eq!(queue.pop(), Some((QosClass::Foreground, 9)));
        queue.finish(QosClass::Repair);
        assert_eq!(queue.pop(), Some((QosClass::Repair, 2)));
    }

    #[test]
    fn endless_foreground_load_lets_background_through_now_and_then() {
        let mut queue = queue();
        queue.push(QosClass::Scrub, 7).unwrap();
        let mut starts = 0;
        loop {
            queue.push(QosClass::Foreground, 0).unwrap();
            let (class, _) = queue.pop().unwrap();
            queue.finish(class);
            if class == QosClass::Scrub {
                break;
            }
            starts += 1;
        }
        assert_eq!(starts, 5);
    }

    #[test]
    fn a_full_class_gives_the_request_back() {
        let mut queue = queue();
        for request in 0..8 {
            queue.push(QosClass::Reclaim, request).unwrap();
        }
        assert_eq!(queue.push(QosClass::Reclaim, 8), Err(Full(8)));
        queue.push(QosClass::Foreground, 0).unwrap();
    }

    proptest! {
        #[test]
        fn bounds_hold_and_everything_is_started_in_the_end(steps in prop::collection::vec((0u8..4, any::<bool>()), 1..200)) {
            let limits = Limits { under_way: 3, class_under_way: [3, 2, 1, 1], class_waiting: 1000, patience: 4 };
            let mut queue = PriorityQueue::new(limits);
            let (mut pushed, mut started, mut running) = (0, 0, Vec::new());
            for (class, pop) in steps {
                queue.push(QosClass::from_u8(class).unwrap(), ()).unwrap();
                pushed += 1;
                if pop {
                    while let Some((class, ())) = queue.pop() {
                        started += 1;
                        running.push(class);
                        prop_assert!(queue.under_way() <= 3);
                    }
                    for class in QosClass::ALL {
                        let count = running.iter().filter(|other| **other == class).count();
                        prop_assert!(count <= limits.class_under_way[class as usize] as usize);
                    }
                    running.drain(..).for_each(|class| queue.finish(class));
                }
            }
            while let Some((class, ())) = queue.pop() {
                started += 1;
                queue.finish(class);
            }
            prop_assert_eq!(pushed, started);
            prop_assert_eq!(queue.waiting(), 0);
        }
    }
}
