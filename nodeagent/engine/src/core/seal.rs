//! The ends of chunks: seal, close and delete.

use super::{After, Core, OpId, State};
use crate::record::{End, Record};
use api_types::chunk::{Error, Response, Seal, Sealed};
use api_types::{ChunkId, Rule};

impl Core {
    /// Seals. Answers through `op` once writes under way are back and the journal knows.
    pub(crate) fn seal(&mut self, op: OpId, request: &Seal) {
        if let Err(error) = self.try_seal(op, request) {
            self.answer(op, Err(error));
        }
    }

    fn try_seal(&mut self, op: OpId, request: &Seal) -> Result<(), Error> {
        self.check_failed()?;
        let floor = self.floor(request.owner);
        if request.epoch < floor {
            return Err(Error::Fenced { floor });
        }
        if let Some(chunk) = self.chunks.get(&request.chunk) {
            if chunk.shape.owner != request.owner {
                return Err(Error::Invalid(format!("the chunk belongs to {}, not to {}", chunk.shape.owner, request.owner)));
            }
            if request.epoch < chunk.shape.epoch {
                return Err(Error::Fenced { floor: chunk.shape.epoch });
            }
            let alignment = chunk.shape.alignment.bytes();
            if request.length.is_some_and(|length| !length.is_multiple_of(alignment)) {
                return Err(Error::Invalid(format!("the length to seal at isn't a multiple of {alignment}")));
            }
        }
        let is_here = self.chunks.contains_key(&request.chunk);
        if !is_here && !Rule::AbsentStaysAbsent.is_kept() {
            self.answer(op, Ok(Response::Seal(Sealed::Absent)));
            return Ok(());
        }
        if request.epoch > floor && Rule::SealStopsAppends.is_kept() {
            if floor.0 == 0 && self.floors.len() >= self.limits.floors_max {
                return Err(Error::Io("no room for the epoch floor of one more owner on this device".into()));
            }
            self.floors.insert(request.owner, request.epoch);
            self.emit(Record::Floor { owner: request.owner, epoch: request.epoch });
        }
        let Some(chunk) = self.chunks.get_mut(&request.chunk) else {
            self.bury(request.chunk);
            self.after(After::Answer(op, Ok(Response::Seal(Sealed::Absent))));
            return Ok(());
        };
        match chunk.state {
            State::Open if !Rule::SealStopsAppends.is_kept() => {
                let at = chunk.durable;
                self.answer(op, Ok(Response::Seal(Sealed::At(at))));
            }
            State::Open | State::Closing => {
                chunk.state = State::Closing;
                chunk.seals.push((Some(op), request.length));
                let (ops, bytes) = chunk.drop_units(chunk.placed);
                chunk.late.extend(ops);
                self.append_bytes -= bytes;
                if chunk.in_flight == 0 {
                    self.close(request.chunk);
                }
            }
            State::Closed | State::Final => self.cut_and_answer(request.chunk, Some(op), request.length),
        }
        Ok(())
    }

    /// The last write under way is back: the length is known.
    pub(super) fn close(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let (seals, late) = (std::mem::take(&mut chunk.seals), std::mem::take(&mut chunk.late));
        if chunk.runs.len() == 0 {
            // Nothing of it ever reached the device: it isn't here, and won't be.
            self.chunks.remove(&id);
            self.open.remove(&id);
            self.bury(id);
            for op in seals.into_iter().filter_map(|(op, _)| op) {
                self.after(After::Answer(op, Ok(Response::Seal(Sealed::Absent))));
            }
            late.into_iter().for_each(|op| self.answer(op, Err(Error::Sealed { length: 0 })));
            return;
        }
        let mut seals = seals.into_iter();
        match seals.next() {
            Some((op, length)) => self.cut_and_answer(id, op, length),
            None => {
                self.cut(id, None);
            }
        }
        let length = self.chunks.get(&id).map_or(0, |chunk| chunk.durable);
        late.into_iter().for_each(|op| self.after(After::Answer(op, Err(Error::Sealed { length }))));
        seals.for_each(|(op, length)| self.cut_and_answer(id, op, length));
    }

    fn cut_and_answer(&mut self, id: ChunkId, op: Option<OpId>, length: Option<u32>) {
        let at = self.cut(id, length);
        let Some(op) = op else { return };
        self.after(After::Answer(op, Ok(Response::Seal(Sealed::At(at)))));
    }

    /// Ends a chunk without writes under way; returns its length.
    fn cut(&mut self, id: ChunkId, length: Option<u32>) -> u32 {
        self.journal_creation(id);
        let Some(chunk) = self.chunks.get_mut(&id) else { return 0 };
        let is_cut = length.is_some_and(|length| length <= chunk.durable);
        let is_done = chunk.state == State::Final || (chunk.state == State::Closed && !is_cut);
        if is_done {
            return chunk.durable;
        }
        let at = length.unwrap_or(u32::MAX).min(chunk.durable);
        chunk.state = if is_cut { State::Final } else { State::Closed };
        (chunk.durable, chunk.accepted, chunk.journaled_length) = (at, at, at);
        let freed = chunk.runs.shrink_to(at);
        chunk.usable_extents = chunk.runs.extents();
        let end = if is_cut { End::Final } else { End::Closed };
        self.open.remove(&id);
        self.emit(Record::Seal { chunk: id, length: at, end });
        self.after(After::Retire(freed));
        at
    }

    /// Deletes. Answers through `op` once the journal knows.
    pub(crate) fn delete(&mut self, op: OpId, id: ChunkId) {
        if let Err(error) = self.check_failed() {
            return self.answer(op, Err(error));
        }
        self.bury(id);
        self.drop_restore(id);
        self.journal_creation(id);
        if let Some(mut chunk) = self.chunks.remove(&id) {
            self.open.remove(&id);
            let (ops, bytes) = chunk.drop_units(0);
            self.append_bytes -= bytes;
            let seals = chunk.seals.drain(..).filter_map(|(op, _)| op);
            let waiting: Vec<OpId> = ops.into_iter().chain(seals).chain(chunk.late.drain(..)).collect();
            waiting.into_iter().for_each(|op| self.answer(op, Err(Error::Unknown)));
            if chunk.is_journaled {
                self.emit(Record::Delete { chunk: id });
                self.after(After::Retire(chunk.runs.as_slice().to_vec()));
            }
        }
        self.after(After::Answer(op, Ok(Response::Delete)));
    }
}
