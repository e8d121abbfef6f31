//! Appends: the order of units, where they go, and when they are acknowledged.

use super::chunk::Unit;
use super::{After, Chunk, Core, Effect, OpId, State, UnitWrite};
use crate::extent::Run;
use crate::record::Record;
use crate::space::{For, Ticket};
use api_types::ChunkId;
use api_types::chunk::{Append, Error, Response};
use api_types::limits::{EXTENT_BYTES, UNIT_BYTES_MAX};
use api_types::unit::Footer;
use std::time::Duration;

/// Units of one chunk under way at once.
const UNITS_MAX: usize = 1024;

impl Core {
    /// Takes an append whose unit verifies with this footer. Answers through `op`.
    pub(crate) fn append(&mut self, op: OpId, request: Append, footer: &Footer, now: Duration) {
        if let Err(error) = self.try_append(op, request, footer, now) {
            self.answer(op, Err(error));
        }
    }

    fn try_append(&mut self, op: OpId, request: Append, footer: &Footer, now: Duration) -> Result<(), Error> {
        self.check_failed()?;
        self.check_append(&request, footer)?;
        let id = request.chunk;
        let floor = self.floor(footer.shape.owner);
        if request.epoch < floor {
            return Err(Error::Fenced { floor });
        }
        let Some(chunk) = self.chunks.get(&id) else {
            self.check_create(&request)?;
            self.check_room(request.unit.len())?;
            self.create(footer);
            self.accept(op, request, now);
            return Ok(());
        };
        if chunk.shape.epoch != request.epoch {
            return Err(Error::Fenced { floor: chunk.shape.epoch.max(floor) });
        }
        if chunk.shape != footer.shape {
            return Err(Error::Invalid("the footer's owner, capacity, alignment or class isn't the chunk's".into()));
        }
        if chunk.state == State::Closing {
            // How long it will be is told once it is known.
            if let Some(chunk) = self.chunks.get_mut(&id) {
                chunk.late.push(op);
            }
            return Ok(());
        }
        if chunk.state != State::Open {
            return Err(Error::Sealed { length: chunk.durable });
        }
        if request.offset < chunk.accepted {
            return self.append_again(op, request);
        }
        if request.offset > chunk.accepted {
            return Err(Error::WrongOffset { expected: chunk.accepted });
        }
        if footer.end() > chunk.shape.capacity {
            return Err(Error::Full);
        }
        if chunk.units.len() >= UNITS_MAX {
            return Err(Error::Busy);
        }
        self.check_room(request.unit.len())?;
        self.accept(op, request, now);
        Ok(())
    }

    fn check_append(&self, request: &Append, footer: &Footer) -> Result<(), Error> {
        let wrong = if footer.shape.chunk != request.chunk {
            "the footer names another chunk"
        } else if footer.shape.epoch != request.epoch {
            "the footer has another epoch"
        } else if footer.start != request.offset {
            "the footer has another start"
        } else if !footer.shape.alignment.bytes().is_multiple_of(self.limits.block_bytes) {
            "the chunk's alignment isn't a multiple of the device's block"
        } else if !footer.shape.capacity.is_multiple_of(footer.shape.alignment.bytes()) {
            "the chunk's capacity isn't a multiple of its alignment"
        } else if footer.shape.chunk == ChunkId(0) {
            "chunk id 0 names no chunk"
        } else {
            return Ok(());
        };
        Err(Error::Invalid(wrong.into()))
    }

