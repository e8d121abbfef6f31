//! What the journal says: one record per change that footers can't tell.

use crate::bytes_io::{Malformed, Reader, put_shape, put_u32, put_u64};
use crate::extent::Run;
use api_types::unit::ChunkShape;
use api_types::{ChunkId, Epoch, OwnerId};

/// How final the length of a chunk is. The number is the one on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum End {
    /// It takes appends; after a restart its end is searched for.
    Open = 0,
    /// It takes none. A seal at a given length may still cut it.
    Closed = 1,
    /// Cut at the length that was given: final.
    Final = 2,
}

impl End {
    pub(crate) fn from_u8(number: u8) -> Result<End, Malformed> {
        match number {
            0 => Ok(End::Open),
            1 => Ok(End::Closed),
            2 => Ok(End::Final),
            _ => Err(Malformed("end")),
        }
    }
}

/// One change. Replayed in order onto what a checkpoint holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    /// The extent is kept for the first unit of a chunk that will name itself.
    Reserve { extent: u32 },
    /// The chunk lives, and starts in this extent.
    Create { shape: ChunkShape, extent: u32, length: u32 },
    /// The chunk goes on in this run.
    Extend { chunk: ChunkId, run: Run },
    /// So much of an open chunk is known to be whole: no need to search before.
    Progress { chunk: ChunkId, length: u32 },
    /// The chunk takes no appends any more and is so long.
    Seal { chunk: ChunkId, length: u32, end: End },
    /// The chunk is gone.
    Delete { chunk: ChunkId },
    /// Nothing of an older epoch is taken from this owner.
    Floor { owner: OwnerId, epoch: Epoch },
    /// A restore of this chunk writes to this run.
    RestoreRun { chunk: ChunkId, run: Run },
    /// The restore is whole: its runs are the chunk now, in place of any that was here.
    Restored { shape: ChunkShape, length: u32 },
    /// The restore was given up: its runs are free.
    RestoreDrop { chunk: ChunkId },
}

/// No record is longer.
pub(crate) const RECORD_BYTES_MAX: usize = 40;

impl Record {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Reserve { extent } => {
                out.push(1);
                put_u32(out, *extent);
            }
            Record::Create { shape, extent, length } => {
                out.push(2);
                put_shape(out, shape);
                put_u32(out, *extent);
                put_u32(out, *length);
            }
            Record::Extend { chunk, run } => {
                out.push(3);
                put_chunk_run(out, *chunk, *run);
            }
            Record::Progress { chunk, length } => {
                out.push(4);
                put_u64(out, chunk.0);
                put_u32(out, *length);
            }
            Record::Seal { chunk, length, end } => {
                out.push(5);
                put_u64(out, chunk.0);
                put_u32(out, *length);
                out.push(*end as u8);
            }
            Record::Delete { chunk } => {
                out.push(6);
                put_u64(out, chunk.0);
            }
            Record::Floor { owner, epoch } => {
                out.push(7);
                put_u64(out, owner.0);
                put_u64(out, epoch.0);
            }
            Record::RestoreRun { chunk, run } => {
                out.push(8);
                put_chunk_run(out, *chunk, *run);
            }
            Record::Restored { shape, length } => {
                out.push(9);
                put_shape(out, shape);
                put_u32(out, *length);
            }
            Record::RestoreDrop { chunk } => {
                out.push(10);
                put_u64(out, chunk.0);
            }
        }
    }

    /// Takes one record off the front.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Record, Malformed> {
        Ok(match reader.u8("record kind")? {
            1 => Record::Reserve { extent: reader.u32("extent")? },
            2 => Record::Create { shape: reader.shape()?, extent: reader.u32("extent")?, length: reader.u32("length")? },
            3 => Record::Extend { chunk: reader.chunk()?, run: take_run(reader)? },
            4 => Record::Progress { chunk: reader.chunk()?, length: reader.u32("length")? },
            5 => Record::Seal { chunk: reader.chunk()?, length: reader.u32("length")?, end: End::from_u8(reader.u8("end")?)? },
            6 => Record::Delete { chunk: reader.chunk()? },
            7 => Record::Floor { owner: OwnerId(reader.u64("owner")?), epoch: Epoch(reader.u64("epoch")?) },
            8 => Record::RestoreRun { chunk: reader.chunk()?, run: take_run(reader)? },
            9 => Record::Restored { shape: reader.shape()?, length: reader.u32("length")? },
            10 => Record::RestoreDrop { chunk: reader.chunk()? },
            _ => return Err(Malformed("record kind")),
        })
    }
}

fn put_chunk_run(out: &mut Vec<u8>, chunk: ChunkId, run: Run) {
    put_u64(out, chunk.0);
    put_run(out, run);
}

pub(crate) fn put_run(out: &mut Vec<u8>, run: Run) {
    put_u32(out, run.start);
    put_u32(out, run.count);
}

pub(crate) fn take_run(reader: &mut Reader<'_>) -> Result<Run, Malformed> {
    let run = Run { start: reader.u32("run start")?, count: reader.u32("run count")? };
    if run.count == 0 || run.start.checked_add(run.count).is_none() {
        return Err(Malformed("run count"));
    }
    Ok(run)
}

#[cfg(test)]
pub(crate) mod tests;
