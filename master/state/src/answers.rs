//! Answers kept for retries: a request id that was answered before gets the same answer.

use crate::command::Reply;
use api_types::RequestId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The most answers kept.
const ANSWERS_MAX: usize = 4096;
/// How long an answer is kept; clients give up far earlier.
const AGE_MS_MAX: u64 = 10 * 60 * 1000;
/// This many stay whatever their age: a wall clock that is set forth must not make a retry a second request.
const ANSWERS_MIN: usize = 256;

/// Bounded by number and age, oldest out first. Errors aren't kept: they changed nothing, so asking again is safe.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answers {
    by_id: BTreeMap<RequestId, Reply>,
    order: VecDeque<(u64, RequestId)>,
}

impl Answers {
    pub(crate) fn get(&self, id: RequestId) -> Option<&Reply> {
        self.by_id.get(&id)
    }

    pub(crate) fn keep(&mut self, id: RequestId, at_ms: u64, reply: Reply) {
        if id.0 == 0 || self.by_id.insert(id, reply).is_some() {
            return;
        }
        self.order.push_back((at_ms, id));
        while let Some(&(kept_at_ms, oldest)) = self.order.front() {
            let young = kept_at_ms.saturating_add(AGE_MS_MAX) >= at_ms || self.order.len() <= ANSWERS_MIN;
            if self.order.len() <= ANSWERS_MAX && young {
                break;
            }
            self.order.pop_front();
            self.by_id.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_answer_goes_first() {
        let mut answers = Answers::default();
        for n in 1..=ANSWERS_MAX as u128 + 1 {
            answers.keep(RequestId(n), 0, Reply::Done);
        }
        assert_eq!(answers.get(RequestId(1)), None);
        assert_eq!(answers.get(RequestId(2)), Some(&Reply::Done));
    }

    #[test]
    fn old_answers_go_but_for_the_newest() {
        let mut answers = Answers::default();
        let last = ANSWERS_MIN as u128 + 1;
        for n in 1..last {
            answers.keep(RequestId(n), 0, Reply::Done);
        }
        // As if the wall clock had been set forth.
        answers.keep(RequestId(last), AGE_MS_MAX + 1, Reply::Done);
        assert_eq!(answers.get(RequestId(1)), None);
        for n in 2..=last {
            assert_eq!(answers.get(RequestId(n)), Some(&Reply::Done));
        }
    }
}
