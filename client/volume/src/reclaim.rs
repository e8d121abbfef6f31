//! Reclaim: what lives in a mostly dead chunk is appended to the cold stream, so that the chunk can be given back.
//!
//! A move counts only where the map still points to the source, now and in a replay: a write that overtakes it wins. The
//! emptied chunk is given back by the next checkpoint (see `checkpoint`), so a crash at any moment finds either the source
//! or the copy, and a root that knows which.

use crate::BlockError;
use crate::chunks::Aim;
use crate::error::block_error;
use crate::leaves::Pins;
use crate::map::{Location, leaf_of};
use crate::record::{Change, MoveRecord, Trailer, UNIT_BLOCKS_MAX, walk_moves, walk_writes};
use crate::root::{Log, LogPosition};
use crate::volume::{Inner, Phase, State};
use api_types::checksum::crc32c;
use api_types::limits::BLOCK_BYTES;
use api_types::{ChunkId, QosClass, Rule};
use bytes::Bytes;
use client_stream::{Error as StreamError, Position, ScannedUnit};
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use std::rc::Rc;
use std::time::Duration;

/// The longest rest between two units, however little there is to do.
const REST_MAX: Duration = Duration::from_millis(500);
/// Emptied chunks after which a checkpoint gives them back, while there is space.
const EMPTY_CHUNKS: u64 = 4;

/// Empties chunks while there is garbage to fight, for as long as the volume is open.
pub(crate) async fn run(inner: Rc<Inner>) {
    while inner.phase.get() == Phase::Open {
        inner.harvest_sealed();
        let (pace, victim, empty) = {
            let state = inner.state.borrow();
            let pace = inner.pace(&state);
            (
                pace,
                state.chunks.victim(pace.aim, inner.chunk_bytes),
                state.chunks.empty_bytes(state.hot.position, state.cold.position),
            )
        };
        let urgent = pace.aim == Aim::Cheapest;
        let enough = if urgent { 1 } else { EMPTY_CHUNKS * u64::from(inner.chunk_bytes) };
        if pace.urgency > 0.0 && (empty >= enough || (victim.is_none() && empty > 0)) {
            // Waited for, or the same garbage would be fought twice.
            if !inner.checkpoint_of_now().await {
                inner.rest().await;
            }
            continue;
        }
        match victim {
            Some(victim) if pace.urgency > 0.0 => {
                if empty_chunk(&inner, victim).await.is_err() {
                    inner.state.borrow_mut().chunks.skip(victim, u64::from(inner.chunk_bytes));
                    inner.rest().await;
                }
            }
            None if urgent => {
                inner.state.borrow_mut().chunks.unskip();
                inner.rest().await;
            }
            _ => inner.wake_reclaim.notified().await,
        }
    }
}

/// Survivors on their way to one cold unit.
#[derive(Default)]
struct Batch {
    records: Vec<MoveRecord>,
    data: Vec<u8>,
    blocks: u32,
    /// Of the leaves that change.
    pins: Vec<Rc<Pins>>,
}

/// What the append of a batch came to.
struct Moved {
    sequence: u64,
    result: Result<Position, StreamError>,
    records: Vec<MoveRecord>,
    _pins: Vec<Rc<Pins>>,
}

/// Batches under way, applied in the order of the log.
struct Mover {
    inner: Rc<Inner>,
    batch: Batch,
    under_way: FuturesOrdered<LocalBoxFuture<'static, Moved>>,
    started: Duration,
}

/// Moves everything that lives in a chunk.
async fn empty_chunk(inner: &Rc<Inner>, victim: ChunkId) -> Result<(), BlockError> {
    let Some(usage) = inner.state.borrow().chunks.get(victim).copied() else { return Ok(()) };
    let mut mover =
        Mover { inner: inner.clone(), batch: Batch::default(), under_way: FuturesOrdered::new(), started: inner.clock.now() };
    let result = mover.empty(victim, usage.length).await;
    // Whatever happened, what is under way is committed or not: the map must hear of it.
    let drained = mover.drain(0).await;
    result.and(drained)?;
    let mut state = inner.state.borrow_mut();
    if state.chunks.get(victim).is_some_and(|usage| usage.live > 0) {
        return Err(BlockError::Unavailable(format!("chunk {victim} has live blocks that its trailers don't name")));
    }
    state.stats.reclaimed_chunks += 1;
    Ok(())
}

impl Mover {
    async fn empty(&mut self, victim: ChunkId, length: u32) -> Result<(), BlockError> {
        let mut scan = self.inner.streams.scan(victim, 0, length, true, QosClass::Reclaim);
        while let Some(unit) = scan.next().await.map_err(|error| block_error(&error))? {
            if self.inner.phase.get() != Phase::Open {
                return self.inner.check_open();
            }
            self.keep_living(victim, &unit).await?;
            if self.inner.state.borrow().chunks.get(victim).is_none_or(|usage| usage.live == 0) {
                break;
            }
        }
        self.send().await
    }

