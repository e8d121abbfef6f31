//! Opening: recover the streams, load the last checkpoint, replay what came after it.
//!
//! Replay takes the hot log first, whole and in its order, then the cold one, each move only where the map still points
//! to its source. That gives the map of the moment of the crash whatever the interleaving was: a source, once
//! overwritten, never comes back.

use crate::bucket::Limiter;
use crate::checkpoint::{IndexChunks, sealed_length};
use crate::chunks::Chunks;
use crate::leaves::read_node;
use crate::map::{Map, decode_branch, leaf_of};
use crate::reclaim::apply_moves;
use crate::record::{Change, MoveRecord, Trailer, WriteRecord, walk_writes};
use crate::root::{Body, Log, LogPosition, LogState, Root};
use crate::sequencer::Sequencer;
use crate::streams::Streams;
use crate::volume::{Inner, Phase, State, Tail};
use crate::write::apply_writes;
use crate::{Config, OpenError, Stats};
use api_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
use api_types::master::{ChunkRecord, MasterClient, RootPointer, VolumeLease};
use api_types::{Clock, LifetimeClass, OwnerId, QosClass, Rng};
use client_stream::{Error as StreamError, Position, WriterOptions};
use futures::stream::{StreamExt, TryStreamExt};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::Notify;

/// Branches read at once.
const BRANCH_READS: usize = 16;

fn damaged(what: impl std::fmt::Display) -> OpenError {
    OpenError::Damaged(what.to_string())
}

fn check(lease: &VolumeLease) -> Result<(), OpenError> {
    if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&lease.chunk_bytes) {
        return Err(OpenError::Invalid(format!("chunk_bytes {} must be between 1 MiB and 2 GiB", lease.chunk_bytes)));
    }
    if !lease.volume.size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
        return Err(OpenError::Invalid(format!("size_bytes {} must be a multiple of 4096", lease.volume.size_bytes)));
    }
    if lease.volume.epoch.0 == 0 {
        return Err(OpenError::Invalid("epoch must not be zero: take the lease first".to_owned()));
    }
    Ok(())
}

/// See [`Volume::open`](crate::Volume::open).
pub(crate) async fn open(
    streams: Rc<dyn Streams>,
    master: Rc<dyn MasterClient>,
    clock: Rc<dyn Clock>,
    rng: &dyn Rng,
    lease: VolumeLease,
    mut config: Config,
) -> Result<Rc<Inner>, OpenError> {
    check(&lease)?;
    // Volumes that were opened together don't write their checkpoints together for ever.
    config.checkpoint_every = config.checkpoint_every.mul_f64(0.8 + rng.below(400) as f64 / 1000.0);
    let volume = lease.volume;
    let (epoch, names) = (volume.epoch, volume.streams);
    let recover = |stream| streams.recover(stream, epoch, lease.replication);
    let (hot, cold, index) = futures::join!(recover(names.hot), recover(names.cold), recover(names.index));
    let (hot, cold, index) = (hot?, cold?, index?);

    let state = fresh_state(&config, &volume.qos, &*clock);
    let inner = Rc::new(Inner {
        hot: Tail::default(),
        cold: Tail::default(),
        index: Tail::default(),
        master,
        clock,
        config,
        volume: volume.volume,
        epoch,
        names,
        chunk_bytes: lease.chunk_bytes,
        size_bytes: Cell::new(volume.size_bytes),
        phase: Cell::new(Phase::Open),
        state: RefCell::new(state),
        trace: RefCell::new(None),
        door: Notify::new(),
        wake_checkpoint: Notify::new(),
        wake_reclaim: Notify::new(),
        checkpointing: tokio::sync::Mutex::new(()),
        streams: streams.clone(),
    });
    inner.know_chunks(&hot, &cold, &index);
    if let Some(root) = volume.root {
        inner.load_root(root).await?;
    }
    inner.condemn_unused();
    inner.replay_hot(&hot).await?;
    inner.replay_cold(&cold).await?;
    let options = |class, qos| WriterOptions {
        owner: OwnerId::from(volume.volume),
        epoch,
        replication: lease.replication,
        chunk_bytes: lease.chunk_bytes,
        class,
        qos,
    };
    inner.hot.put(streams.writer(names.hot, options(LifetimeClass::Short, QosClass::Foreground)));
    inner.cold.put(streams.writer(names.cold, options(LifetimeClass::Long, QosClass::Reclaim)));
    inner.index.put(streams.writer(names.index, options(LifetimeClass::Medium, QosClass::Reclaim)));
    inner.start();
    Ok(inner)
}

