//! A place for whoever counts and times what the store does.

use api_types::QosClass;
use std::time::Duration;

/// What was asked of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    /// An append.
    Append,
    /// A read.
    Read,
    /// A seal.
    Seal,
    /// A deletion.
    Delete,
    /// A scrub of one chunk.
    Scrub,
    /// A write of a restore.
    Restore,
    /// The store's own work: journal, checkpoints, reservations.
    Own,
}

impl Op {
    /// The name used in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Append => "append",
            Op::Read => "read",
            Op::Seal => "seal",
            Op::Delete => "delete",
            Op::Scrub => "scrub",
            Op::Restore => "restore",
            Op::Own => "own",
        }
    }
}

/// Which part of the time it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// From request to answer.
    Total,
    /// At the device, queued or under way.
    Device,
    /// From the start of a journal commit to its durability.
    Journal,
    /// Writing a checkpoint.
    Checkpoint,
}

impl Stage {
    /// The name used in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Total => "total",
            Stage::Device => "device",
            Stage::Journal => "journal",
            Stage::Checkpoint => "checkpoint",
        }
    }
}

/// Is told about every operation. Called on the hot path: count and return.
pub trait Observer {
    /// `bytes` took `elapsed` in this stage.
    fn observe(&self, op: Op, stage: Stage, qos: QosClass, bytes: u32, elapsed: Duration) {
        let _ = (op, stage, qos, bytes, elapsed);
    }

    /// A scrub read `bytes` of a chunk, and found that they verify or don't.
    fn scrubbed(&self, bytes: u64, verifies: bool) {
        let _ = (bytes, verifies);
    }

    /// The device refused or failed a request of this operation.
    fn device_error(&self, op: Op) {
        let _ = op;
    }
}

/// Looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
