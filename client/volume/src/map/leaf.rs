//! A leaf: where the blocks of 1 MiB of address space are.

use crate::codec::{DecodeError, Reader, put_varint};
use api_types::ChunkId;
use api_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX};

/// Blocks under one leaf.
pub(crate) const LEAF_BLOCKS: u32 = 256;
/// What a leaf takes in memory, for budgets.
pub(crate) const LEAF_BYTES: u64 = size_of::<Leaf>() as u64;
const VERSION: u8 = 1;
/// Units, and so blocks, start at multiples of this.
const OFFSET_STEP: u32 = 512;

/// Where a block is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// In which chunk. Zero in a leaf: nowhere, reads as zeros.
    pub(crate) chunk: ChunkId,
    /// Where in the chunk the block starts.
    pub(crate) offset: u32,
    /// CRC-32C of the block.
    pub(crate) crc: u32,
}

const NOWHERE: Location = Location { chunk: ChunkId(0), offset: 0, crc: 0 };

impl Location {
    /// The same place: the checksum follows from it.
    pub(crate) fn same_place(&self, other: &Location) -> bool {
        self.chunk == other.chunk && self.offset == other.offset
    }

    /// `other` is the block that follows in the same chunk.
    fn joins(&self, other: &Location) -> bool {
        self.chunk == other.chunk && self.offset.checked_add(BLOCK_BYTES) == Some(other.offset)
    }
}

/// Sixteen bytes for each of its blocks. Plain on purpose: a random write is one store, and copying a leaf is copying
/// 4 KiB. Runs exist on disk only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    blocks: [Location; LEAF_BLOCKS as usize],
}

impl Leaf {
    pub(crate) fn empty() -> Self {
        Leaf { blocks: [NOWHERE; LEAF_BLOCKS as usize] }
    }

    pub(crate) fn get(&self, block: u32) -> Option<Location> {
        let location = self.blocks[block as usize];
        (location.chunk.0 != 0).then_some(location)
    }

    /// Returns where the block was.
    pub(crate) fn set(&mut self, block: u32, location: Option<Location>) -> Option<Location> {
        let old = std::mem::replace(&mut self.blocks[block as usize], location.unwrap_or(NOWHERE));
        (old.chunk.0 != 0).then_some(old)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.iter().all(|location| location.chunk.0 == 0)
    }

    /// Runs of blocks that follow each other in one chunk: first block, number of blocks.
    fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for block in 0..LEAF_BLOCKS {
            let location = self.blocks[block as usize];
            if location.chunk.0 == 0 {
                continue;
            }
            match runs.last_mut() {
                Some((first, count)) if *first + *count == block && self.blocks[block as usize - 1].joins(&location) => {
                    *count += 1
                }
                _ => runs.push((block, 1)),
            }
        }
        runs
    }

    /// The bytes of `docs/format.md`, "Leaf".
    pub(crate) fn encode(&self) -> Vec<u8> {
        let runs = self.runs();
        let mut chunks: Vec<u64> = runs.iter().map(|(first, _)| self.blocks[*first as usize].chunk.0).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut out = vec![VERSION];
        put_varint(&mut out, chunks.len() as u64);
        for chunk in &chunks {
            out.extend_from_slice(&chunk.to_le_bytes());
        }
        put_varint(&mut out, runs.len() as u64);
        for (first, count) in &runs {
            let location = self.blocks[*first as usize];
            let place = chunks.partition_point(|chunk| *chunk < location.chunk.0);
            out.push(*first as u8);
            out.push((*count - 1) as u8);
            put_varint(&mut out, place as u64);
            put_varint(&mut out, u64::from(location.offset / OFFSET_STEP));
        }
        for location in self.blocks.iter().filter(|location| location.chunk.0 != 0) {
            out.extend_from_slice(&location.crc.to_le_bytes());
        }
        out
    }

    /// Reads the bytes back; every run is checked.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Leaf, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("leaf version")? != VERSION {
            return Err(DecodeError("leaf version"));
        }
        let mut chunks = Vec::new();
        for _ in 0..reader.varint_max("leaf chunks", u64::from(LEAF_BLOCKS))? {
            let chunk = reader.u64("leaf chunk")?;
            if chunk == 0 {
                return Err(DecodeError("leaf chunk"));
            }
            chunks.push(ChunkId(chunk));
        }
        let mut leaf = Leaf::empty();
        let mut next = 0;
        for _ in 0..reader.varint_max("leaf runs", u64::from(LEAF_BLOCKS))? {
            let first = u32::from(reader.u8("run start")?);
            let count = u32::from(reader.u8("run length")?) + 1;
            let place = reader.varint_max("run chunk", u64::from(LEAF_BLOCKS))?;
            let chunk = *chunks.get(place as usize).ok_or(DecodeError("run chunk"))?;
            let offset = reader.varint_max("run offset", u64::from(CHUNK_BYTES_MAX / OFFSET_STEP))? as u32 * OFFSET_STEP;
            if first < next || first + count > LEAF_BLOCKS {
                return Err(DecodeError("run start"));
            }
            next = first + count;
            for step in 0..count {
                let offset = offset.checked_add(step * BLOCK_BYTES).ok_or(DecodeError("run offset"))?;
                leaf.blocks[(first + step) as usize] = Location { chunk, offset, crc: 0 };
            }
        }
        for location in leaf.blocks.iter_mut().filter(|location| location.chunk.0 != 0) {
            location.crc = reader.u32("block crc")?;
        }
        reader.end()?;
        Ok(leaf)
    }
}
