//! Checkpoints: the map as it was at one place of the logs, written to the index stream.
//!
//! ```text
//!  freeze (map, places of hot and cold, dead chunks) ─▶ leaves ─▶ branches ─▶ body ─▶ root ─▶ masters' root pointer
//!                                                                                              │ durable
//!                        delete the dead chunks ◀── take over the new pointers ◀───────────────┘
//! ```
//! Until the masters have the new pointer nothing that the old root needs is touched, and a failed checkpoint leaves
//! nothing behind but bytes in the index stream. A chunk is deleted only when the map of the freeze didn't refer to it,
//! the replay from the freeze on doesn't read it, and the root of that freeze is durable.

use crate::leaves::Pins;
use crate::map::{Frozen, LEAF_BYTES, NodePointer, WrittenLeaf, encode_branch};
use crate::nodes::Nodes;
use crate::record::Trailer;
use crate::root::{BODY_NODE_BYTES, Body, Log, LogState, Root};
use crate::volume::{Inner, Phase, State};
use api_types::limits::UNIT_DATA_BYTES_MAX;
use api_types::master::{ChunkRecord, ChunkState, Error as MasterError, RootPointer};
use api_types::{ChunkId, QosClass, Rule, StreamId};
use bytes::Bytes;
use client_stream::{Error as StreamError, Position};
use futures::channel::oneshot;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Tries to record a root at the masters before the checkpoint counts as failed: some minutes. Nothing is lost by
/// waiting, and a checkpoint written anew would fill the index while there are no masters to grant chunks.
const SET_ROOT_TRIES: u32 = 64;
/// The same while the volume closes.
const SET_ROOT_TRIES_CLOSING: u32 = 5;
/// The rest after a failure doubles up to this often.
const FAILURES_MAX: u32 = 6;
/// Index chunks below which their garbage doesn't matter.
const INDEX_CHUNKS_MIN: u64 = 2;
/// Most leaves that one checkpoint moves out of a mostly dead index chunk.
const REWRITE_LEAVES_MAX: usize = 4096;
/// Most chunks in one request to delete.
const DELETE_BATCH: usize = 64;

/// What is known of one chunk of the index stream.
#[derive(Clone, Copy, Debug, Default)]
struct IndexUsage {
    index: u64,
    length: u32,
    live: u64,
    sealed: bool,
}

/// The chunks of the index stream, and what the last durable root needs of them.
#[derive(Default)]
pub(crate) struct IndexChunks {
    chunks: BTreeMap<ChunkId, IndexUsage>,
    last: u64,
    sequence: u64,
    /// The root's unit and the nodes of its body.
    root: Vec<(ChunkId, u32)>,
    /// Given up by the last root, not yet deleted at the masters.
    condemned: Vec<(StreamId, ChunkId)>,
}

impl IndexChunks {
    pub(crate) fn grow(&mut self, chunk: ChunkId, index: u64, length: u32) {
        let usage = self.chunks.entry(chunk).or_default();
        usage.index = index;
        usage.length = usage.length.max(length);
        self.last = self.last.max(index);
    }

    pub(crate) fn seal(&mut self, chunk: ChunkId) {
        if let Some(usage) = self.chunks.get_mut(&chunk) {
            usage.sealed = true;
        }
    }

    pub(crate) fn refer(&mut self, chunk: ChunkId, length: u32) -> bool {
        let Some(usage) = self.chunks.get_mut(&chunk) else { return false };
        usage.live += u64::from(length);
        true
    }

    fn forget(&mut self, chunk: ChunkId, length: u32) {
        if let Some(usage) = self.chunks.get_mut(&chunk) {
            usage.live = usage.live.saturating_sub(u64::from(length));
        }
    }

    /// The root and its body are these from now on. `false`: one stands in an unknown chunk.
    pub(crate) fn set_root(&mut self, parts: Vec<(ChunkId, u32)>) -> bool {
        for (chunk, length) in std::mem::take(&mut self.root) {
            self.forget(chunk, length);
        }
        let known = parts.iter().all(|(chunk, length)| self.refer(*chunk, *length));
        self.root = parts;
        known
    }

