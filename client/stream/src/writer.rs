//! The writing end of a stream.

use crate::Error;
use api_types::master::{ChunkRecord, Replication};
use api_types::{ChunkId, Epoch, LifetimeClass, OwnerId, QosClass, StreamId};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// Where a unit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// In which chunk.
    pub chunk: ChunkId,
    /// Place of the chunk in the stream's order. Positions are ordered by (`index`, `offset`).
    pub index: u64,
    /// Where the unit, and so its data, starts.
    pub offset: u32,
    /// Where the next unit starts.
    pub end: u32,
}

/// What a writer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterOptions {
    /// The fencing group of the stream's chunks.
    pub owner: OwnerId,
    /// The writer's epoch, with which the stream was recovered.
    pub epoch: Epoch,
    /// Copies.
    pub replication: Replication,
    /// Capacity of new chunks, in bytes.
    pub chunk_bytes: u32,
    /// How long the bytes are expected to live.
    pub class: LifetimeClass,
    /// Who waits for the appends.
    pub qos: QosClass,
}

/// The only writer of a stream in its epoch. Dropping it stops it where it is, as a crash would; [`Writer::close`]
/// leaves nothing to recover.
pub struct Writer {}

impl Writer {
    /// Appends one unit. The append is queued by this call, so the order of calls is the order in the stream. Resolves,
    /// in stream order, once the unit is committed. Dropping the future doesn't undo the append.
    ///
    /// The future fails with [`Error::Fenced`], [`Error::NoSpace`], [`Error::Unavailable`] or [`Error::Closed`]; such a
    /// unit may still be found by a later recovery, at its own place in the order. [`Error::Invalid`] when data or
    /// trailer exceed `api_types::limits`.
    pub fn append(&self, data: Vec<Bytes>, trailer: Bytes) -> LocalBoxFuture<'static, Result<Position, Error>> {
        let _ = (data, trailer);
        async { Err(Error::Closed) }.boxed_local()
    }

    /// Where the last committed unit of this writer stands.
    #[must_use]
    pub fn committed(&self) -> Option<Position> {
        None
    }

    /// Chunks that this writer wrote to and has sealed since the last call, in stream order, as recorded at the masters.
    #[must_use]
    pub fn take_sealed(&self) -> Vec<ChunkRecord> {
        Vec::new()
    }

    /// The chunk being written, with its length as committed.
    #[must_use]
    pub fn open_chunk(&self) -> Option<(ChunkRecord, u32)> {
        None
    }

    /// `Some(error)` once no append can succeed any more.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        None
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        StreamId(0)
    }

    /// Waits for what was appended, seals the open chunk, gives the spares back.
    ///
    /// # Errors
    /// Whatever kept an append from being committed, or the masters from recording the seal.
    pub async fn close(self) -> Result<(), Error> {
        Ok(())
    }
}
