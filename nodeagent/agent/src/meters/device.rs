//! One disk and the store on it.

use super::gauge;
use api_telemetry::{Counter, Gauge, Operation, Recorder, Stage, table};
use api_types::{DeviceId, QosClass};
use nodeagent_device::{Observation, OpKind};
use nodeagent_engine::{Op, Stats};
use std::cell::OnceCell;
use std::time::Duration;

/// Handed to the device and to its store before either is open: which device it is shows only then.
pub(crate) struct DeviceMeters {
    read: Times,
    write: Times,
    flush: Times,
    commit: Recorder,
    labelled: OnceCell<Labelled>,
}

struct Times {
    total: Recorder,
    queue: Recorder,
    device: Recorder,
}

struct Labelled {
    capacity: Gauge,
    free: Gauge,
    chunks: Gauge,
    queued: Gauge,
    read: Counter,
    written: Counter,
    errors: Counter,
    corrupt: Counter,
    scrubbed: Counter,
}

impl Times {
    fn new(operation: Operation) -> Self {
        let recorder = |stage| Recorder::new(operation, stage);
        Times { total: recorder(Stage::Total), queue: recorder(Stage::Queue), device: recorder(Stage::Device) }
    }
}

impl DeviceMeters {
    pub(crate) fn new() -> Self {
        DeviceMeters {
            read: Times::new(Operation::DeviceRead),
            write: Times::new(Operation::DeviceWrite),
            flush: Times::new(Operation::DeviceFlush),
            commit: Recorder::new(Operation::JournalCommit, Stage::Total),
            labelled: OnceCell::new(),
        }
    }

    /// The store is open, and this is the device.
    pub(crate) fn name(&self, device: DeviceId) {
        let name = device.to_string();
        let name = name.as_str();
        self.labelled.get_or_init(|| Labelled {
            capacity: table::DEVICE_CAPACITY_BYTES.with(&[name]),
            free: table::DEVICE_FREE_BYTES.with(&[name]),
            chunks: table::DEVICE_CHUNKS.with(&[name]),
            queued: table::DEVICE_QUEUED.with(&[name]),
            read: table::DEVICE_MOVED_BYTES_TOTAL.with(&[name, "read"]),
            written: table::DEVICE_MOVED_BYTES_TOTAL.with(&[name, "written"]),
            errors: table::DEVICE_ERRORS_TOTAL.with(&[name]),
            corrupt: table::ENGINE_CORRUPT_TOTAL.with(&[name]),
            scrubbed: table::ENGINE_SCRUBBED_BYTES_TOTAL.with(&[name]),
        });
    }

    /// Takes the gauges over.
    pub(crate) fn refresh(&self, stats: &Stats) {
        if let Some(labelled) = self.labelled.get() {
            labelled.capacity.set(gauge(stats.store.capacity_bytes));
            labelled.free.set(gauge(stats.store.free_bytes));
            labelled.chunks.set(gauge(stats.store.chunks));
            labelled.queued.set(i64::from(stats.store.queued));
        }
    }
}

impl nodeagent_device::Observer for DeviceMeters {
    fn observe(&self, observation: &Observation) {
        let times = match observation.kind {
            OpKind::Read => &self.read,
            OpKind::Write => &self.write,
            OpKind::Flush => &self.flush,
            OpKind::Trim => return,
        };
        times.total.record(observation.queued + observation.device);
        times.queue.record(observation.queued);
        times.device.record(observation.device);
        let Some(labelled) = self.labelled.get().filter(|_| observation.ok) else { return };
        match observation.kind {
            OpKind::Read => labelled.read.add(observation.bytes.into()),
            OpKind::Write => labelled.written.add(observation.bytes.into()),
            OpKind::Flush | OpKind::Trim => {}
        }
    }
}

impl nodeagent_engine::Observer for DeviceMeters {
    fn observe(&self, _: Op, stage: nodeagent_engine::Stage, _: QosClass, _: u32, elapsed: Duration) {
        if stage == nodeagent_engine::Stage::Journal {
            self.commit.record(elapsed);
        }
    }

    fn scrubbed(&self, bytes: u64, verifies: bool) {
        if let Some(labelled) = self.labelled.get() {
            labelled.scrubbed.add(bytes);
            labelled.corrupt.add(u64::from(!verifies));
        }
    }

    fn device_error(&self, _: Op) {
        if let Some(labelled) = self.labelled.get() {
            labelled.errors.increment();
        }
    }
}