    /// Puts the living blocks of a unit in the batch.
    async fn keep_living(&mut self, victim: ChunkId, unit: &ScannedUnit) -> Result<(), BlockError> {
        let candidates = blocks_of(victim, unit)?;
        let mut leaves: Vec<u64> = candidates.iter().map(|(block, _)| leaf_of(*block)).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let pins = self.inner.pin(leaves, QosClass::Reclaim).await?;
        let living: Vec<(u64, Location)> = {
            let state = self.inner.state.borrow();
            let lives = |(block, location): &(u64, Location)| state.map.get(*block).is_some_and(|now| now.same_place(location));
            candidates.into_iter().filter(lives).collect()
        };
        if living.is_empty() {
            return Ok(());
        }
        let data = unit.data.as_ref().ok_or_else(|| BlockError::Unavailable("a scan came without data".to_owned()))?;
        let pins = Rc::new(pins);
        for (block, location) in living {
            let start = (location.offset - unit.footer.start) as usize;
            let bytes = data.get(start..start + BLOCK_BYTES as usize).filter(|bytes| crc32c(bytes) == location.crc);
            let bytes =
                bytes.ok_or_else(|| BlockError::Unavailable(format!("block {block} in chunk {victim} does not verify")))?;
            self.batch.put(block, &location, bytes);
            if !self.batch.pins.last().is_some_and(|last| Rc::ptr_eq(last, &pins)) {
                self.batch.pins.push(pins.clone());
            }
            if self.batch.blocks >= self.inner.move_blocks_max() {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Appends the batch, and waits until few enough are under way.
    async fn send(&mut self) -> Result<(), BlockError> {
        if self.batch.blocks == 0 {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let sequence = {
            let mut state = self.inner.state.borrow_mut();
            state.next_cold += 1;
            state.next_cold
        };
        let trailer = Trailer::Cold { sequence, records: batch.records.clone() }.encode();
        let append = self.inner.cold.with(|writer| writer.append(vec![batch.data.into()], Bytes::from(trailer)));
        let append = append.ok_or(BlockError::Closed)?;
        let (records, pins) = (batch.records, batch.pins);
        self.under_way.push_back(Box::pin(async move { Moved { sequence, result: append.await, records, _pins: pins } }));
        self.drain(self.inner.config.reclaim_units_max.saturating_sub(1)).await?;
        self.pace().await;
        Ok(())
    }

    /// Rests in proportion to the time that work took: hardly at full speed, long when there is little to do.
    async fn pace(&mut self) {
        let inner = &self.inner;
        let urgency = inner.pace(&inner.state.borrow()).urgency;
        let worked = inner.clock.now().saturating_sub(self.started);
        if urgency < 1.0 {
            let rest = worked.mul_f64((1.0 - urgency) / urgency.max(0.05)).min(REST_MAX);
            inner.clock.sleep(rest).await;
        }
        self.started = inner.clock.now();
    }

    /// Applies what has come back until at most `left` are under way.
    async fn drain(&mut self, left: usize) -> Result<(), BlockError> {
        let mut result = Ok(());
        while self.under_way.len() > left {
            let Some(moved) = self.under_way.next().await else { break };
            match &moved.result {
                Ok(position) => self.inner.apply_moves(moved.sequence, *position, &moved.records),
                Err(error) => {
                    self.inner.state.borrow_mut().cold.sequence = moved.sequence;
                    if *error == StreamError::Fenced {
                        self.inner.stop(Phase::Fenced);
                    }
                    result = Err(block_error(error));
                }
            }
        }
        result
    }
}

impl Batch {
    fn put(&mut self, block: u64, from: &Location, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.blocks += 1;
        if let Some(record) = self.records.last_mut()
            && record.first + record.crcs.len() as u64 == block
            && record.source_chunk == from.chunk
            && record.source_offset + record.crcs.len() as u32 * BLOCK_BYTES == from.offset
        {
            record.crcs.push(from.crc);
            return;
        }
        let record = MoveRecord { first: block, source_chunk: from.chunk, source_offset: from.offset, crcs: vec![from.crc] };
        self.records.push(record);
    }
}

/// Where the blocks of a unit stand, as its trailer says.
fn blocks_of(chunk: ChunkId, unit: &ScannedUnit) -> Result<Vec<(u64, Location)>, BlockError> {
    let damaged = |error| BlockError::Unavailable(format!("trailer in chunk {chunk} at {}: {error}", unit.footer.start));
    match Trailer::decode(&unit.trailer, unit.footer.data_bytes).map_err(damaged)? {
        Trailer::Hot { records, .. } => {
            let mut blocks = Vec::new();
            walk_writes(&records, chunk, unit.footer.start, |change| {
                if let Change::Set(block, location) = change {
                    blocks.push((block, location));
                }
            });
            Ok(blocks)
        }
        Trailer::Cold { records, .. } => {
            Ok(walk_moves(&records, chunk, unit.footer.start).into_iter().map(|(block, _, to)| (block, to)).collect())
        }
        Trailer::Index { .. } => Ok(Vec::new()),
    }
}

impl Inner {
    async fn rest(&self) {
        self.clock.sleep(self.config.reclaim_every).await;
    }

    /// Most blocks in one cold unit: a small chunk shall not lose much of its end to a unit that doesn't fit.
    fn move_blocks_max(&self) -> u32 {
        (self.chunk_bytes / 16 / BLOCK_BYTES).min(UNIT_BLOCKS_MAX)
    }

    fn apply_moves(&self, sequence: u64, position: Position, records: &[MoveRecord]) {
        if !self.is_running() {
            return;
        }
        let mut state = self.state.borrow_mut();
        apply_moves(&mut state, position, records);
        state.cold.sequence = sequence;
        let bytes = u64::from(position.end - position.offset);
        state.stats.cold_bytes += bytes;
        self.logged(&mut state, bytes);
    }
}

/// Changes the map as a committed cold unit says: only blocks that are still where they were.
pub(crate) fn apply_moves(state: &mut State, position: Position, records: &[MoveRecord]) {
    let State { map, chunks, cold, .. } = state;
    chunks.grow(Log::Cold, position.chunk, position.index, position.end);
    for (block, from, to) in walk_moves(records, position.chunk, position.offset) {
        if map.get(block).is_some_and(|now| now.same_place(&from) || !Rule::MovesYield.is_kept()) {
            map.set(block, Some(to));
            chunks.forget(&from);
            chunks.refer(&to);
        }
    }
    cold.position = LogPosition { index: position.index, end: position.end };
}
