//! Streams and chunks: grants, seals, deletions, and who may ask for them.

use crate::command::{Event, Reply};
use crate::nodes::Doomed;
use crate::placement::{Reserve, Wish};
use crate::state::State;
use api_types::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, EXTENT_BYTES};
use api_types::master::{ChunkRecord, ChunkState, Copy, Error, Grant, Role, SealChunk, StreamRecord};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, DeviceId, Epoch, NodeName, OwnerId, Rule, StreamId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most chunks one grant gives.
const GRANT_COUNT_MAX: u32 = 16;
/// The most chunks a stream may have.
const STREAM_CHUNKS_MAX: usize = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stream {
    pub(crate) pool: String,
    /// The volume, or the stream itself.
    pub(crate) owner: OwnerId,
    /// Of a stream that owns itself; a volume keeps its own.
    pub(crate) epoch: Epoch,
    pub(crate) next_index: u64,
    pub(crate) chunks: BTreeMap<u64, ChunkId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Chunk {
    pub(crate) record: ChunkRecord,
    /// Streams and frozen images that need it; the last one that lets go deletes it.
    pub(crate) references: u32,
    /// Its place among the chunks to be repaired, when it is one.
    pub(crate) danger: Option<u8>,
    /// Repairs that failed in a row, and until when to leave it alone.
    pub(crate) failures: u8,
    pub(crate) retry_at_ms: u64,
}

impl Chunk {
    /// Bytes that one copy takes on its device.
    pub(crate) fn bytes(&self) -> u64 {
        match self.record.state {
            ChunkState::Granted => u64::from(self.record.shape.capacity),
            ChunkState::Sealed { length } => u64::from(length).next_multiple_of(u64::from(EXTENT_BYTES)),
        }
    }

    pub(crate) fn copy_on(&self, device: DeviceId) -> Option<&Copy> {
        self.record.copies.iter().find(|copy| copy.device == device)
    }
}

pub(crate) fn no_chunk(chunk: ChunkId) -> Error {
    Error::NotFound { what: format!("chunk {chunk}") }
}

pub(crate) fn no_stream(stream: StreamId) -> Error {
    Error::NotFound { what: format!("stream {stream}") }
}

/// An epoch must be the newest one: below it is a writer of the past, above it a mistake.
pub(crate) fn check_epoch(newest: Epoch, given: Epoch) -> Result<(), Error> {
    if !Rule::MastersFence.is_kept() {
        return Ok(());
    }
    match given.cmp(&newest) {
        std::cmp::Ordering::Less => Err(Error::Fenced { epoch: newest }),
        std::cmp::Ordering::Equal if given.0 > 0 => Ok(()),
        _ => Err(Error::Invalid(format!("epoch: {given} was never given out, the newest is {newest}"))),
    }
}

impl State {
    pub(crate) fn new_stream(&mut self, pool: &str, owner: Option<VolumeId>) -> StreamId {
        let stream = StreamId(self.draw_id());
        let owner = owner.map_or(OwnerId(stream.0), OwnerId::from);
        let record = Stream { pool: pool.to_owned(), owner, epoch: Epoch(0), next_index: 0, chunks: BTreeMap::new() };
        self.streams.insert(stream, record);
        stream
    }

    /// The newest epoch of a fencing group.
    fn epoch_of(&self, owner: OwnerId) -> Option<Epoch> {
        match self.volumes.get(&VolumeId(owner.0)) {
            Some(volume) => Some(volume.epoch),
            None => self.streams.get(&StreamId(owner.0)).map(|stream| stream.epoch),
        }
    }

    fn writer_node(&self, owner: OwnerId) -> Option<NodeName> {
        self.volumes.get(&VolumeId(owner.0)).and_then(|volume| volume.attached.clone())
    }

    fn check_owner(&self, stream: &Stream, epoch: Epoch) -> Result<(), Error> {
        check_epoch(self.epoch_of(stream.owner).unwrap_or_default(), epoch)
    }

    pub(crate) fn grant(&mut self, grant: &Grant, seed: u64) -> Result<Reply, Error> {
        let stream = self.streams.get(&grant.stream).ok_or_else(|| no_stream(grant.stream))?;
        self.check_owner(stream, grant.epoch)?;
        if grant.count == 0 || grant.count > GRANT_COUNT_MAX {
            return Err(Error::Invalid(format!("count: {} is not between 1 and {GRANT_COUNT_MAX}", grant.count)));
        }
        let whole_extents = grant.capacity.is_multiple_of(EXTENT_BYTES);
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&grant.capacity) || !whole_extents {
            return Err(Error::Invalid(format!(
                "capacity: {} must be a multiple of {EXTENT_BYTES} between {CHUNK_BYTES_MIN} and {CHUNK_BYTES_MAX}",
                grant.capacity
            )));
        }
        if stream.chunks.len() + grant.count as usize > STREAM_CHUNKS_MAX {
            return Err(Error::NoSpace(format!("stream {} has {} chunks already", grant.stream, stream.chunks.len())));
        }
        let mut granted = Vec::new();
        for nth in 0..grant.count {
            match self.grant_one(grant, seed.wrapping_add(u64::from(nth))) {
                Ok(record) => granted.push(record),
                Err(error) if granted.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Reply::Chunks(granted))
    }

    fn grant_one(&mut self, grant: &Grant, seed: u64) -> Result<ChunkRecord, Error> {
        let stream = self.streams.get(&grant.stream).ok_or_else(|| no_stream(grant.stream))?;
        let (owner, index) = (stream.owner, stream.next_index);
        let (_, pool) = self.pool_named(&stream.pool)?;
        let near = self.writer_node(owner);
        let wish = Wish {
            failure_domain: &pool.failure_domain,
            taken: BTreeSet::new(),
            without: BTreeSet::new(),
            avoid: &grant.avoid,
            near: near.as_ref(),
            bytes: u64::from(grant.capacity),
            reserve: Reserve::of(grant.class),
            seed,
        };
        let (most, least) = (usize::from(pool.replication.max_copy), usize::from(pool.replication.min_copy));
        let devices = self.place(&wish, most, least)?;
        let alignment =
            devices.iter().filter_map(|id| self.devices.get(id)).map(|device| device.alignment).max().unwrap_or(Alignment::B4096);
        let chunk = ChunkId(self.draw_id());
        let shape = ChunkShape { chunk, owner, epoch: grant.epoch, capacity: grant.capacity, alignment, class: grant.class };
        let copies = devices.iter().map(|device| Copy { device: *device, role: Role::Replica, whole: false }).collect();
        let record = ChunkRecord { shape, stream: grant.stream, index, state: ChunkState::Granted, copies };
        for id in devices {
            if let Some(device) = self.devices.get_mut(&id) {
                device.used_bytes += u64::from(grant.capacity);
                device.open += 1;
                device.chunks.insert(chunk);
            }
        }
        if let Some(stream) = self.streams.get_mut(&grant.stream) {
            stream.next_index = index + 1;
            stream.chunks.insert(index, chunk);
        }
        let entry = Chunk { record: record.clone(), references: 1, danger: None, failures: 0, retry_at_ms: 0 };
        self.chunks.insert(chunk, entry);
        self.open_chunks += 1;
        Ok(record)
    }

    pub(crate) fn seal(&mut self, seal: &SealChunk, events: &mut Vec<Event>) -> Result<Reply, Error> {
        let chunk = self.chunks.get(&seal.chunk).ok_or_else(|| no_chunk(seal.chunk))?;
        let shape = chunk.record.shape;
        check_epoch(self.epoch_of(shape.owner).unwrap_or_default(), seal.epoch)?;
        if let ChunkState::Sealed { length } = chunk.record.state {
            return Ok(Reply::Length(length));
        }
        if seal.length > shape.capacity || !seal.length.is_multiple_of(shape.alignment.bytes()) {
            return Err(Error::Invalid(format!(
                "length: {} must be a multiple of {} and at most the capacity {}",
                seal.length,
                shape.alignment.bytes(),
                shape.capacity
            )));
        }
        if seal.length > 0 && !chunk.record.copies.iter().any(|copy| seal.whole.contains(&copy.device)) {
            return Err(Error::Invalid("whole: names no device that holds a copy".into()));
        }
        let before = chunk.bytes();
        let Some(chunk) = self.chunks.get_mut(&seal.chunk) else { return Err(no_chunk(seal.chunk)) };
        chunk.record.state = ChunkState::Sealed { length: seal.length };
        for copy in &mut chunk.record.copies {
            copy.whole = seal.length == 0 || seal.whole.contains(&copy.device);
        }
        let after = chunk.bytes();
        for copy in &chunk.record.copies {
            if let Some(device) = self.devices.get_mut(&copy.device) {
                device.used_bytes = device.used_bytes.saturating_sub(before) + after;
                device.open = device.open.saturating_sub(1);
            }
        }
        self.open_chunks = self.open_chunks.saturating_sub(1);
        events.push(Event::ChunkSealed(seal.chunk, seal.length));
        self.refresh(seal.chunk, events);
        Ok(Reply::Length(seal.length))
    }

    pub(crate) fn delete_chunks(&mut self, stream: StreamId, epoch: Epoch, chunks: &[ChunkId]) -> Result<Reply, Error> {
        let record = self.streams.get(&stream).ok_or_else(|| no_stream(stream))?;
        self.check_owner(record, epoch)?;
        let root = self.volumes.get(&VolumeId(record.owner.0)).and_then(|volume| volume.root);
        for id in chunks {
            if self.chunks.get(id).is_some_and(|chunk| chunk.record.stream != stream) {
                return Err(Error::Invalid(format!("chunks: {id} belongs to another stream than {stream}")));
            }
            if root.is_some_and(|root| root.chunk == *id) {
                return Err(Error::Conflict(format!(
                    "chunk {id} holds the volume's newest checkpoint: record a newer one first"
                )));
            }
        }
        for id in chunks {
            self.release_chunk(*id);
        }
        Ok(Reply::Done)
    }

    /// One who needed the chunk doesn't any more. The last one's going deletes it.
    pub(crate) fn release_chunk(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        if let Some(stream) = self.streams.get_mut(&chunk.record.stream) {
            stream.chunks.remove(&chunk.record.index);
        }
        chunk.references = chunk.references.saturating_sub(1);
        if chunk.references > 0 {
            return;
        }
        self.unlist_short(id);
        let Some(chunk) = self.chunks.remove(&id) else { return };
        let (bytes, open) = (chunk.bytes(), chunk.record.state == ChunkState::Granted);
        self.open_chunks -= u64::from(open && self.open_chunks > 0);
        for copy in &chunk.record.copies {
            self.doom_copy(id, copy.device, bytes, open);
        }
    }

    /// A copy goes on its device's list of things to delete, wherever the device is now.
    pub(crate) fn doom_copy(&mut self, chunk: ChunkId, device: DeviceId, bytes: u64, open: bool) {
        let order = self.draw_order();
        let Some(device) = self.devices.get_mut(&device) else { return };
        device.chunks.remove(&chunk);
        device.open -= u32::from(open && device.open > 0);
        device.repairs.retain(|_, repaired| *repaired != chunk);
        device.deletes.insert(order, Doomed { chunk, bytes });
    }

    /// Drops a stream with all its chunks.
    pub(crate) fn remove_stream(&mut self, stream: StreamId) {
        let chunks: Vec<ChunkId> =
            self.streams.get(&stream).map(|record| record.chunks.values().copied().collect()).unwrap_or_default();
        for chunk in chunks {
            self.release_chunk(chunk);
        }
        self.streams.remove(&stream);
    }

    /// All chunks of a stream, in its order.
    pub fn stream(&self, stream: StreamId) -> Result<StreamRecord, Error> {
        let record = self.streams.get(&stream).ok_or_else(|| no_stream(stream))?;
        Ok(StreamRecord { stream, chunks: self.locate(record.chunks.values().copied()) })
    }

    /// The chunks with these ids; those that don't exist are missing from the answer.
    pub fn locate(&self, chunks: impl IntoIterator<Item = ChunkId>) -> Vec<ChunkRecord> {
        chunks.into_iter().filter_map(|id| self.chunks.get(&id)).map(|chunk| chunk.record.clone()).collect()
    }
}
