//! Pointers into the index stream, and the branches made of them.

use crate::codec::{DecodeError, Reader, put_varint};
use api_types::ChunkId;
use api_types::limits::UNIT_DATA_BYTES_MAX;

/// Leaves under one branch: 1 GiB of address space.
pub(crate) const BRANCH_LEAVES: u32 = 1024;
const VERSION: u8 = 1;

/// Where a node of the tree is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodePointer {
    /// Chunk of the index stream.
    pub(crate) chunk: ChunkId,
    /// First byte in it.
    pub(crate) offset: u32,
    /// Bytes.
    pub(crate) length: u32,
    /// CRC-32C of the bytes.
    pub(crate) crc: u32,
}

impl NodePointer {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.chunk.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let pointer = NodePointer {
            chunk: ChunkId(reader.u64("node chunk")?),
            offset: reader.u32("node offset")?,
            length: reader.u32("node length")?,
            crc: reader.u32("node crc")?,
        };
        if pointer.chunk.0 == 0 || pointer.length == 0 || pointer.length > UNIT_DATA_BYTES_MAX {
            return Err(DecodeError("node pointer"));
        }
        Ok(pointer)
    }
}

/// The bytes of `docs/format.md`, "Pointer list": ascending places with the pointer of each. A branch is one of its
/// leaves, the root's body holds one of the branches.
pub(crate) fn put_pointers(out: &mut Vec<u8>, pointers: &[(u32, NodePointer)]) {
    put_varint(out, pointers.len() as u64);
    let mut next = 0;
    for (place, pointer) in pointers {
        put_varint(out, u64::from(*place) - next);
        pointer.put(out);
        next = u64::from(*place) + 1;
    }
}

/// Reads a pointer list with places below `bound`.
pub(crate) fn take_pointers(reader: &mut Reader<'_>, bound: u32) -> Result<Vec<(u32, NodePointer)>, DecodeError> {
    let count = reader.varint_max("pointer count", u64::from(bound))?;
    let mut pointers = Vec::new();
    let mut next = 0u64;
    for _ in 0..count {
        let place = next.saturating_add(reader.varint("pointer place")?);
        if place >= u64::from(bound) {
            return Err(DecodeError("pointer place"));
        }
        pointers.push((place as u32, NodePointer::take(reader)?));
        next = place + 1;
    }
    Ok(pointers)
}

pub(crate) fn encode_branch(pointers: &[(u32, NodePointer)]) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_pointers(&mut out, pointers);
    out
}

pub(crate) fn decode_branch(bytes: &[u8]) -> Result<Vec<(u32, NodePointer)>, DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8("branch version")? != VERSION {
        return Err(DecodeError("branch version"));
    }
    let pointers = take_pointers(&mut reader, BRANCH_LEAVES)?;
    reader.end()?;
    Ok(pointers)
}