    pub(crate) fn len(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// Sealed chunks that the root needs nothing of.
    fn dead(&self) -> Vec<ChunkId> {
        let dead = self.chunks.iter().filter(|(_, usage)| usage.sealed && usage.live == 0 && usage.index < self.last);
        dead.map(|(chunk, _)| *chunk).collect()
    }

    /// The chunks that the next checkpoint should empty, once all of them hold less than a third of what they could: those
    /// with the least in them, as much as fits one unit.
    fn victims(&self, chunk_bytes: u32) -> BTreeSet<ChunkId> {
        let live: u64 = self.chunks.values().map(|usage| usage.live).sum();
        if self.len() <= INDEX_CHUNKS_MIN || live * 3 >= self.len() * u64::from(chunk_bytes) {
            return BTreeSet::new();
        }
        let sealed = self.chunks.iter().filter(|(_, usage)| usage.sealed && usage.live > 0);
        let mut candidates: Vec<(u64, ChunkId)> = sealed.map(|(chunk, usage)| (usage.live, *chunk)).collect();
        candidates.sort_unstable();
        let mut room = u64::from(UNIT_DATA_BYTES_MAX);
        let fits = |(live, _): &(u64, ChunkId)| {
            // The first one always does.
            let fits = room == u64::from(UNIT_DATA_BYTES_MAX) || *live <= room;
            room = room.saturating_sub(*live);
            fits
        };
        candidates.into_iter().take_while(fits).map(|(_, chunk)| chunk).collect()
    }

    /// After an open, when no chunk has a writer any more: what the root needs nothing of.
    fn condemn_unused(&mut self, stream: StreamId) {
        let unused: Vec<ChunkId> = self.chunks.iter().filter(|(_, usage)| usage.live == 0).map(|(chunk, _)| *chunk).collect();
        for chunk in unused {
            self.chunks.remove(&chunk);
            self.condemned.push((stream, chunk));
        }
    }
}

/// What a checkpoint holds.
struct Snapshot {
    map: Frozen,
    hot: LogState,
    cold: LogState,
    chunks: Vec<(Log, ChunkId, u32)>,
    dead: Vec<(Log, ChunkId)>,
    log_bytes: u64,
    waiters: Vec<oneshot::Sender<bool>>,
}

/// Writes checkpoints when they are due, for as long as the volume is open.
pub(crate) async fn run(inner: Rc<Inner>) {
    inner.delete_condemned().await;
    let mut failures = 0;
    while inner.is_running() && !inner.is_done() {
        match inner.due_in() {
            Some(Duration::ZERO) => match checkpoint(&inner).await {
                Ok(()) => failures = 0,
                Err(_) => {
                    // Every try fills the index a little: rarer and rarer.
                    inner.rest_after(failures).await;
                    failures = (failures + 1).min(FAILURES_MAX);
                }
            },
            Some(wait) => inner.sleep_or_wake(wait).await,
            None => inner.wake_checkpoint.notified().await,
        }
    }
}

/// Writes one checkpoint.
///
/// # Errors
/// Whatever kept it from being durable; the last one stays.
pub(crate) async fn checkpoint(inner: &Rc<Inner>) -> Result<(), StreamError> {
    let _one = inner.checkpointing.lock().await;
    // Kept in memory until the freeze has them, or the effort to move them would be lost.
    let pins = inner.empty_index_chunks().await;
    let mut snapshot = inner.freeze();
    drop(pins);
    if !Rule::FreeAfterRoot.is_kept() {
        let dead = snapshot.dead.iter().map(|(log, chunk)| (inner.stream_of(*log), *chunk));
        inner.state.borrow_mut().index.condemned.extend(dead);
        inner.delete_condemned().await;
    }
    let result = inner.write_checkpoint(&mut snapshot).await;
    for waiter in snapshot.waiters {
        let _ = waiter.send(result.is_ok());
    }
    match &result {
        Ok(()) => inner.delete_condemned().await,
        Err(StreamError::Fenced) => inner.stop(Phase::Fenced),
        Err(_) => {}
    }
    result
}

impl Inner {
    /// Closing, and nobody waits for a checkpoint any more.
    fn is_done(&self) -> bool {
        let state = self.state.borrow();
        self.phase.get() == Phase::Closing && state.sequencer.is_idle() && state.checkpoint_waiters.is_empty()
    }

    async fn sleep_or_wake(&self, wait: Duration) {
        let sleep = self.clock.sleep(wait);
        tokio::select! {
            biased;
            () = self.wake_checkpoint.notified() => {}
            () = sleep => {}
        }
    }

    /// Rests after so many failures, though not while the volume wants to close.
    async fn rest_after(&self, failures: u32) {
        let end = self.clock.now() + self.config.checkpoint_retry * (1 << failures);
        while self.phase.get() == Phase::Open && self.clock.now() < end {
            self.sleep_or_wake(end - self.clock.now()).await;
        }
    }

    /// How long until a checkpoint is due; `None`: nothing has changed.
    fn due_in(&self) -> Option<Duration> {
        let state = self.state.borrow();
        if !state.checkpoint_waiters.is_empty()
            || state.log_bytes >= self.config.checkpoint_log_bytes
            || self.map_is_heavy(&state)
        {
            return Some(Duration::ZERO);
        }
        let since = state.dirty_since?;
        Some((since + self.config.checkpoint_every).saturating_sub(self.clock.now()))
    }

