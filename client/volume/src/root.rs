//! The root of a checkpoint: one unit with what an open needs first, and a body of any length in nodes of its own.

use crate::codec::{DecodeError, Reader, put_varint};
use crate::map::{NodePointer, put_pointers, take_pointers};
use api_types::{ChunkId, Epoch, VolumeId};

const MAGIC: u32 = u32::from_le_bytes(*b"BSLR");
const VERSION: u8 = 1;
/// Bytes of the body in one node.
pub(crate) const BODY_NODE_BYTES: usize = 256 << 10;
const BODY_NODES_MAX: u64 = 4096;
const CHUNKS_MAX: u64 = 1 << 24;
/// Branches a volume may have: 2^56 bytes of address space.
const BRANCHES_MAX: u32 = 1 << 26;

/// A place in the order of a stream: everything in earlier chunks, and in this one below `end`, is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct LogPosition {
    /// Place of the chunk in the stream.
    pub(crate) index: u64,
    /// Offset in it.
    pub(crate) end: u32,
}

/// How far a log is in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogState {
    /// What was applied.
    pub(crate) position: LogPosition,
    /// Units with sequences up to this one were applied or have failed: replay skips them.
    pub(crate) sequence: u64,
}

/// Which log a data chunk belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Log {
    /// What users write.
    Hot = 0,
    /// What reclaim kept.
    Cold = 1,
}

/// The unit that the masters point to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    pub(crate) volume: VolumeId,
    pub(crate) epoch: Epoch,
    pub(crate) hot: LogState,
    pub(crate) cold: LogState,
    /// The body, in order.
    pub(crate) body: Vec<NodePointer>,
}

/// What the root's body lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Body {
    /// Data chunks with the number of blocks that the map refers to.
    pub(crate) chunks: Vec<(Log, ChunkId, u32)>,
    /// Branches by number.
    pub(crate) branches: Vec<(u32, NodePointer)>,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.push(VERSION);
        out.extend_from_slice(&self.volume.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        for log in [&self.hot, &self.cold] {
            out.extend_from_slice(&log.position.index.to_le_bytes());
            out.extend_from_slice(&log.position.end.to_le_bytes());
            out.extend_from_slice(&log.sequence.to_le_bytes());
        }
        put_varint(&mut out, self.body.len() as u64);
        for pointer in &self.body {
            pointer.put(&mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Root, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u32("root magic")? != MAGIC {
            return Err(DecodeError("root magic"));
        }
        if reader.u8("root version")? != VERSION {
            return Err(DecodeError("root version"));
        }
        let (volume, epoch) = (VolumeId(reader.u64("volume")?), Epoch(reader.u64("epoch")?));
        let mut log = || -> Result<LogState, DecodeError> {
            let position = LogPosition { index: reader.u64("log chunk")?, end: reader.u32("log end")? };
            Ok(LogState { position, sequence: reader.u64("log sequence")? })
        };
        let (hot, cold) = (log()?, log()?);
        let count = reader.varint_max("body nodes", BODY_NODES_MAX)?;
        let body = (0..count).map(|_| NodePointer::take(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Root { volume, epoch, hot, cold, body })
    }
}

impl Body {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.chunks.len() as u64);
        for (log, chunk, live) in &self.chunks {
            out.push(*log as u8);
            out.extend_from_slice(&chunk.0.to_le_bytes());
            put_varint(&mut out, u64::from(*live));
        }
        put_pointers(&mut out, &self.branches);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Body, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("body version")? != VERSION {
            return Err(DecodeError("body version"));
        }
        let mut chunks = Vec::new();
        for _ in 0..reader.varint_max("chunk count", CHUNKS_MAX)? {
            let log = match reader.u8("chunk log")? {
                0 => Log::Hot,
                1 => Log::Cold,
                _ => return Err(DecodeError("chunk log")),
            };
            let chunk = ChunkId(reader.u64("chunk")?);
            chunks.push((log, chunk, reader.varint_max("live blocks", u64::from(u32::MAX))? as u32));
        }
        let branches = take_pointers(&mut reader, BRANCHES_MAX)?;
        reader.end()?;
        Ok(Body { chunks, branches })
    }
}

#[cfg(test)]
mod tests;