fn fresh_state(config: &Config, qos: &api_types::master::QosLimits, clock: &dyn Clock) -> State {
    State {
        map: Map::new(),
        chunks: Chunks::default(),
        index: IndexChunks::default(),
        sequencer: Sequencer::new(0, config.in_flight_units_max),
        limiter: Limiter::new(*qos, clock.now()),
        waiters: BTreeMap::new(),
        next_request: 0,
        hot: LogState::default(),
        cold: LogState::default(),
        failed_sequence: 0,
        next_cold: 0,
        log_bytes: 0,
        dirty_since: None,
        checkpoint_waiters: Vec::new(),
        space: None,
        starved_since: None,
        freed_at: clock.now(),
        reclaim_after: 0,
        stats: Stats::default(),
    }
}

impl Inner {
    fn know_chunks(&self, hot: &[ChunkRecord], cold: &[ChunkRecord], index: &[ChunkRecord]) {
        let mut state = self.state.borrow_mut();
        for (log, records) in [(Log::Hot, hot), (Log::Cold, cold)] {
            for record in records {
                state.chunks.grow(log, record.shape.chunk, record.index, sealed_length(record));
                state.chunks.seal(record.shape.chunk);
            }
        }
        for record in index {
            state.index.grow(record.shape.chunk, record.index, sealed_length(record));
            state.index.seal(record.shape.chunk);
        }
    }

    async fn load_root(&self, pointer: RootPointer) -> Result<(), OpenError> {
        let end = pointer.offset.checked_add(pointer.length).ok_or_else(|| damaged("root pointer is out of range"))?;
        let mut scan = self.streams.scan(pointer.chunk, pointer.offset, end, true, QosClass::Foreground);
        let unit = scan.next().await?.ok_or_else(|| damaged("no unit at the root pointer"))?;
        let data = unit.data.ok_or_else(|| damaged("the root's unit has no data"))?;
        let root = Root::decode(&data).map_err(damaged)?;
        if root.volume != self.volume || root.epoch > self.epoch {
            return Err(damaged(format!("the root belongs to {} {}", root.volume, root.epoch)));
        }
        let mut bytes = Vec::new();
        for node in &root.body {
            bytes.extend_from_slice(&read_node(&*self.streams, *node, QosClass::Foreground).await?);
        }
        let body = Body::decode(&bytes).map_err(damaged)?;
        let reads = futures::stream::iter(body.branches.iter().map(|(number, pointer)| async move {
            let bytes = read_node(&*self.streams, *pointer, QosClass::Foreground).await?;
            let leaves = decode_branch(&bytes).map_err(|error| damaged(format!("map branch {number}: {error}")))?;
            Ok::<_, OpenError>((*number, *pointer, leaves))
        }));
        let branches: Vec<_> = reads.buffered(BRANCH_READS).try_collect().await?;

        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        for (number, pointer, leaves) in &branches {
            state.map.load_branch(u64::from(*number), *pointer, leaves);
        }
        let mut known = true;
        for pointer in state.map.pointers() {
            known &= state.index.refer(pointer.chunk, pointer.length);
        }
        let mut parts: Vec<_> = root.body.iter().map(|node| (node.chunk, node.length)).collect();
        parts.push((pointer.chunk, pointer.length));
        known &= state.index.set_root(parts);
        for (_, chunk, live) in &body.chunks {
            known &= state.chunks.set_live(*chunk, *live) || *live == 0;
        }
        if !known {
            return Err(damaged("the checkpoint refers to a chunk that the masters don't know"));
        }
        state.hot = root.hot;
        state.cold = root.cold;
        Ok(())
    }