    /// Waits until what is in the map now is durable in a checkpoint; `false`: it failed.
    pub(crate) async fn checkpoint_of_now(&self) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.state.borrow_mut().checkpoint_waiters.push(sender);
        self.wake_checkpoint.notify_one();
        receiver.await.unwrap_or(false)
    }

    /// Learns from the writers which chunks they have sealed.
    pub(crate) fn harvest_sealed(&self) {
        let mut state = self.state.borrow_mut();
        for (log, tail) in [(Log::Hot, &self.hot), (Log::Cold, &self.cold)] {
            for record in tail.with(|writer| writer.take_sealed()).unwrap_or_default() {
                state.chunks.grow(log, record.shape.chunk, record.index, sealed_length(&record));
                state.chunks.seal(record.shape.chunk);
            }
        }
        for record in self.index.with(|writer| writer.take_sealed()).unwrap_or_default() {
            state.index.grow(record.shape.chunk, record.index, sealed_length(&record));
            state.index.seal(record.shape.chunk);
        }
    }

    fn freeze(&self) -> Snapshot {
        self.harvest_sealed();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let hot = LogState { sequence: state.sequencer.resolved_sequence(), ..state.hot };
        Snapshot {
            map: state.map.freeze(),
            hot,
            cold: state.cold,
            chunks: state.chunks.iter().map(|(chunk, usage)| (usage.log, chunk, usage.live)).collect(),
            dead: state.chunks.dead(state.hot.position, state.cold.position),
            log_bytes: state.log_bytes,
            waiters: std::mem::take(&mut state.checkpoint_waiters),
        }
    }

    async fn write_checkpoint(&self, snapshot: &mut Snapshot) -> Result<(), StreamError> {
        let start = self.clock.now();
        let dirty = snapshot.map.dirty_leaves();
        let mut nodes = Nodes::new(self);
        let mut places = Vec::new();
        for (_, leaf) in &dirty {
            places.push(if leaf.is_empty() { None } else { Some(nodes.put(leaf.encode()).await?) });
        }
        let written = nodes.finish().await?;
        let pointer = |place: Option<usize>| place.and_then(|place| written.get(place).copied());
        let leaves: Vec<WrittenLeaf> = dirty
            .into_iter()
            .zip(places)
            .map(|((index, leaf), place)| WrittenLeaf { index, leaf, pointer: pointer(place) })
            .collect();

        let mut nodes = Nodes::new(self);
        let mut places = Vec::new();
        for (number, pointers) in snapshot.map.dirty_branches(&leaves) {
            let place = if pointers.is_empty() { None } else { Some(nodes.put(encode_branch(&pointers)).await?) };
            places.push((number, place));
        }
        let written = nodes.finish().await?;
        let branches: Vec<(u64, Option<NodePointer>)> =
            places.into_iter().map(|(number, place)| (number, place.and_then(|place| written.get(place).copied()))).collect();

        let body = Body { chunks: std::mem::take(&mut snapshot.chunks), branches: snapshot.map.branch_pointers(&branches) };
        let mut nodes = Nodes::new(self);
        for piece in body.encode().chunks(BODY_NODE_BYTES) {
            nodes.put(piece.to_vec()).await?;
        }
        let body = nodes.finish().await?;
        let root = Root { volume: self.volume, epoch: self.epoch, hot: snapshot.hot, cold: snapshot.cold, body };
        let position = self.append_index(vec![root.encode().into()]).await?;
        self.record_root(position).await?;
        // Or every branch would be copied once more to change it.
        drop(std::mem::take(&mut snapshot.map));
        self.take_over(snapshot, leaves, &branches, &root.body, position, start);
        Ok(())
    }

