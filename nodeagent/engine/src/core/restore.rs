//! Bringing a sealed chunk back from another copy.

use super::{After, Chunk, Core, OpId, State};
use crate::extent::{Runs, extents_for};
use crate::record::Record;
use crate::space::For;
use api_types::ChunkId;
use api_types::chunk::{Error, Response};
use api_types::unit::ChunkShape;

/// Where a chunk that is being brought back goes.
#[derive(Clone, Debug)]
pub(crate) struct RestorePlan {
    pub(crate) shape: ChunkShape,
    pub(crate) length: u32,
    pub(crate) runs: Runs,
    /// Tells it from another of the same chunk.
    pub(crate) serial: u64,
}

impl Core {
    /// Takes the space. It may be written to once `op` is answered.
    pub(crate) fn begin_restore(&mut self, op: OpId, shape: ChunkShape, length: u32) -> Result<RestorePlan, Error> {
        self.check_failed()?;
        self.check_restore(&shape, length)?;
        let id = shape.chunk;
        let mut runs = Runs::default();
        let need = extents_for(length).max(1);
        while runs.extents() < need {
            let Some(run) = self.space.take(need - runs.extents(), For::Repair) else {
                let given = self.space.retire(runs.as_slice().to_vec());
                self.check(given);
                return Err(Error::Full);
            };
            runs.push(run);
        }
        runs.as_slice().to_vec().into_iter().for_each(|run| self.emit(Record::RestoreRun { chunk: id, run }));
        let plan = RestorePlan { shape, length, runs, serial: self.serial() };
        self.restores.insert(id, plan.clone());
        self.after(After::Answer(op, Ok(Response::Delete)));
        Ok(plan)
    }

    fn check_restore(&self, shape: &ChunkShape, length: u32) -> Result<(), Error> {
        let alignment = shape.alignment.bytes();
        if length > shape.capacity || !length.is_multiple_of(alignment) || shape.chunk == ChunkId(0) {
            return Err(Error::Invalid(format!("a restore of {length} bytes with alignment {alignment}")));
        }
        if !alignment.is_multiple_of(self.limits.block_bytes) {
            return Err(Error::Invalid("the chunk's alignment isn't a multiple of the device's block".into()));
        }
        if self.restores.contains_key(&shape.chunk) {
            return Err(Error::Busy);
        }
        match self.chunks.get(&shape.chunk) {
            None => Ok(()),
            Some(chunk) if chunk.shape != *shape => Err(Error::Invalid("the chunk here has another shape".into())),
            Some(chunk) if matches!(chunk.state, State::Open | State::Closing) => Err(Error::Busy),
            Some(chunk) if chunk.durable >= length => Err(Error::Conflict),
            Some(_) => Ok(()),
        }
    }

    /// The restore is still the one that was begun.
    pub(crate) fn has_restore(&self, id: ChunkId, serial: u64) -> bool {
        self.restores.get(&id).is_some_and(|plan| plan.serial == serial)
    }

    /// All of it is durable and verified: it becomes the chunk. Answers through `op`.
    pub(crate) fn finish_restore(&mut self, op: OpId, id: ChunkId, serial: u64) {
        if let Err(error) = self.check_failed() {
            return self.answer(op, Err(error));
        }
        if !self.has_restore(id, serial) {
            return self.answer(op, Err(Error::Unknown));
        }
        let Some(plan) = self.restores.remove(&id) else { return };
        let serial = self.serial();
        let chunk = Chunk::closed(plan.shape, serial, plan.runs, State::Final, plan.length);
        let old = self.chunks.insert(id, chunk);
        self.emit(Record::Restored { shape: plan.shape, length: plan.length });
        if let Some(old) = old {
            self.after(After::Retire(old.runs.as_slice().to_vec()));
        }
        self.after(After::Answer(op, Ok(Response::Delete)));
    }

    /// The restore is given up.
    pub(crate) fn abandon_restore(&mut self, id: ChunkId, serial: u64) {
        if self.has_restore(id, serial) {
            self.drop_restore(id);
        }
    }

    pub(super) fn drop_restore(&mut self, id: ChunkId) {
        if let Some(plan) = self.restores.remove(&id) {
            self.emit(Record::RestoreDrop { chunk: id });
            self.after(After::Retire(plan.runs.as_slice().to_vec()));
        }
    }
}
