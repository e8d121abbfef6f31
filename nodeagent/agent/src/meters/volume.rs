//! One attached volume.

use super::{Following, Spans, gauge};
use api_telemetry::{Gauge, Operation, Recorder, Stage, TraceSink, table};
use client_volume::{Stats, Trace, TraceHook};
use std::rc::Rc;

/// Where the time of block requests goes, for all volumes of a core.
pub(crate) struct OperationTimes {
    read: Times,
    write: Times,
    discard: Times,
    flush: Recorder,
    /// Volumes opened, recovery included.
    pub(crate) opened: Recorder,
    /// Volumes attached, or not.
    pub(crate) attached: Recorder,
}

struct Times {
    queue: Recorder,
    stream: Recorder,
}

impl OperationTimes {
    pub(crate) fn new() -> Rc<Self> {
        let times =
            |operation| Times { queue: Recorder::new(operation, Stage::Queue), stream: Recorder::new(operation, Stage::Stream) };
        Rc::new(OperationTimes {
            read: times(Operation::Read),
            write: times(Operation::Write),
            discard: times(Operation::Discard),
            flush: Recorder::new(Operation::Flush, Stage::Queue),
            opened: Recorder::new(Operation::VolumeOpen, Stage::Total),
            attached: Recorder::new(Operation::Attach, Stage::Total),
        })
    }

    fn record(&self, trace: &Trace) {
        let queued = trace.throttled + trace.queued;
        let times = match trace.operation {
            client_volume::Operation::Read => &self.read,
            client_volume::Operation::Write => &self.write,
            client_volume::Operation::Discard => &self.discard,
            client_volume::Operation::Flush => return self.flush.record(queued),
        };
        times.queue.record(queued);
        times.stream.record(trace.stream);
    }
}

/// Shown for as long as it lives.
pub(crate) struct VolumeMeters {
    size: Gauge,
    live: Gauge,
    log: Gauge,
    read: Following,
    written: Following,
    hot: Following,
    cold: Following,
    index: Following,
}

impl VolumeMeters {
    pub(crate) fn new(name: &str) -> Self {
        let moved = |direction| Following::new(table::VOLUME_MOVED_BYTES_TOTAL.with(&[name, direction]));
        let appended = |log| Following::new(table::VOLUME_APPENDED_BYTES_TOTAL.with(&[name, log]));
        VolumeMeters {
            size: table::VOLUME_SIZE_BYTES.with(&[name]),
            live: table::VOLUME_LIVE_BYTES.with(&[name]),
            log: table::VOLUME_LOG_BYTES.with(&[name]),
            read: moved("read"),
            written: moved("written"),
            hot: appended("hot"),
            cold: appended("cold"),
            index: appended("index"),
        }
    }

    /// Takes over what the volume counted.
    pub(crate) fn refresh(&self, size_bytes: u64, stats: &Stats) {
        self.size.set(gauge(size_bytes));
        self.live.set(gauge(stats.live_bytes));
        self.log.set(gauge(stats.live_bytes + stats.dead_bytes));
        self.read.follow(stats.read_bytes);
        self.written.follow(stats.write_bytes);
        self.hot.follow(stats.hot_bytes);
        self.cold.follow(stats.cold_bytes);
        self.index.follow(stats.index_bytes);
    }

    /// What the volume calls for each request that it answered.
    pub(crate) fn hook(times: &Rc<OperationTimes>, spans: &Rc<Spans>, sink: TraceSink) -> TraceHook {
        let (times, spans) = (Rc::clone(times), Rc::clone(spans));
        Rc::new(move |trace| {
            times.record(trace);
            if sink.is_on() {
                spans.answered_by_volume(&sink, trace);
            }
        })
    }
}
