//! What an appender is told, and what it asks for.

use super::Ticket;
use crate::Error;
use crate::writer::Position;
use api_types::chunk::{self as store, Append, Seal, Sealed};
use api_types::master::{self, ChunkRecord, Grant, SealChunk};
use api_types::{ChunkId, DeviceId};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The caller appends.
    Append {
        /// Names the append; ascending.
        id: u64,
        /// The data, in parts.
        data: Vec<Bytes>,
        /// The trailer.
        trailer: Bytes,
    },
    /// A store answered an append, or nothing did in time.
    Appended {
        /// Which.
        ticket: Ticket,
        /// What it said.
        result: Result<u32, store::Error>,
    },
    /// A store answered a seal, or nothing did in time.
    Sealed {
        /// The chunk.
        chunk: ChunkId,
        /// The device.
        device: DeviceId,
        /// What it said.
        result: Result<Sealed, store::Error>,
    },
    /// The masters answered a grant.
    Granted(Result<Vec<ChunkRecord>, master::Error>),
    /// The masters answered a seal.
    Recorded {
        /// The chunk.
        chunk: ChunkId,
        /// The length they have.
        result: Result<u32, master::Error>,
    },
    /// The masters answered a deletion.
    Deleted {
        /// The chunk.
        chunk: ChunkId,
        /// What they said.
        result: Result<(), master::Error>,
    },
    /// The devices to stay away from, all of them.
    Listed(BTreeSet<DeviceId>),
    /// No more appends will come.
    Close,
    /// Time passed.
    Tick,
}

/// Something to do.
#[derive(Debug)]
pub enum Command {
    /// Send an append to a device.
    Append {
        /// To which.
        device: DeviceId,
        /// Comes back with the answer.
        ticket: Ticket,
        /// What.
        append: Append,
    },
    /// Send a seal to a device.
    Seal {
        /// To which.
        device: DeviceId,
        /// What.
        seal: Seal,
    },
    /// Ask the masters for chunks.
    Grant(Grant),
    /// Tell the masters a length.
    Record(SealChunk),
    /// Give a chunk back.
    Delete(ChunkId),
    /// An append ends.
    Complete {
        /// Which.
        id: u64,
        /// How.
        result: Result<Position, Error>,
    },
    /// A device is too slow or too silent for new chunks.
    Suspect(DeviceId),
    /// A chunk is written to from now on: this is where it is.
    Opened(ChunkRecord),
    /// A chunk is recorded as sealed.
    Finished(ChunkRecord),
    /// The close is done.
    Closed(Result<(), Error>),
}

/// What a writer has been through, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriterStats {
    /// Units committed.
    pub commits: u64,
    /// Chunks left before they were full.
    pub moves: u64,
    /// Copies given up, to be repaired.
    pub copies_given_up: u64,
    /// Chunks recorded as sealed.
    pub seals: u64,
    /// Bytes held for copies that are behind.
    pub chased_bytes: u64,
}

impl WriterStats {
    /// Adds another writer's.
    pub fn add(&mut self, other: &WriterStats) {
        self.commits += other.commits;
        self.moves += other.moves;
        self.copies_given_up += other.copies_given_up;
        self.seals += other.seals;
        self.chased_bytes += other.chased_bytes;
    }
}
