//! The store as checkpoint and journal tell it. The running store keeps one up to date, record by record in journal
//! order, so that a checkpoint is exactly what replaying would give, and needs no pause.

use crate::bytes_io::{Malformed, Reader, put_shape, put_u32, put_u64};
use crate::extent::{Run, Runs};
use crate::record::{End, Record, put_run, take_run};
use api_types::unit::ChunkShape;
use api_types::{ChunkId, Epoch, OwnerId};
use std::collections::{BTreeMap, BTreeSet};

/// A chunk as the journal knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) shape: ChunkShape,
    pub(crate) end: End,
    /// Bytes that are known to be whole; an open chunk may have more.
    pub(crate) length: u32,
    pub(crate) runs: Runs,
}

/// A record that can't follow what is there: the journal or the checkpoint is damaged in a way that checksums don't see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {record:?} contradicts what is known: {why}")]
pub(crate) struct Contradiction {
    record: Record,
    why: &'static str,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Image {
    pub(crate) chunks: BTreeMap<ChunkId, Entry>,
    pub(crate) floors: BTreeMap<OwnerId, Epoch>,
    pub(crate) reserved: BTreeSet<u32>,
    pub(crate) restoring: BTreeMap<ChunkId, Vec<Run>>,
}

impl Image {
    /// Replays one record.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<(), Contradiction> {
        let fail = |why| Err(Contradiction { record: record.clone(), why });
        match record {
            Record::Reserve { extent } => {
                if !self.reserved.insert(*extent) {
                    return fail("extent is reserved already");
                }
            }
            Record::Create { shape, extent, length } => {
                self.reserved.remove(extent);
                let mut runs = Runs::default();
                runs.push(Run { start: *extent, count: 1 });
                let entry = Entry { shape: *shape, end: End::Open, length: *length, runs };
                if self.chunks.insert(shape.chunk, entry).is_some() {
                    return fail("chunk is here already");
                }
            }
            Record::Extend { chunk, run } => match self.chunks.get_mut(chunk) {
                Some(entry) => entry.runs.push(*run),
                None => return fail("chunk is unknown"),
            },
            Record::Progress { chunk, length } => match self.chunks.get_mut(chunk) {
                Some(entry) => entry.length = *length,
                None => return fail("chunk is unknown"),
            },
            Record::Seal { chunk, length, end } => match self.chunks.get_mut(chunk) {
                Some(entry) => {
                    entry.length = *length;
                    entry.end = *end;
                    entry.runs.shrink_to(*length);
                }
                None => return fail("chunk is unknown"),
            },
            Record::Delete { chunk } => {
                if self.chunks.remove(chunk).is_none() {
                    return fail("chunk is unknown");
                }
            }
            Record::Floor { owner, epoch } => {
                self.floors.insert(*owner, *epoch);
            }
            Record::RestoreRun { chunk, run } => self.restoring.entry(*chunk).or_default().push(*run),
            Record::Restored { shape, length } => {
                let Some(list) = self.restoring.remove(&shape.chunk) else { return fail("no restore was begun") };
                let mut runs = Runs::default();
                list.into_iter().for_each(|run| runs.push(run));
                self.chunks.insert(shape.chunk, Entry { shape: *shape, end: End::Final, length: *length, runs });
            }
            Record::RestoreDrop { chunk } => {
                self.restoring.remove(chunk);
            }
        }
        Ok(())
    }

    /// All runs that something holds.
    pub(crate) fn held(&self) -> Vec<Run> {
        let chunks = self.chunks.values().flat_map(|entry| entry.runs.as_slice().iter().copied());
        let reserved = self.reserved.iter().map(|extent| Run { start: *extent, count: 1 });
        let restoring = self.restoring.values().flatten().copied();
        chunks.chain(reserved).chain(restoring).collect()
    }

    /// The body of a checkpoint.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * (self.chunks.len() + 1));
        put_len(&mut out, self.chunks.len());
        for entry in self.chunks.values() {
            put_shape(&mut out, &entry.shape);
            put_u32(&mut out, entry.length);
            out.push(entry.end as u8);
            put_runs(&mut out, entry.runs.as_slice());
        }
        put_len(&mut out, self.floors.len());
        for (owner, epoch) in &self.floors {
            put_u64(&mut out, owner.0);
            put_u64(&mut out, epoch.0);
        }
        put_len(&mut out, self.reserved.len());
        self.reserved.iter().for_each(|extent| put_u32(&mut out, *extent));
        put_len(&mut out, self.restoring.len());
        for (chunk, runs) in &self.restoring {
            put_u64(&mut out, chunk.0);
            put_runs(&mut out, runs);
        }
        out
    }

    /// Reads the body of a checkpoint.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Image, Malformed> {
        let mut reader = Reader(bytes);
        let mut image = Image::default();
        for _ in 0..reader.u32("chunks")? {
            let shape = reader.shape()?;
            let length = reader.u32("length")?;
            let end = End::from_u8(reader.u8("end")?)?;
            let mut runs = Runs::default();
            take_runs(&mut reader)?.into_iter().for_each(|run| runs.push(run));
            if u64::from(length) > runs.bytes() {
                return Err(Malformed("length"));
            }
            image.chunks.insert(shape.chunk, Entry { shape, end, length, runs });
        }
        for _ in 0..reader.u32("floors")? {
            image.floors.insert(OwnerId(reader.u64("owner")?), Epoch(reader.u64("epoch")?));
        }
        for _ in 0..reader.u32("reserved")? {
            image.reserved.insert(reader.u32("extent")?);
        }
        for _ in 0..reader.u32("restoring")? {
            image.restoring.insert(reader.chunk()?, take_runs(&mut reader)?);
        }
        if reader.0.is_empty() { Ok(image) } else { Err(Malformed("end of the checkpoint")) }
    }
}

fn put_len(out: &mut Vec<u8>, length: usize) {
    put_u32(out, u32::try_from(length).unwrap_or(u32::MAX));
}

fn put_runs(out: &mut Vec<u8>, runs: &[Run]) {
    put_len(out, runs.len());
    runs.iter().for_each(|run| put_run(out, *run));
}

fn take_runs(reader: &mut Reader<'_>) -> Result<Vec<Run>, Malformed> {
    let count = reader.u32("runs")?;
    let mut runs = Vec::new();
    let mut extents = 0u32;
    for _ in 0..count {
        let run = take_run(reader)?;
        extents = extents.checked_add(run.count).ok_or(Malformed("run count"))?;
        runs.push(run);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
