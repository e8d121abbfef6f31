//! The chunk table: a synchronous state machine. Requests and completions come in as calls; what is to be done about
//! them goes out as [`Effect`]s, in order. No clock, no device, no journal: the shell has those.
//!
//! Order is the invariant. Effects are carried out in the order they come, records reach the journal in the order they
//! come, and whatever must not be seen before a record is durable waits in `after` for it.

mod append;
mod chunk;
mod read;
mod restore;
mod seal;
#[cfg(test)]
mod tests;

use crate::extent::{Run, TwoOwners};
use crate::image::Image;
use crate::record::{End, Record};
use crate::space::{Space, Ticket};
use api_types::chunk::{ChunkInfo, Error, Response};
use api_types::{ChunkId, Epoch, OwnerId, QosClass, Rule};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) use chunk::{Chunk, State};
pub(crate) use read::ReadPlan;
pub(crate) use restore::RestorePlan;

/// Names who waits for an answer. The shell's to choose.
pub(crate) type OpId = usize;

/// Chunks that are known to be gone or never to come, in memory only: what could still create them travels on
/// connections that die with this process.
const TOMBS_MAX: usize = 8192;
/// After so many bytes of appends the lengths of open chunks are journaled, so that a mount has little to search.
const PROGRESS_BYTES: u64 = 32 << 20;

/// A write of one unit.
#[derive(Debug)]
pub(crate) struct UnitWrite {
    pub(crate) chunk: ChunkId,
    /// Tells the chunk from an earlier one of the same name.
    pub(crate) serial: u64,
    pub(crate) start: u32,
    /// Bytes from the first extent's start, and what to write there.
    pub(crate) pieces: Vec<(u64, Bytes)>,
    pub(crate) qos: QosClass,
    pub(crate) ticket: Ticket,
}

/// What the shell must do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Write, durably; then call [`Core::written`].
    Write(UnitWrite),
    /// Append to the journal; when durable, call [`Core::durable`].
    Record(Record),
    /// Answer who asked.
    Answer(OpId, Result<Response, Error>),
    /// A unit stands at this place already: answer whether it is this one.
    Compare { op: OpId, plan: ReadPlan, unit: Bytes, length: u32 },
    /// Reserve extents.
    Refill,
    /// Trim what was freed.
    Trim,
}

/// What happens once the records before it are durable.
#[derive(Debug)]
enum After {
    Usable { chunk: ChunkId, serial: u64, extents: u32 },
    Reserved(Vec<u32>),
    Retire(Vec<Run>),
    Answer(OpId, Result<Response, Error>),
}

impl After {
    /// Must not happen before the records are durable: nothing must.
    fn waits(&self) -> bool {
        match self {
            After::Answer(..) => Rule::JournalFirst.is_kept(),
            After::Retire(_) | After::Usable { .. } | After::Reserved(_) => true,
        }
    }
}

/// Bounds of one store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) block_bytes: u32,
    pub(crate) append_bytes_max: u64,
    pub(crate) append_limit: Duration,
    pub(crate) floors_max: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    chunks: BTreeMap<ChunkId, Chunk>,
    /// Chunks that are open or being sealed.
    open: BTreeSet<ChunkId>,
    floors: BTreeMap<OwnerId, Epoch>,
    tombs: (BTreeSet<ChunkId>, VecDeque<ChunkId>),
    restores: BTreeMap<ChunkId, RestorePlan>,
    space: Space,
    effects: VecDeque<Effect>,
    /// Counts records: how many were emitted, and how many of them are durable.
    emitted: u64,
    durable: u64,
    after: VecDeque<(u64, After)>,
    next_serial: u64,
    append_bytes: u64,
    unjournaled_bytes: u64,
    /// Why nothing can be changed any more.
    failed: Option<String>,
}

