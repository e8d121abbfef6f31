//! One volume's operations, one by one, while someone has switched that on.
//!
//! Off, it costs a load per operation. On, each operation notes its stages, and those that took at least the threshold
//! are kept in a bounded buffer and sent as spans when an OTLP endpoint is set.

use crate::latency::{Operation, Stage};
use crate::otlp::SpanExport;
use api_types::{DeviceId, VolumeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Operations kept per volume; the oldest go first.
const KEPT: usize = 1024;
/// Stages noted per operation; further ones are left out.
const STAGES_MAX: usize = 16;
/// Volumes that have a trace in one process.
const VOLUMES_MAX: usize = 512;

/// When one stage ran, from the beginning of its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageTime {
    /// Which.
    pub stage: Stage,
    /// On which device, where it has one.
    pub device: Option<DeviceId>,
    /// Since the operation began.
    pub begin: Duration,
    /// How long.
    pub took: Duration,
}

/// An operation that took at least the threshold.
#[derive(Clone, PartialEq, Debug)]
pub struct TracedOperation {
    /// On which volume.
    pub volume: VolumeId,
    /// What.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// When it ended, since 1970.
    pub ended: Duration,
    /// From beginning to end.
    pub total: Duration,
    /// Its stages, in the order in which they were noted; they may overlap.
    pub stages: Vec<StageTime>,
    /// Why it failed.
    pub error: Option<String>,
}

impl fmt::Display for TracedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.ended;
        write!(f, "{}.{:06} {} {}", ended.as_secs(), ended.subsec_micros(), self.volume, self.operation.as_str())?;
        write!(f, " {}+{} {} us:", self.offset, self.length, self.total.as_micros())?;
        for part in &self.stages {
            write!(f, " {}", part.stage.as_str())?;
            if let Some(device) = part.device {
                write!(f, "[{device}]")?;
            }
            write!(f, "@{}={}", part.begin.as_micros(), part.took.as_micros())?;
        }
        if let Some(error) = &self.error {
            write!(f, " failed: {error}")?;
        }
        Ok(())
    }
}

/// All traces of a process. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct TraceHub {
    /// How many volumes are traced.
    traced: Arc<AtomicUsize>,
    volumes: Arc<Mutex<BTreeMap<VolumeId, Arc<VolumeTrace>>>>,
    export: Option<SpanExport>,
}

#[derive(Debug)]
struct VolumeTrace {
    volume: VolumeId,
    on: AtomicBool,
    traced: Arc<AtomicUsize>,
    state: Mutex<State>,
    export: Option<SpanExport>,
}

#[derive(Debug, Default)]
struct State {
    duration: Duration,
    /// Set by the first operation after the switch: only operations know the clock.
    until: Option<Duration>,
    threshold: Duration,
    kept: VecDeque<TracedOperation>,
    /// Operations that were slow enough, those included that are kept no longer.
    seen: u64,
}

impl VolumeTrace {
    fn switch(&self, on: bool) {
        match (self.on.swap(on, Ordering::AcqRel), on) {
            (false, true) => drop(self.traced.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.traced.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

impl TraceHub {
    pub(crate) fn new(export: Option<SpanExport>) -> Self {
        TraceHub { traced: Arc::default(), volumes: Arc::default(), export }
    }

    /// The sink of a volume, for whoever serves it.
    #[must_use]
    pub fn sink(&self, volume: VolumeId) -> TraceSink {
        TraceSink { trace: self.volume(volume) }
    }

    /// Switches tracing on for a volume, for `duration` from its next operation on; what was kept before is forgotten.
    /// Operations faster than `threshold` aren't kept.
    pub fn start(&self, volume: VolumeId, duration: Duration, threshold: Duration) {
        let trace = self.volume(volume);
        *trace.state.lock() = State { duration, threshold, ..State::default() };
        trace.switch(true);
    }

    /// Switches it off; what was kept stays.
    pub fn stop(&self, volume: VolumeId) {
        self.volume(volume).switch(false);
    }

    /// What was kept, oldest first.
    #[must_use]
    pub fn kept(&self, volume: VolumeId) -> Vec<TracedOperation> {
        self.volume(volume).state.lock().kept.iter().cloned().collect()
    }

    /// How many operations were slow enough since it was switched on; more than are kept.
    #[must_use]
    pub fn seen(&self, volume: VolumeId) -> u64 {
        self.volume(volume).state.lock().seen
    }

    /// Any volume is traced just now.
    #[must_use]
    pub fn is_any_on(&self) -> bool {
        self.traced.load(Ordering::Relaxed) > 0
    }

    fn volume(&self, volume: VolumeId) -> Arc<VolumeTrace> {
        let mut volumes = self.volumes.lock();
        if volumes.len() >= VOLUMES_MAX && !volumes.contains_key(&volume) {
            volumes.retain(|_, trace| Arc::strong_count(trace) > 1 || trace.on.load(Ordering::Relaxed));
        }
        let (export, traced) = (self.export.clone(), Arc::clone(&self.traced));
        let new = || Arc::new(VolumeTrace { volume, on: AtomicBool::new(false), traced, state: Mutex::default(), export });
        Arc::clone(volumes.entry(volume).or_insert_with(new))
    }
}

/// Where a volume's operations are noted.
#[derive(Clone, Debug)]
pub struct TraceSink {
    trace: Arc<VolumeTrace>,
}

impl TraceSink {
    /// Whose operations are noted.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.trace.volume
    }

    /// Operations are traced just now.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.trace.on.load(Ordering::Relaxed)
    }

    /// An operation begins. `None` while tracing is off. `now` is the caller's clock, the same for all calls.
    #[must_use]
    pub fn begin(&self, operation: Operation, offset: u64, length: u64, now: Duration) -> Option<OpenOperation> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.trace.state.lock();
        let duration = state.duration;
        if now >= *state.until.get_or_insert(now + duration) {
            self.trace.switch(false);
            return None;
        }
        let trace = Arc::clone(&self.trace);
        Some(OpenOperation { trace, operation, offset, length, began: now, stages: Vec::new() })
    }
}

/// An operation under way. Dropped without [`Self::finish`], it leaves nothing.
#[derive(Debug)]
pub struct OpenOperation {
    trace: Arc<VolumeTrace>,
    operation: Operation,
    offset: u64,
    length: u64,
    began: Duration,
    stages: Vec<StageTime>,
}

impl OpenOperation {
    /// A stage ran from `begin` to `end`, by the caller's clock.
    pub fn stage(&mut self, stage: Stage, begin: Duration, end: Duration) {
        self.stage_of(stage, None, begin, end);
    }

