//! The trailers of a volume's units: which blocks a unit holds, in which order it was written.
//!
//! Blocks stand back to back at the unit's start, in the order of the records. The byte tables are in `docs/format.md`,
//! "Trailer".

use crate::codec::{DecodeError, Reader};
use crate::map::Location;
use api_types::ChunkId;
use api_types::limits::{BLOCK_BYTES, UNIT_DATA_BYTES_MAX, UNIT_TRAILER_BYTES_MAX};

const VERSION: u8 = 1;
const HEAD_BYTES: u32 = 16;
const MOVE_BYTES: u32 = 24;
/// Most blocks in one unit.
pub(crate) const UNIT_BLOCKS_MAX: u32 = UNIT_DATA_BYTES_MAX / BLOCK_BYTES;
/// Most records in one unit.
pub(crate) const RECORDS_MAX: usize = 512;
/// Block addresses end here: 2^56 bytes.
pub(crate) const BLOCK_MAX: u64 = 1 << 44;

const _: () = assert!(HEAD_BYTES + RECORDS_MAX as u32 * MOVE_BYTES + UNIT_BLOCKS_MAX * 4 <= UNIT_TRAILER_BYTES_MAX);

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Hot = 1,
    Cold = 2,
    Index = 3,
}

/// One write or one forgotten range in a hot unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WriteRecord {
    /// First block.
    pub(crate) first: u64,
    /// How many.
    pub(crate) count: u32,
    /// The CRC-32C of each block; `None`: no data, the blocks read as zeros.
    pub(crate) crcs: Option<Vec<u32>>,
}

/// Blocks that reclaim moved, in a cold unit: the move counts only where the map still points to the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MoveRecord {
    /// First block.
    pub(crate) first: u64,
    /// Chunk they came from.
    pub(crate) source_chunk: ChunkId,
    /// Where the first of them stood there; the others follow it.
    pub(crate) source_offset: u32,
    /// The CRC-32C of each block.
    pub(crate) crcs: Vec<u32>,
}

/// What a unit of a volume says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trailer {
    /// User writes.
    Hot { sequence: u64, records: Vec<WriteRecord> },
    /// Moves.
    Cold { sequence: u64, records: Vec<MoveRecord> },
    /// Nodes of the map, or a root: found by pointers, never by replay.
    Index { sequence: u64 },
}

fn head(kind: Kind, records: usize, blocks: u32, sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.push(VERSION);
    out.push(kind as u8);
    out.extend_from_slice(&(records as u16).to_le_bytes());
    out.extend_from_slice(&blocks.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out
}

impl Trailer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Trailer::Hot { sequence, records } => {
                let blocks = records.iter().filter_map(|record| record.crcs.as_ref().map(|crcs| crcs.len() as u32)).sum();
                let mut out = head(Kind::Hot, records.len(), blocks, *sequence);
                for record in records {
                    out.extend_from_slice(&record.first.to_le_bytes());
                    out.extend_from_slice(&record.count.to_le_bytes());
                    out.extend_from_slice(&u32::from(record.crcs.is_none()).to_le_bytes());
                }
                for crc in records.iter().filter_map(|record| record.crcs.as_ref()).flatten() {
                    out.extend_from_slice(&crc.to_le_bytes());
                }
                out
            }
            Trailer::Cold { sequence, records } => {
                let blocks = records.iter().map(|record| record.crcs.len() as u32).sum();
                let mut out = head(Kind::Cold, records.len(), blocks, *sequence);
                for record in records {
                    out.extend_from_slice(&record.first.to_le_bytes());
                    out.extend_from_slice(&(record.crcs.len() as u32).to_le_bytes());
                    out.extend_from_slice(&record.source_offset.to_le_bytes());
                    out.extend_from_slice(&record.source_chunk.0.to_le_bytes());
                }
                for crc in records.iter().flat_map(|record| &record.crcs) {
                    out.extend_from_slice(&crc.to_le_bytes());
                }
                out
            }
            Trailer::Index { sequence } => head(Kind::Index, 0, 0, *sequence),
        }
    }

    /// Reads a trailer back. `data_bytes` is the unit's data length, which the records must account for.
    pub(crate) fn decode(bytes: &[u8], data_bytes: u32) -> Result<Trailer, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("trailer version")? != VERSION {
            return Err(DecodeError("trailer version"));
        }
        let kind = reader.u8("trailer kind")?;
        let count = usize::from(reader.u16("record count")?);
        let blocks = reader.u32("block count")?;
        let sequence = reader.u64("sequence")?;
        if kind == Kind::Index as u8 {
            return Ok(Trailer::Index { sequence });
        }
        if count > RECORDS_MAX {
            return Err(DecodeError("record count"));
        }
        if blocks > UNIT_BLOCKS_MAX || blocks * BLOCK_BYTES != data_bytes {
            return Err(DecodeError("block count"));
        }
        let trailer = if kind == Kind::Hot as u8 {
            Trailer::Hot { sequence, records: take_writes(&mut reader, count, blocks)? }
        } else if kind == Kind::Cold as u8 {
            Trailer::Cold { sequence, records: take_moves(&mut reader, count, blocks)? }
        } else {
            return Err(DecodeError("trailer kind"));
        };
        reader.end()?;
        Ok(trailer)
    }
}

