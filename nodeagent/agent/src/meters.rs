//! What a core tells about itself: counters, gauges and latencies of its disks, streams and volumes, and the spans of
//! operations that are traced.
//!
//! Contract: on the hot path a meter loads and stores and does no more. Gauges, and counters that another room keeps, are
//! taken over once a second, with the node's report.

mod blocks;
mod core;
mod device;
mod spans;
mod stream;
mod volume;

pub(crate) use blocks::BlockMeters;
pub(crate) use core::CoreMeters;
pub(crate) use device::DeviceMeters;
pub(crate) use spans::Spans;
pub(crate) use stream::StreamMeters;
pub(crate) use volume::{OperationTimes, VolumeMeters};

use api_telemetry::Counter;
use std::cell::Cell;

/// A counter that follows one which another room keeps.
struct Following {
    counter: Counter,
    seen: Cell<u64>,
}

impl Following {
    fn new(counter: Counter) -> Self {
        Following { counter, seen: Cell::new(0) }
    }

    /// The other one has come to `now`.
    fn follow(&self, now: u64) {
        self.counter.add(now.saturating_sub(self.seen.replace(now)));
    }
}

/// A gauge of bytes or of things.
fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
