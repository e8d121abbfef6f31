//! Traced operations, put together from what three rooms know of them: the front end the whole time, the volume its
//! queue and its stream, the data plane each copy's network and device.
//!
//! They are joined by what they are about, exactly: the volume tells chunk and offset of the unit that carried a write
//! or of what was first read, each call names the same; the front end names volume, operation, offset and length. A
//! copy that answered after the operation was done, because enough others had, is not part of it.

use crate::rpc::Called;
use api_telemetry::{OpenOperation, Operation, Stage, TraceHub, TraceSink};
use api_types::{ChunkId, Clock, DeviceId, VolumeId};
use api_wire::frame::Opcode;
use client_volume::Trace;
use nodeagent_frontend::{Answered, Op};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Calls remembered; the oldest go first.
const CALLS_MAX: usize = 1024;
/// Operations that the volume has answered and the front end hasn't.
const WAITING_MAX: usize = 256;

struct Call {
    device: DeviceId,
    append: bool,
    place: (ChunkId, u32),
    began: Duration,
    total: Duration,
    at_device: Duration,
}

struct Waiting {
    volume: VolumeId,
    operation: Operation,
    offset: u64,
    length: u64,
    /// When the volume was asked and when it answered.
    asked: Duration,
    answered: Duration,
    ok: bool,
    open: OpenOperation,
}

/// See the module. One per core; costs a load while nothing is traced.
pub(crate) struct Spans {
    hub: TraceHub,
    clock: Rc<dyn Clock>,
    calls: RefCell<VecDeque<Call>>,
    waiting: RefCell<VecDeque<Waiting>>,
}

impl Spans {
    pub(crate) fn new(hub: TraceHub, clock: Rc<dyn Clock>) -> Rc<Self> {
        Rc::new(Spans { hub, clock, calls: RefCell::default(), waiting: RefCell::default() })
    }

    /// Any volume is traced.
    pub(crate) fn is_on(&self) -> bool {
        self.hub.is_any_on()
    }

    pub(crate) fn hub(&self) -> &TraceHub {
        &self.hub
    }

    /// A store answered us.
    pub(crate) fn called(&self, called: &Called<'_>) {
        if called.error.is_some() || !matches!(called.opcode, Opcode::Append | Opcode::Read) {
            return;
        }
        let mut calls = self.calls.borrow_mut();
        if calls.len() == CALLS_MAX {
            calls.pop_front();
        }
        calls.push_back(Call {
            device: called.device,
            append: called.opcode == Opcode::Append,
            place: (called.chunk, called.offset),
            began: called.began,
            total: called.total,
            at_device: called.device_time.min(called.total),
        });
    }

    /// A volume answered a request.
    pub(crate) fn answered_by_volume(&self, sink: &TraceSink, trace: &Trace) {
        let operation = match trace.operation {
            client_volume::Operation::Read => Operation::Read,
            client_volume::Operation::Write => Operation::Write,
            client_volume::Operation::Flush => Operation::Flush,
            client_volume::Operation::Discard => Operation::Discard,
        };
        let Some(mut open) = sink.begin(operation, trace.offset, trace.length, trace.start) else { return };
        let sent = trace.start + trace.throttled + trace.queued;
        let answered = sent + trace.stream;
        open.stage(Stage::Queue, trace.start, sent);
        open.stage(Stage::Stream, sent, answered);
        for call in self.calls.borrow().iter() {
            if Some(call.place) == trace.place && call.append == (operation == Operation::Write) {
                // Half of the way is taken for the way there: no two clocks are compared.
                let there = call.began + (call.total - call.at_device) / 2;
                open.stage_of(Stage::Network, Some(call.device), call.began, call.began + (call.total - call.at_device));
                open.stage_of(Stage::Device, Some(call.device), there, there + call.at_device);
            }
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == WAITING_MAX
            && let Some(oldest) = waiting.pop_front()
        {
            oldest.finish_alone();
        }
        let (volume, offset, length) = (sink.volume(), trace.offset, trace.length);
        waiting.push_back(Waiting { volume, operation, offset, length, asked: trace.start, answered, ok: trace.ok, open });
    }

    /// The front end answered the kernel.
    pub(crate) fn answered_by_front_end(&self, answered: &Answered<'_>) {
        let operation = match answered.op {
            Op::Read => Operation::Read,
            Op::Write => Operation::Write,
            Op::Flush => Operation::Flush,
            Op::Discard | Op::WriteZeroes => Operation::Discard,
        };
        let mut waiting = self.waiting.borrow_mut();
        let found = waiting.iter().position(|it| {
            it.volume == answered.volume
                && it.operation == operation
                && it.offset == answered.offset
                && (it.length == answered.bytes || operation == Operation::Flush)
        });
        if let Some(mut it) = found.and_then(|place| waiting.remove(place)) {
            let now = self.clock.now();
            let inside = it.answered.saturating_sub(it.asked);
            it.open.stage(Stage::FrontEnd, it.answered, it.answered + answered.latency.saturating_sub(inside));
            it.open.finish(now.max(it.answered), answered.error.map(ToString::to_string).as_deref());
        }
    }

    /// The recording ends: what the front end split, and so never matches, ends as the volume saw it.
    pub(crate) fn flush(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waiting::finish_alone);
        self.calls.borrow_mut().clear();
    }
}