    fn check_create(&self, request: &Append) -> Result<(), Error> {
        if self.is_buried(request.chunk) || self.restores.contains_key(&request.chunk) {
            return Err(Error::Sealed { length: 0 });
        }
        if !request.create {
            return Err(Error::Unknown);
        }
        if request.offset != 0 {
            return Err(Error::Invalid("a chunk can only be created with offset 0".into()));
        }
        if self.space.available() == 0 { Err(Error::Full) } else { Ok(()) }
    }

    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let sum = self.append_bytes.saturating_add(bytes as u64);
        // One unit always fits, whatever the bound is.
        if self.append_bytes > 0 && sum > self.limits.append_bytes_max { Err(Error::Busy) } else { Ok(()) }
    }

    fn create(&mut self, footer: &Footer) {
        let serial = self.serial();
        let mut chunk = Chunk::new(footer.shape, serial);
        if let Some(extent) = self.space.take_reserved() {
            chunk.runs.push(Run { start: extent, count: 1 });
            chunk.usable_extents = 1;
        }
        self.open.insert(footer.shape.chunk);
        self.chunks.insert(footer.shape.chunk, chunk);
        self.want_refill();
    }

    fn accept(&mut self, op: OpId, request: Append, now: Duration) {
        let Some(chunk) = self.chunks.get_mut(&request.chunk) else { return };
        self.append_bytes += request.unit.len() as u64;
        let unit = Unit {
            start: request.offset,
            data: request.unit,
            qos: request.qos,
            done: None,
            op: Some(op),
            more: Vec::new(),
            since: now,
        };
        chunk.accepted = unit.end();
        chunk.units.push_back(unit);
        self.place(request.chunk);
    }

    /// The unit stands before the end: is it the one that is there?
    fn append_again(&mut self, op: OpId, request: Append) -> Result<(), Error> {
        let length = u32::try_from(request.unit.len()).unwrap_or(u32::MAX);
        let Some(chunk) = self.chunks.get_mut(&request.chunk) else { return Err(Error::Unknown) };
        if request.offset >= chunk.durable {
            let same = chunk.units.iter_mut().find(|unit| unit.start == request.offset && unit.data == request.unit);
            same.ok_or(Error::Conflict)?.more.push(op);
            return Ok(());
        }
        let length_now = chunk.durable;
        if request.offset.checked_add(length).is_none_or(|end| end > length_now) {
            return Err(Error::Conflict);
        }
        let plan = self.plan_read(request.chunk, request.offset, length)?;
        self.effects.push_back(Effect::Compare { op, plan, unit: request.unit, length: length_now });
        Ok(())
    }

    /// Sends units to the device as far as there is space for them, and gets more space ahead of need.
    pub(super) fn place(&mut self, id: ChunkId) {
        while self.place_next(id) {}
        let Some(chunk) = self.chunks.get(&id) else { return };
        if chunk.state != State::Open {
            return;
        }
        let usable = u64::from(chunk.usable_extents) * u64::from(EXTENT_BYTES);
        let rest = usable.saturating_sub(u64::from(chunk.accepted));
        let last = chunk.runs.as_slice().last().map_or(0, |run| run.count);
        let ahead = u64::from(UNIT_BYTES_MAX).max(u64::from(last) * u64::from(EXTENT_BYTES) / 2);
        if rest < ahead && !chunk.is_binding && !self.bind(id) {
            self.refuse_unplaced(id, &Error::Full);
        }
    }

    fn place_next(&mut self, id: ChunkId) -> bool {
        let Some(chunk) = self.chunks.get_mut(&id) else { return false };
        let Some(unit) = chunk.units.get(chunk.placed) else { return false };
        if u64::from(unit.end()) > u64::from(chunk.usable_extents) * u64::from(EXTENT_BYTES) {
            return false;
        }
        let mut data = unit.data.clone();
        let pieces = chunk.runs.pieces(unit.start, unit.bytes());
        let pieces = pieces.into_iter().map(|piece| (piece.at, data.split_to(piece.bytes as usize))).collect();
        chunk.placed += 1;
        chunk.in_flight += 1;
        let (serial, start, qos) = (chunk.serial, unit.start, unit.qos);
        let ticket = self.space.begin();
        self.effects.push_back(Effect::Write(UnitWrite { chunk: id, serial, start, pieces, qos, ticket }));
        true
    }

    /// Takes the next run. True when there is nothing to take or it is on its way.
    fn bind(&mut self, id: ChunkId) -> bool {
        let Some(chunk) = self.chunks.get(&id) else { return true };
        let want = chunk.runs.next_count(chunk.shape.capacity);
        if want == 0 {
            return true;
        }
        let Some(run) = self.space.take(want, For::Appends) else { return false };
        self.journal_creation(id);
        let Some(chunk) = self.chunks.get_mut(&id) else { return true };
        chunk.runs.push(run);
        chunk.is_binding = true;
        let (serial, extents, shape) = (chunk.serial, chunk.runs.extents(), chunk.shape);
        if chunk.is_journaled {
            self.emit(Record::Extend { chunk: id, run });
        } else {
            // The pool was dry: the chunk starts here.
            chunk.is_journaled = true;
            self.emit(Record::Create { shape, extent: run.start, length: 0 });
        }
        self.after(After::Usable { chunk: id, serial, extents });
        true
    }

    pub(super) fn run_usable(&mut self, id: ChunkId, serial: u64, extents: u32) {
        let Some(chunk) = self.chunks.get_mut(&id).filter(|chunk| chunk.serial == serial) else { return };
        chunk.is_binding = false;
        chunk.usable_extents = extents.min(chunk.runs.extents());
        self.place(id);
    }

    /// Units that no space was found for are refused, and the chunk ends before them. It stays open: space may come.
    fn refuse_unplaced(&mut self, id: ChunkId, error: &Error) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let (ops, bytes) = chunk.drop_units(chunk.placed);
        self.append_bytes -= bytes;
        if chunk.runs.len() == 0 {
            self.chunks.remove(&id);
            self.open.remove(&id);
        }
        ops.into_iter().for_each(|op| self.answer(op, Err(error.clone())));
    }

    pub(super) fn fail_waiting(&mut self, id: ChunkId, error: &Error) {
        self.refuse_unplaced(id, error);
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let waiting: Vec<OpId> = chunk.seals.drain(..).filter_map(|(op, _)| op).chain(chunk.late.drain(..)).collect();
        waiting.into_iter().for_each(|op| self.answer(op, Err(error.clone())));
    }

    /// A unit's write came back.
    pub(crate) fn written(&mut self, id: ChunkId, serial: u64, start: u32, ticket: Ticket, whole: bool) {
        self.finish_ticket(ticket);
        let Some(chunk) = self.chunks.get_mut(&id).filter(|chunk| chunk.serial == serial) else { return };
        chunk.in_flight -= 1;
        if let Ok(index) = chunk.units.binary_search_by_key(&start, |unit| unit.start) {
            chunk.units[index].done = Some(whole);
        }
        if self.acknowledge(id) {
            self.break_off(id);
        }
        if self.chunks.get(&id).is_some_and(|chunk| chunk.state == State::Closing && chunk.in_flight == 0) {
            self.close(id);
        }
        if self.unjournaled_bytes >= super::PROGRESS_BYTES {
            self.journal_progress();
        }
    }

    /// Moves the durable length over the units that are whole. True when it stopped before one whose write failed.
    fn acknowledge(&mut self, id: ChunkId) -> bool {
        let Some(chunk) = self.chunks.get_mut(&id) else { return false };
        let cut = match chunk.seals.first() {
            Some((_, length)) => length.unwrap_or(u32::MAX),
            None => u32::MAX,
        };
        let mut acknowledged = Vec::new();
        while chunk.units.front().is_some_and(|unit| unit.done == Some(true)) {
            let Some(mut unit) = chunk.units.pop_front() else { break };
            chunk.placed -= 1;
            chunk.durable = unit.end();
            self.append_bytes -= u64::from(unit.bytes());
            self.unjournaled_bytes += u64::from(unit.bytes());
            if unit.end() <= cut {
                acknowledged.extend(unit.take_ops());
            } else {
                chunk.late.extend(unit.take_ops());
            }
        }
        let length = chunk.durable;
        let is_broken = chunk.units.front().is_some_and(|unit| unit.done == Some(false));
        acknowledged.into_iter().for_each(|op| self.answer(op, Ok(Response::Append(length))));
        is_broken
    }

    /// A write failed: the chunk ends before it.
    fn break_off(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let (ops, bytes) = chunk.drop_units(0);
        self.append_bytes -= bytes;
        chunk.late.extend(ops);
        chunk.state = State::Closing;
    }
}
