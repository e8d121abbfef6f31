//! What a volume tells about itself.

use api_types::ChunkId;
use std::rc::Rc;
use std::time::Duration;

/// Counters since the volume was opened, and gauges of now. Bytes are the user's unless said otherwise; copies are not
/// counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Requests answered with success, by kind.
    pub reads: u64,
    /// See `reads`.
    pub writes: u64,
    /// See `reads`.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub discards: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes appended to the hot stream, trailers and padding included.
    pub hot_bytes: u64,
    /// Bytes that reclaim appended to the cold stream.
    pub cold_bytes: u64,
    /// Bytes of map leaves and checkpoints appended to the index stream.
    pub index_bytes: u64,
    /// Units appended for the user: `writes / units` says how many share one.
    pub units: u64,
    /// Bytes of blocks that the map refers to.
    pub live_bytes: u64,
    /// Bytes in data chunks that nothing refers to.
    pub dead_bytes: u64,
    /// Data chunks, hot and cold.
    pub chunks: u64,
    /// Index chunks.
    pub index_chunks: u64,
    /// Chunks emptied by reclaim.
    pub reclaimed_chunks: u64,
    /// Chunks given back to the masters.
    pub deleted_chunks: u64,
    /// How urgent reclaim is: 0 idle, 1 at full speed.
    pub reclaim_urgency: f64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Log bytes that a crash would have to replay now.
    pub replay_bytes: u64,
    /// Log bytes that were replayed when the volume was opened.
    pub replayed_bytes: u64,
    /// Map leaves in memory.
    pub resident_leaves: u64,
    /// Map leaves read back from the index stream.
    pub leaf_loads: u64,
    /// Foreground writes that waited for reclaim, or for space.
    pub throttled: u64,
}

impl Stats {
    /// Bytes appended for each byte written by the user: hot, cold and index together, copies not counted. One at the
    /// least; zero while nothing was written.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.write_bytes == 0 {
            return 0.0;
        }
        (self.hot_bytes + self.cold_bytes + self.index_bytes) as f64 / self.write_bytes as f64
    }

    /// Share of the used bytes that nothing refers to.
    #[must_use]
    pub fn garbage_share(&self) -> f64 {
        let used = self.live_bytes + self.dead_bytes;
        if used == 0 { 0.0 } else { self.dead_bytes as f64 / used as f64 }
    }
}

/// What a request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// [`BlockDevice::read`](crate::BlockDevice::read).
    Read,
    /// [`BlockDevice::write`](crate::BlockDevice::write).
    Write,
    /// [`BlockDevice::flush`](crate::BlockDevice::flush).
    Flush,
    /// [`BlockDevice::discard`](crate::BlockDevice::discard) and write-zeroes.
    Discard,
}

impl Operation {
    /// The name used in metrics and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
        }
    }
}

/// One answered request and where its time went. The stages are disjoint and add up to the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// What it was.
    pub operation: Operation,
    /// Byte offset in the volume.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// When it came, by the volume's clock.
    pub start: Duration,
    /// Held back by limits and by reclaim.
    pub throttled: Duration,
    /// Waiting for map leaves and for a place in a unit.
    pub queued: Duration,
    /// In the stream: network and devices.
    pub stream: Duration,
    /// The chunk and offset of what was first appended or read for it; `None`: no chunk was touched.
    pub place: Option<(ChunkId, u32)>,
    /// It succeeded.
    pub ok: bool,
}

/// Called once for every answered request, on the volume's own thread. Must be quick.
pub type TraceHook = Rc<dyn Fn(&Trace)>;
