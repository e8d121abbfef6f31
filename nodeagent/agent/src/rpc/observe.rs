//! What the data plane tells about itself. Called on the hot path: an implementation counts, and does no more.

use api_types::chunk::Error;
use api_types::{ChunkId, DeviceId, QosClass};
use api_wire::frame::Opcode;
use std::cell::Cell;
use std::time::Duration;

use super::connection::End;

/// One request that a server has answered.
#[derive(Debug, Clone, Copy)]
pub struct Served<'a> {
    /// By which device.
    pub device: DeviceId,
    /// What was asked.
    pub opcode: Opcode,
    /// About which chunk.
    pub chunk: ChunkId,
    /// For whom.
    pub qos: QosClass,
    /// From the receipt of its last byte until the store was asked.
    pub waited: Duration,
    /// From asking the store until its answer.
    pub store: Duration,
    /// Payload received, in bytes.
    pub request_bytes: usize,
    /// Payload to be sent, in bytes.
    pub answer_bytes: usize,
    /// Why not.
    pub error: Option<&'a Error>,
    /// The client wants this operation traced.
    pub trace: bool,
}

/// One request that a client has its answer to.
#[derive(Debug, Clone, Copy)]
pub struct Called<'a> {
    /// From which device.
    pub device: DeviceId,
    /// What was asked.
    pub opcode: Opcode,
    /// About which chunk; zero for a probe.
    pub chunk: ChunkId,
    /// From which offset on; zero for what has none.
    pub offset: u32,
    /// When, by the caller's clock.
    pub began: Duration,
    /// From the call until its answer.
    pub total: Duration,
    /// The store's part of it, as the server says; zero when it didn't answer.
    pub device_time: Duration,
    /// Why not.
    pub error: Option<&'a Error>,
    /// A store of this core: no socket between.
    pub local: bool,
    /// The caller wants this operation traced.
    pub trace: bool,
}

/// Counts. Every method has an empty default.
pub trait Observer {
    /// A server answered.
    fn served(&self, _served: &Served<'_>) {}
    /// A client got an answer.
    fn called(&self, _called: &Called<'_>) {}
    /// A server took a connection.
    fn accepted(&self) {}
    /// A server's connection ended.
    fn closed(&self, _end: &End) {}
    /// A client's connection came up.
    fn connected(&self, _device: DeviceId) {}
    /// Whether servers are asked to trace what is sent now.
    fn traces(&self) -> bool {
        false
    }
    /// A client's connection ended, or never came up.
    fn lost(&self, _device: DeviceId, _reason: &str) {}
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// Lets one log line through per period and counts the rest, so that a peer can't fill a disk with our log.
#[derive(Debug)]
pub(crate) struct LogLimit {
    period: Duration,
    next: Cell<Duration>,
    held_back: Cell<u64>,
}

impl LogLimit {
    pub(crate) fn new(period: Duration) -> Self {
        LogLimit { period, next: Cell::new(Duration::ZERO), held_back: Cell::new(0) }
    }

    /// How many lines were held back since the last one, when one may be written now.
    pub(crate) fn allow(&self, now: Duration) -> Option<u64> {
        if now < self.next.get() {
            self.held_back.set(self.held_back.get() + 1);
            return None;
        }
        self.next.set(now + self.period);
        Some(self.held_back.replace(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_period_passes_and_says_how_many_did_not() {
        let limit = LogLimit::new(Duration::from_secs(10));
        assert_eq!(limit.allow(Duration::from_secs(1)), Some(0));
        assert_eq!(limit.allow(Duration::from_secs(2)), None);
        assert_eq!(limit.allow(Duration::from_secs(10)), None);
        assert_eq!(limit.allow(Duration::from_secs(11)), Some(2));
    }
}