    async fn record_root(&self, position: Position) -> Result<(), StreamError> {
        let root = RootPointer { chunk: position.chunk, offset: position.offset, length: position.end - position.offset };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.master.set_root(self.volume, self.epoch, root).await {
                Ok(()) => return Ok(()),
                Err(MasterError::Unavailable(_)) if tries < self.set_root_tries() => {
                    self.clock.sleep(self.config.checkpoint_retry * tries.min(10)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn set_root_tries(&self) -> u32 {
        match self.phase.get() {
            Phase::Open => SET_ROOT_TRIES,
            Phase::Closing => SET_ROOT_TRIES_CLOSING,
            Phase::Closed | Phase::Fenced => 0,
        }
    }

    /// The checkpoint is durable: its pointers count, and what only the one before needed may go.
    fn take_over(
        &self,
        snapshot: &Snapshot,
        leaves: Vec<WrittenLeaf>,
        branches: &[(u64, Option<NodePointer>)],
        body: &[NodePointer],
        root: Position,
        start: Duration,
    ) {
        let mut state = self.state.borrow_mut();
        let State { map, index, chunks, .. } = &mut *state;
        let new = leaves.iter().filter_map(|leaf| leaf.pointer).chain(branches.iter().filter_map(|(_, pointer)| *pointer));
        for pointer in new {
            index.refer(pointer.chunk, pointer.length);
        }
        for pointer in map.checkpointed(leaves, branches) {
            index.forget(pointer.chunk, pointer.length);
        }
        let mut parts: Vec<(ChunkId, u32)> = body.iter().map(|pointer| (pointer.chunk, pointer.length)).collect();
        parts.push((root.chunk, root.end - root.offset));
        index.set_root(parts);
        for (log, chunk) in &snapshot.dead {
            chunks.remove(*chunk);
            index.condemned.push((self.stream_of(*log), *chunk));
        }
        for chunk in index.dead() {
            index.chunks.remove(&chunk);
            index.condemned.push((self.names.index, chunk));
        }
        state.map.shrink(self.config.leaf_bytes_max / LEAF_BYTES);
        if state.failed_sequence <= snapshot.hot.sequence {
            state.failed_sequence = 0;
        }
        state.log_bytes -= snapshot.log_bytes;
        // What changed while this was written has been dirty since its start at the earliest.
        let changed = state.log_bytes > 0 || state.map.dirty() > 0;
        state.dirty_since = changed.then_some(start);
        state.stats.checkpoints += 1;
    }

    fn stream_of(&self, log: Log) -> StreamId {
        match log {
            Log::Hot => self.names.hot,
            Log::Cold => self.names.cold,
        }
    }

    /// Gives chunks back. What fails is tried again after the next checkpoint, or found by the next open.
    async fn delete_condemned(&self) {
        let condemned = std::mem::take(&mut self.state.borrow_mut().index.condemned);
        for stream in [self.names.hot, self.names.cold, self.names.index] {
            let chunks: Vec<ChunkId> = condemned.iter().filter(|(of, _)| *of == stream).map(|(_, chunk)| *chunk).collect();
            for batch in chunks.chunks(DELETE_BATCH) {
                let result = self.streams.delete_chunks(stream, self.epoch, batch.to_vec()).await;
                let mut state = self.state.borrow_mut();
                match result {
                    Ok(()) => {
                        state.stats.deleted_chunks += batch.len() as u64;
                        state.freed_at = self.clock.now();
                    }
                    Err(_) => state.index.condemned.extend(batch.iter().map(|chunk| (stream, *chunk))),
                }
            }
        }
        self.wake_reclaim.notify_one();
    }

    /// Makes the next checkpoint write anew what lives in mostly dead index chunks.
    async fn empty_index_chunks(self: &Rc<Self>) -> Option<Pins> {
        self.harvest_sealed();
        let (mut leaves, branches) = {
            let state = self.state.borrow();
            let victims = state.index.victims(self.chunk_bytes);
            if victims.is_empty() {
                return None;
            }
            state.map.nodes_in(&victims)
        };
        leaves.truncate(REWRITE_LEAVES_MAX);
        if leaves.is_empty() && branches.is_empty() {
            return None;
        }
        // When one can't be read the others still move; the checkpoint itself must not fail for it.
        let pins = self.pin(leaves.clone(), QosClass::Reclaim).await.ok()?;
        let mut state = self.state.borrow_mut();
        for leaf in leaves {
            state.map.rewrite_leaf(leaf);
        }
        for branch in branches {
            state.map.rewrite_branch(branch);
        }
        drop(state);
        Some(pins)
    }

    /// Gives up, right after an open, what the last root needs nothing of: a crash came before it was deleted.
    pub(crate) fn condemn_unused(&self) {
        let mut state = self.state.borrow_mut();
        let State { chunks, index, hot, cold, .. } = &mut *state;
        for (log, chunk) in chunks.dead(hot.position, cold.position) {
            chunks.remove(chunk);
            index.condemned.push((self.stream_of(log), chunk));
        }
        index.condemn_unused(self.names.index);
    }

    /// Appends one unit to the index stream.
    pub(crate) async fn append_index(&self, data: Vec<Bytes>) -> Result<Position, StreamError> {
        let sequence = {
            let mut state = self.state.borrow_mut();
            state.index.sequence += 1;
            state.index.sequence
        };
        let trailer = Bytes::from(Trailer::Index { sequence }.encode());
        let append = self.index.with(|writer| writer.append(data, trailer)).ok_or(StreamError::Closed)?;
        let position = append.await?;
        let mut state = self.state.borrow_mut();
        state.stats.index_bytes += u64::from(position.end - position.offset);
        state.index.grow(position.chunk, position.index, position.end);
        Ok(position)
    }
}

/// Length of a chunk that is sealed; nothing is known to be in one that isn't.
pub(crate) fn sealed_length(record: &ChunkRecord) -> u32 {
    match record.state {
        ChunkState::Sealed { length } => length,
        ChunkState::Granted => 0,
    }
}