    /// The same of one copy, which is on `device`.
    pub fn stage_of(&mut self, stage: Stage, device: Option<DeviceId>, begin: Duration, end: Duration) {
        if self.stages.len() < STAGES_MAX {
            let since = begin.saturating_sub(self.began);
            self.stages.push(StageTime { stage, device, begin: since, took: end.saturating_sub(begin) });
        }
    }

    /// The operation ended, well or not.
    pub fn finish(self, now: Duration, error: Option<&str>) {
        let total = now.saturating_sub(self.began);
        let mut state = self.trace.state.lock();
        if total < state.threshold {
            return;
        }
        state.seen += 1;
        let operation = TracedOperation {
            volume: self.trace.volume,
            operation: self.operation,
            offset: self.offset,
            length: self.length,
            ended: crate::init::since_1970(),
            total,
            stages: self.stages,
            error: error.map(str::to_owned),
        };
        if let Some(export) = &self.trace.export {
            export.send(&operation);
        }
        if state.kept.len() == KEPT {
            state.kept.pop_front();
        }
        state.kept.push_back(operation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(7);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn nothing_is_traced_unless_switched_on() {
        let sink = TraceHub::default().sink(VOLUME);
        assert!(sink.begin(Operation::Write, 0, 4096, MS).is_none());
    }

    #[test]
    fn slow_operations_are_kept_with_their_stages() {
        let hub = TraceHub::default();
        let sink = hub.sink(VOLUME);
        hub.start(VOLUME, 1000 * MS, 5 * MS);
        let fast = sink.begin(Operation::Read, 0, 4096, 10 * MS).unwrap();
        fast.finish(14 * MS, None);
        let mut slow = sink.begin(Operation::Write, 8192, 4096, 20 * MS).unwrap();
        slow.stage(Stage::Queue, 20 * MS, 21 * MS);
        slow.stage(Stage::Device, 22 * MS, 29 * MS);
        slow.finish(30 * MS, Some("no space"));
        let kept = hub.kept(VOLUME);
        assert_eq!(kept.len(), 1);
        let text = kept[0].to_string();
        assert!(text.ends_with("v-7 write 8192+4096 10000 us: queue@0=1000 device@2000=7000 failed: no space"), "{text}");
    }

    #[test]
    fn it_ends_by_itself_and_the_buffer_is_bounded() {
        let hub = TraceHub::default();
        let sink = hub.sink(VOLUME);
        hub.start(VOLUME, 100 * MS, Duration::ZERO);
        for number in 0..2000 {
            let operation = sink.begin(Operation::Write, number, 1, 50 * MS).unwrap();
            operation.finish(51 * MS, None);
        }
        let kept = hub.kept(VOLUME);
        assert_eq!((kept.len(), kept[0].offset), (KEPT, 2000 - KEPT as u64));
        assert!(sink.begin(Operation::Write, 0, 1, 150 * MS).is_none());
        assert!(!sink.is_on());
    }
}