impl Core {
    /// A core for what the journal tells. All chunks must be closed and nothing reserved.
    pub(crate) fn new(image: &Image, extents: u32, reserved: usize, trims: bool, limits: Limits) -> Result<Core, TwoOwners> {
        let space = Space::new(extents, image.held(), reserved, trims)?;
        let mut core = Core {
            limits,
            chunks: BTreeMap::new(),
            open: BTreeSet::new(),
            floors: image.floors.clone(),
            tombs: Default::default(),
            restores: BTreeMap::new(),
            space,
            effects: VecDeque::new(),
            emitted: 0,
            durable: 0,
            after: VecDeque::new(),
            next_serial: 0,
            append_bytes: 0,
            unjournaled_bytes: 0,
            failed: None,
        };
        for (id, entry) in &image.chunks {
            let state = if entry.end == End::Final { State::Final } else { State::Closed };
            let serial = core.serial();
            core.chunks.insert(*id, Chunk::closed(entry.shape, serial, entry.runs.clone(), state, entry.length));
        }
        Ok(core)
    }

    /// The next thing to do.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The first `count` records are durable.
    pub(crate) fn durable(&mut self, count: u64) {
        self.durable = count;
        while self.after.front().is_some_and(|(ordinal, _)| *ordinal <= count) {
            let Some((_, action)) = self.after.pop_front() else { break };
            self.run_after(action);
        }
        self.want_refill();
    }

    /// The journal can't be written: nothing is changed any more, and who waits for it is told.
    pub(crate) fn fail(&mut self, why: String) {
        let error = Error::Io(why.clone());
        self.failed = Some(why);
        for (_, action) in std::mem::take(&mut self.after) {
            if let After::Answer(op, _) = action {
                self.answer(op, Err(error.clone()));
            }
        }
        for id in self.open.clone() {
            self.fail_waiting(id, &error);
        }
    }