fn take_crcs(reader: &mut Reader<'_>, count: u32) -> Result<Vec<u32>, DecodeError> {
    (0..count).map(|_| reader.u32("block crc")).collect()
}

fn check_range(first: u64, count: u32) -> Result<(), DecodeError> {
    let fits = count > 0 && first < BLOCK_MAX && first + u64::from(count) <= BLOCK_MAX;
    if fits { Ok(()) } else { Err(DecodeError("block address")) }
}

fn take_writes(reader: &mut Reader<'_>, count: usize, blocks: u32) -> Result<Vec<WriteRecord>, DecodeError> {
    let mut records = Vec::with_capacity(count);
    let mut left = blocks;
    for _ in 0..count {
        let (first, count) = (reader.u64("block address")?, reader.u32("record length")?);
        check_range(first, count)?;
        let crcs = match reader.u32("record flags")? {
            0 => {
                left = left.checked_sub(count).ok_or(DecodeError("record length"))?;
                Some(Vec::new())
            }
            1 => None,
            _ => return Err(DecodeError("record flags")),
        };
        records.push(WriteRecord { first, count, crcs });
    }
    if left != 0 {
        return Err(DecodeError("block count"));
    }
    for record in &mut records {
        if record.crcs.is_some() {
            record.crcs = Some(take_crcs(reader, record.count)?);
        }
    }
    Ok(records)
}

fn take_moves(reader: &mut Reader<'_>, count: usize, blocks: u32) -> Result<Vec<MoveRecord>, DecodeError> {
    let mut heads = Vec::with_capacity(count);
    let mut left = blocks;
    for _ in 0..count {
        let (first, count) = (reader.u64("block address")?, reader.u32("record length")?);
        check_range(first, count)?;
        left = left.checked_sub(count).ok_or(DecodeError("record length"))?;
        let (source_offset, source_chunk) = (reader.u32("source offset")?, ChunkId(reader.u64("source chunk")?));
        if source_offset.checked_add(count * BLOCK_BYTES).is_none() || source_chunk.0 == 0 {
            return Err(DecodeError("source"));
        }
        heads.push((first, count, source_chunk, source_offset));
    }
    if left != 0 {
        return Err(DecodeError("block count"));
    }
    heads
        .into_iter()
        .map(|(first, count, source_chunk, source_offset)| {
            Ok(MoveRecord { first, source_chunk, source_offset, crcs: take_crcs(reader, count)? })
        })
        .collect()
}

/// What one record of a hot unit does to the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The block is there now.
    Set(u64, Location),
    /// So many blocks from the first on read as zeros.
    Clear(u64, u64),
}

/// The changes of a hot unit whose data starts at `offset`, in the order in which they count.
pub(crate) fn walk_writes(records: &[WriteRecord], chunk: ChunkId, offset: u32, mut each: impl FnMut(Change)) {
    let mut at = offset;
    for record in records {
        let Some(crcs) = &record.crcs else {
            each(Change::Clear(record.first, u64::from(record.count)));
            continue;
        };
        for (step, crc) in crcs.iter().enumerate() {
            each(Change::Set(record.first + step as u64, Location { chunk, offset: at, crc: *crc }));
            at += BLOCK_BYTES;
        }
    }
}

/// Every moved block of a cold unit: block, where it was, where it is.
pub(crate) fn walk_moves(records: &[MoveRecord], chunk: ChunkId, offset: u32) -> Vec<(u64, Location, Location)> {
    let mut at = offset;
    let mut moves = Vec::new();
    for record in records {
        for (step, crc) in record.crcs.iter().enumerate() {
            let from =
                Location { chunk: record.source_chunk, offset: record.source_offset + step as u32 * BLOCK_BYTES, crc: *crc };
            moves.push((record.first + step as u64, from, Location { chunk, offset: at, crc: *crc }));
            at += BLOCK_BYTES;
        }
    }
    moves
}

#[cfg(test)]
mod tests;