impl Waiting {
    fn finish_alone(self) {
        self.open.finish(self.answered, if self.ok { None } else { Some("failed") });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodeagent_reactor::RealClock;

    const VOLUME: VolumeId = VolumeId(3);
    const MS: Duration = Duration::from_millis(1);

    fn called(device: u64, offset: u32, began: Duration) -> Called<'static> {
        Called {
            device: DeviceId(device),
            opcode: Opcode::Append,
            chunk: ChunkId(9),
            offset,
            began,
            total: 3 * MS,
            device_time: MS,
            error: None,
            local: false,
            trace: true,
        }
    }

    #[test]
    fn an_operation_is_put_together_from_front_end_volume_and_copies() {
        let hub = TraceHub::default();
        let clock: Rc<dyn Clock> = Rc::new(RealClock::new());
        let spans = Spans::new(hub.clone(), Rc::clone(&clock));
        let sink = hub.sink(VOLUME);
        assert!(!spans.is_on());
        hub.start(VOLUME, Duration::from_secs(60), Duration::ZERO);
        assert!(spans.is_on());
        let start = clock.now();
        spans.called(&called(1, 4096, start + MS));
        spans.called(&called(2, 4096, start + MS));
        // Another unit's.
        spans.called(&called(1, 8192, start + MS));
        let trace = Trace {
            operation: client_volume::Operation::Write,
            offset: 0,
            length: 4096,
            start,
            throttled: Duration::ZERO,
            queued: MS,
            stream: 3 * MS,
            place: Some((ChunkId(9), 4096)),
            ok: true,
        };
        spans.answered_by_volume(&sink, &trace);
        let answered = Answered { volume: VOLUME, op: Op::Write, offset: 0, bytes: 4096, latency: 5 * MS, error: None };
        spans.answered_by_front_end(&answered);
        let kept = hub.kept(VOLUME);
        assert_eq!(kept.len(), 1);
        let text = kept[0].to_string();
        for part in ["queue@0=1000", "stream@1000=3000", "network[d-1]@1000=2000", "device[d-2]@2000=1000", "front_end@4000=1000"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text.matches("device[").count(), 2, "{text}");
    }

    #[test]
    fn what_the_front_end_split_is_not_lost() {
        let hub = TraceHub::default();
        let spans = Spans::new(hub.clone(), Rc::new(RealClock::new()));
        hub.start(VOLUME, Duration::from_secs(60), Duration::ZERO);
        let zero = Duration::ZERO;
        let operation = client_volume::Operation::Read;
        let trace = Trace {
            operation,
            offset: 0,
            length: 4096,
            start: zero,
            throttled: zero,
            queued: zero,
            stream: MS,
            place: None,
            ok: true,
        };
        spans.answered_by_volume(&hub.sink(VOLUME), &trace);
        assert!(hub.kept(VOLUME).is_empty());
        spans.flush();
        assert_eq!(hub.kept(VOLUME).len(), 1);
    }
}
