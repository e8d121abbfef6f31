//! Reads: where the bytes lie.

use super::{Core, State};
use crate::extent::Piece;
use crate::space::Ticket;
use api_types::ChunkId;
use api_types::chunk::Error;
use api_types::limits::READ_BYTES_MAX;

/// What to read from the device, and which part of it was asked for.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    /// Whole blocks, in order.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes at the front that weren't asked for.
    pub(crate) skip: u32,
    /// Bytes that were asked for.
    pub(crate) length: u32,
    /// Keeps the extents from being used for something else until it is finished.
    pub(crate) ticket: Ticket,
}

impl Core {
    /// Plans a read of durable bytes. What isn't here yet may be at another copy: the error says how much is here.
    pub(crate) fn plan_read(&mut self, id: ChunkId, offset: u32, length: u32) -> Result<ReadPlan, Error> {
        if length > READ_BYTES_MAX {
            return Err(Error::Invalid(format!("a read of {length} bytes: at most {READ_BYTES_MAX}")));
        }
        let chunk = self.chunks.get(&id).ok_or(Error::Unknown)?;
        let Some(end) = offset.checked_add(length).filter(|end| *end <= chunk.shape.capacity) else {
            return Err(Error::Invalid(format!("a read beyond the capacity of {} bytes", chunk.shape.capacity)));
        };
        if end > chunk.durable {
            return Err(match chunk.state {
                State::Open | State::Closing => Error::WrongOffset { expected: chunk.durable },
                State::Closed | State::Final => Error::Sealed { length: chunk.durable },
            });
        }
        let block = self.limits.block_bytes;
        let start = offset - offset % block;
        let pieces = chunk.runs.pieces(start, end.next_multiple_of(block) - start);
        Ok(ReadPlan { pieces, skip: offset - start, length, ticket: self.space.begin() })
    }
}
