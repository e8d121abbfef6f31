//! One chunk: what it holds, what is under way, and who waits.

use super::OpId;
use crate::extent::Runs;
use api_types::QosClass;
use api_types::chunk::ChunkInfo;
use api_types::unit::ChunkShape;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// What may still happen to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It takes appends.
    Open,
    /// It takes none any more; writes are still under way.
    Closing,
    /// It takes none; a seal at a given length may still cut it.
    Closed,
    /// Cut at a given length.
    Final,
}

/// A unit that isn't part of the durable length yet.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) start: u32,
    pub(super) data: Bytes,
    pub(super) qos: QosClass,
    /// How its write ended.
    pub(super) done: Option<bool>,
    pub(super) op: Option<OpId>,
    /// Others that sent the same unit meanwhile.
    pub(super) more: Vec<OpId>,
    pub(super) since: Duration,
}

impl Unit {
    pub(super) fn bytes(&self) -> u32 {
        u32::try_from(self.data.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn end(&self) -> u32 {
        self.start + self.bytes()
    }

    pub(super) fn take_ops(&mut self) -> impl Iterator<Item = OpId> + use<> {
        self.op.take().into_iter().chain(std::mem::take(&mut self.more))
    }
}

#[derive(Debug)]
pub(crate) struct Chunk {
    pub(super) shape: ChunkShape,
    pub(super) serial: u64,
    /// Where it lies, exactly as the journal will know it once all emitted records are in it.
    pub(super) runs: Runs,
    /// How many of the runs' extents may be written to: the rest isn't bound durably yet.
    pub(super) usable_extents: u32,
    pub(super) is_binding: bool,
    pub(super) state: State,
    /// Bytes that are durable, with all before them.
    pub(super) durable: u32,
    /// Where the next unit must start.
    pub(super) accepted: u32,
    /// From `durable` to `accepted`, in order; the first `placed` of them are at the device or back.
    pub(super) units: VecDeque<Unit>,
    pub(super) placed: usize,
    /// Writes at the device, also of units that were given up.
    pub(super) in_flight: u32,
    pub(super) is_journaled: bool,
    pub(super) journaled_length: u32,
    /// Seals that wait for the writes under way.
    pub(super) seals: Vec<(Option<OpId>, Option<u32>)>,
    /// Appends that are to hear how long the chunk is once it is closed.
    pub(super) late: Vec<OpId>,
    /// Seconds that it has been closing.
    pub(super) closing_seconds: u64,
}

impl Chunk {
    pub(super) fn new(shape: ChunkShape, serial: u64) -> Chunk {
        Chunk {
            shape,
            serial,
            runs: Runs::default(),
            usable_extents: 0,
            is_binding: false,
            state: State::Open,
            durable: 0,
            accepted: 0,
            units: VecDeque::new(),
            placed: 0,
            in_flight: 0,
            is_journaled: false,
            journaled_length: 0,
            seals: Vec::new(),
            late: Vec::new(),
            closing_seconds: 0,
        }
    }

    /// A chunk that the journal tells of.
    pub(super) fn closed(shape: ChunkShape, serial: u64, runs: Runs, state: State, length: u32) -> Chunk {
        let usable_extents = runs.extents();
        Chunk {
            runs,
            usable_extents,
            state,
            durable: length,
            accepted: length,
            is_journaled: true,
            journaled_length: length,
            ..Chunk::new(shape, serial)
        }
    }

    pub(super) fn info(&self) -> ChunkInfo {
        ChunkInfo { shape: self.shape, length: self.durable, sealed: matches!(self.state, State::Closed | State::Final) }
    }

    /// Takes out the units from index `from` on. Returns who waits for them and how many bytes they have.
    pub(super) fn drop_units(&mut self, from: usize) -> (Vec<OpId>, u64) {
        let mut ops = Vec::new();
        let mut bytes = 0;
        for mut unit in self.units.drain(from..) {
            ops.extend(unit.take_ops());
            bytes += u64::from(unit.bytes());
        }
        self.placed = self.placed.min(from);
        self.accepted = self.units.back().map_or(self.durable, Unit::end);
        (ops, bytes)
    }

    /// Who has waited longer than `limit`. Called once a second.
    pub(super) fn expired(&mut self, now: Duration, limit: Duration) -> Vec<OpId> {
        let old = self.units.iter_mut().take_while(|unit| now.saturating_sub(unit.since) > limit);
        let mut ops: Vec<OpId> = old.flat_map(Unit::take_ops).collect();
        if self.state == State::Closing {
            self.closing_seconds += 1;
            if self.closing_seconds > limit.as_secs() {
                ops.append(&mut self.late);
                // The first seal says where the chunk is cut, whoever still waits for it.
                ops.extend(self.seals.iter_mut().filter_map(|(op, _)| op.take()));
            }
        }
        ops
    }
}