    /// The units of a log after `from`, in order, each with its place.
    async fn tail(
        &self,
        records: &[ChunkRecord],
        from: LogPosition,
        mut each: impl AsyncFnMut(Position, Trailer) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        for record in records.iter().filter(|record| record.index >= from.index) {
            let (chunk, length) = (record.shape.chunk, sealed_length(record));
            let start = if record.index == from.index { from.end } else { 0 };
            if start > length {
                return Err(damaged(format!("{chunk} has {length} bytes, and {start} were in the last checkpoint")));
            }
            if start == length {
                continue;
            }
            let mut scan = self.streams.scan(chunk, start, length, false, QosClass::Foreground);
            while let Some(unit) = scan.next().await? {
                let footer = &unit.footer;
                let at = |error| damaged(format!("trailer in {chunk} at {}: {error}", footer.start));
                let trailer = Trailer::decode(&unit.trailer, footer.data_bytes).map_err(at)?;
                let position = Position { chunk, index: record.index, offset: footer.start, end: footer.end() };
                each(position, trailer).await?;
            }
        }
        Ok(())
    }

    fn replayed(&self, log: Log, position: Position) {
        let bytes = u64::from(position.end - position.offset);
        let mut state = self.state.borrow_mut();
        let tail = if log == Log::Hot { &mut state.hot } else { &mut state.cold };
        tail.position = LogPosition { index: position.index, end: position.end };
        state.log_bytes += bytes;
        state.stats.replayed_bytes += bytes;
    }

    async fn replay_hot(self: &Rc<Self>, records: &[ChunkRecord]) -> Result<(), OpenError> {
        let from = self.state.borrow().hot.position;
        self.tail(records, from, async |position, trailer| {
            let Trailer::Hot { sequence, records } = trailer else { return Err(damaged("a foreign unit stands in the hot log")) };
            self.replayed(Log::Hot, position);
            // A unit may stand twice, or have failed before the checkpoint: it counts once, at its own place.
            if sequence <= self.state.borrow().hot.sequence {
                return Ok(());
            }
            let _pins = self.pin(self.leaves_of_writes(&records, position), QosClass::Foreground).await.map_err(unavailable)?;
            let mut state = self.state.borrow_mut();
            apply_writes(&mut state, position, &records);
            state.hot.sequence = sequence;
            drop(state);
            Ok(())
        })
        .await
    }

    async fn replay_cold(self: &Rc<Self>, records: &[ChunkRecord]) -> Result<(), OpenError> {
        let from = self.state.borrow().cold.position;
        self.tail(records, from, async |position, trailer| {
            let Trailer::Cold { sequence, records } = trailer else {
                return Err(damaged("a foreign unit stands in the cold log"));
            };
            self.replayed(Log::Cold, position);
            if sequence <= self.state.borrow().cold.sequence {
                return Ok(());
            }
            let leaves = leaves_of_moves(&records);
            let _pins = self.pin(leaves, QosClass::Foreground).await.map_err(unavailable)?;
            let mut state = self.state.borrow_mut();
            apply_moves(&mut state, position, &records);
            state.cold.sequence = sequence;
            drop(state);
            Ok(())
        })
        .await
    }

    /// Leaves that a unit changes. Of a forgotten range only those that hold anything.
    fn leaves_of_writes(&self, records: &[WriteRecord], position: Position) -> Vec<u64> {
        let state = self.state.borrow();
        let mut leaves = Vec::new();
        walk_writes(records, position.chunk, position.offset, |change| match change {
            Change::Set(block, _) => leaves.push(leaf_of(block)),
            Change::Clear(first, count) => leaves.extend(state.map.leaves_in(first, count)),
        });
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// Ready to serve.
    fn start(&self) {
        let mut state = self.state.borrow_mut();
        state.sequencer = Sequencer::new(state.hot.sequence, self.config.in_flight_units_max);
        state.next_cold = state.cold.sequence;
        if state.log_bytes > 0 {
            state.dirty_since = Some(self.clock.now());
        }
    }
}

fn leaves_of_moves(records: &[MoveRecord]) -> Vec<u64> {
    let blocks = |record: &MoveRecord| record.first..record.first + record.crcs.len() as u64;
    let mut leaves: Vec<u64> = records.iter().flat_map(blocks).map(leaf_of).collect();
    leaves.sort_unstable();
    leaves.dedup();
    leaves
}

fn unavailable(error: crate::BlockError) -> OpenError {
    match error {
        crate::BlockError::Fenced => OpenError::Fenced,
        other => OpenError::from(StreamError::Unavailable(other.to_string())),
    }
}
