//! What the kernel asks of all volumes of a core.

use super::Spans;
use api_telemetry::{Counter, Operation, Recorder, Stage, table};
use nodeagent_frontend::{Answered, Observer, Op};
use std::rc::Rc;

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// See the module.
pub(crate) struct BlockMeters {
    /// By operation: well, badly.
    requests: [(Counter, Counter); OPS.len()],
    read: Recorder,
    write: Recorder,
    flush: Recorder,
    discard: Recorder,
    spans: Rc<Spans>,
}

impl BlockMeters {
    pub(crate) fn new(spans: Rc<Spans>) -> Self {
        let counter = |op: Op, result| table::FRONTEND_REQUESTS_TOTAL.with(&[op.as_str(), result]);
        let total = |operation| Recorder::new(operation, Stage::Total);
        BlockMeters {
            requests: OPS.map(|op| (counter(op, "ok"), counter(op, "error"))),
            read: total(Operation::Read),
            write: total(Operation::Write),
            flush: total(Operation::Flush),
            discard: total(Operation::Discard),
            spans,
        }
    }
}

impl Observer for BlockMeters {
    fn answered(&self, answered: Answered<'_>) {
        let (well, badly) = &self.requests[answered.op as usize];
        if answered.error.is_none() {
            well.increment()
        } else {
            badly.increment()
        }
        let total = match answered.op {
            Op::Read => &self.read,
            Op::Write => &self.write,
            Op::Flush => &self.flush,
            Op::Discard | Op::WriteZeroes => &self.discard,
        };
        total.record(answered.latency);
        if self.spans.is_on() {
            self.spans.answered_by_front_end(&answered);
        }
    }
}