    /// Nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let busy = |id: &ChunkId| self.chunks.get(id).is_some_and(|chunk| !chunk.units.is_empty() || chunk.in_flight > 0);
        self.after.is_empty() && self.effects.is_empty() && !self.open.iter().any(busy)
    }

    /// What a chunk is.
    pub(crate) fn info(&self, id: ChunkId) -> Result<ChunkInfo, Error> {
        self.chunks.get(&id).map(Chunk::info).ok_or(Error::Unknown)
    }

    /// Chunks above `after`.
    pub(crate) fn infos(&self, after: ChunkId, count: usize) -> Vec<ChunkInfo> {
        let above = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        self.chunks.range(above).take(count).map(|(_, chunk)| chunk.info()).collect()
    }

    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn append_bytes(&self) -> u64 {
        self.append_bytes
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// Journals how long the open chunks are.
    pub(crate) fn journal_progress(&mut self) {
        self.unjournaled_bytes = 0;
        for id in self.open.clone() {
            let Some(chunk) = self.chunks.get_mut(&id) else { continue };
            if chunk.durable <= chunk.journaled_length {
                continue;
            }
            if chunk.is_journaled {
                chunk.journaled_length = chunk.durable;
                let length = chunk.durable;
                self.emit(Record::Progress { chunk: id, length });
            } else {
                self.journal_creation(id);
            }
        }
    }

    /// Extents that the shell has to make ready for [`Core::reserve`].
    pub(crate) fn take_refill(&mut self) -> Vec<u32> {
        if self.failed.is_some() { Vec::new() } else { self.space.take_refill() }
    }

    /// The extents hold nothing that could be taken for a unit.
    pub(crate) fn reserve(&mut self, extents: Vec<u32>) {
        for extent in &extents {
            self.emit(Record::Reserve { extent: *extent });
        }
        self.after(After::Reserved(extents));
    }

    /// The extents couldn't be made ready.
    pub(crate) fn refill_failed(&mut self, extents: &[u32]) {
        let given = self.space.refill_failed(extents);
        self.check(given);
    }

    pub(crate) fn take_trim(&mut self) -> Option<Run> {
        self.space.take_trim()
    }

    pub(crate) fn trimmed(&mut self, run: Run) {
        let given = self.space.trimmed(run);
        self.check(given);
    }

    /// A request that touched extents came back.
    pub(crate) fn finish_ticket(&mut self, ticket: Ticket) {
        let released = self.space.finish(ticket);
        self.check(released);
    }

    /// Who has waited too long for the device is told so; what was asked may still be done. To be called once a second.
    pub(crate) fn expire(&mut self, now: Duration) {
        for id in self.open.clone() {
            let Some(chunk) = self.chunks.get_mut(&id) else { continue };
            for op in chunk.expired(now, self.limits.append_limit) {
                self.answer(op, Err(Error::Deadline));
            }
        }
    }

    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    fn emit(&mut self, record: Record) {
        self.emitted += 1;
        self.effects.push_back(Effect::Record(record));
    }

    fn answer(&mut self, op: OpId, result: Result<Response, Error>) {
        self.effects.push_back(Effect::Answer(op, result));
    }

    /// Runs an action once all records emitted so far are durable.
    fn after(&mut self, action: After) {
        if let (Some(why), After::Answer(op, _)) = (&self.failed, &action) {
            let (op, error) = (*op, Error::Io(why.clone()));
            self.answer(op, Err(error));
        } else if self.failed.is_none() && (self.durable == self.emitted || !action.waits()) {
            self.run_after(action);
        } else if self.failed.is_none() {
            self.after.push_back((self.emitted, action));
        }
    }

    /// Answers once all that was asked before is in the journal.
    pub(crate) fn barrier(&mut self, op: OpId) {
        self.after(After::Answer(op, Ok(Response::Delete)));
    }

    /// A request outside of appends and planned reads touches extents.
    pub(crate) fn begin_ticket(&mut self) -> Ticket {
        self.space.begin()
    }

    fn run_after(&mut self, action: After) {
        match action {
            After::Usable { chunk, serial, extents } => self.run_usable(chunk, serial, extents),
            After::Reserved(extents) => {
                self.space.refilled(extents);
            }
            After::Retire(runs) => {
                let released = self.space.retire(runs);
                self.check(released);
                if self.space.wants_trim() {
                    self.effects.push_back(Effect::Trim);
                }
            }
            After::Answer(op, result) => self.answer(op, result),
        }
    }

    fn check(&mut self, result: Result<(), TwoOwners>) {
        if let Err(two_owners) = result {
            self.fail(format!("space accounting is damaged, nothing is changed any more: {two_owners}"));
        }
    }

    fn check_failed(&self) -> Result<(), Error> {
        self.failed.as_ref().map_or(Ok(()), |why| Err(Error::Io(why.clone())))
    }

    fn want_refill(&mut self) {
        if self.failed.is_none() && self.space.wants_refill() {
            self.effects.push_back(Effect::Refill);
        }
    }

    fn bury(&mut self, id: ChunkId) {
        let (set, order) = &mut self.tombs;
        if set.insert(id) {
            order.push_back(id);
            if order.len() > TOMBS_MAX
                && let Some(oldest) = order.pop_front()
            {
                set.remove(&oldest);
            }
        }
    }

    fn is_buried(&self, id: ChunkId) -> bool {
        self.tombs.0.contains(&id)
    }

    fn floor(&self, owner: OwnerId) -> Epoch {
        self.floors.get(&owner).copied().unwrap_or_default()
    }

    /// Makes sure that the journal knows of a chunk that only its first footer names so far.
    fn journal_creation(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id).filter(|chunk| !chunk.is_journaled) else { return };
        let Some(first) = chunk.runs.as_slice().first() else { return };
        let record = Record::Create { shape: chunk.shape, extent: first.start, length: chunk.durable };
        chunk.is_journaled = true;
        chunk.journaled_length = chunk.durable;
        self.emit(record);
    }
}
