//! The order of writes: which request becomes part of which unit, and what is done in which order once units come back.
//!
//! ```text
//!  submit ─▶ queue ─▶ unit (Send) ─▶ … appended … ─▶ resolved ─▶ in log order: Apply, then Answer
//!              ▲                                        │ full
//!              └────────── retry, in order ◀────────────┘
//! ```
//! A unit is sent as soon as there is a place for it; what comes while all places are taken shares the next unit. Units
//! are applied and answered in the order of their sequences, however their appends resolve. A sequence is never used
//! twice: a unit that failed may still be found by a later recovery, at its own place.

use crate::BlockError;
use crate::record::{RECORDS_MAX, UNIT_BLOCKS_MAX, WriteRecord};
use api_types::Rule;
use api_types::checksum::crc32c;
use api_types::limits::BLOCK_BYTES;
use bytes::Bytes;
use client_stream::Position;
use std::collections::{BTreeMap, VecDeque};

/// What a unit's append came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Committed.
    Written(Position),
    /// No space: to be tried again, or given up.
    Full,
    /// Failed for good.
    Failed(BlockError),
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Append a unit with these records and data.
    Send { sequence: u64, requests: Vec<u64>, records: Vec<WriteRecord>, data: Vec<Bytes> },
    /// Change the map.
    Apply { position: Position, records: Vec<WriteRecord> },
    /// Tell whoever asked.
    Answer { request: u64, result: Result<(), BlockError> },
    /// Nothing is sent any more until [`Sequencer::resume`] or [`Sequencer::give_up`].
    Stalled,
}

struct Part {
    request: u64,
    record: WriteRecord,
    data: Option<Bytes>,
}

struct Flight {
    sequence: u64,
    parts: Vec<Part>,
    outcome: Option<Outcome>,
}

struct Progress {
    parts: u32,
    error: Option<BlockError>,
}

/// A range without data that couldn't be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlogged {
    pub(crate) request: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// See the module. Owned by one thread; no clock, no I/O.
pub(crate) struct Sequencer {
    window: usize,
    next_sequence: u64,
    resolved: u64,
    queue: VecDeque<Part>,
    retry: VecDeque<Part>,
    flights: VecDeque<Flight>,
    requests: BTreeMap<u64, Progress>,
    queued_bytes: u64,
    stalled: bool,
    out: VecDeque<Command>,
}

impl Sequencer {
    /// Numbers units from above `last_sequence`; at most `window` of them are under way.
    pub(crate) fn new(last_sequence: u64, window: usize) -> Self {
        Sequencer {
            window: window.max(1),
            next_sequence: last_sequence + 1,
            resolved: last_sequence,
            queue: VecDeque::new(),
            retry: VecDeque::new(),
            flights: VecDeque::new(),
            requests: BTreeMap::new(),
            queued_bytes: 0,
            stalled: false,
            out: VecDeque::new(),
        }
    }

    /// Takes a write. Up to one unit's worth of data it is atomic; a longer one is cut.
    pub(crate) fn write(&mut self, request: u64, first: u64, data: &Bytes) {
        let unit = (UNIT_BLOCKS_MAX * BLOCK_BYTES) as usize;
        let mut parts = 0;
        for (step, start) in (0..data.len()).step_by(unit).enumerate() {
            let piece = data.slice(start..data.len().min(start + unit));
            let crcs: Vec<u32> = piece.chunks(BLOCK_BYTES as usize).map(crc32c).collect();
            let first = first + step as u64 * u64::from(UNIT_BLOCKS_MAX);
            let record = WriteRecord { first, count: crcs.len() as u32, crcs: Some(crcs) };
            self.queued_bytes += piece.len() as u64;
            self.queue.push_back(Part { request, record, data: Some(piece) });
            parts += 1;
        }
        self.requests.insert(request, Progress { parts, error: None });
        self.fill();
    }

    /// Takes a range that reads as zeros from then on.
    pub(crate) fn forget(&mut self, request: u64, first: u64, count: u32) {
        self.queue.push_back(Part { request, record: WriteRecord { first, count, crcs: None }, data: None });
        self.requests.insert(request, Progress { parts: 1, error: None });
        self.fill();
    }

    /// Takes what an append came to, in any order.
    pub(crate) fn resolved(&mut self, sequence: u64, outcome: Outcome) {
        if let Some(at) = self.flights.iter().position(|flight| flight.sequence == sequence) {
            self.flights[at].outcome = Some(outcome);
            if !Rule::ApplyInLogOrder.is_kept() {
                self.flights.swap(0, at);
            }
        }
        while self.flights.front().is_some_and(|flight| flight.outcome.is_some()) {
            let Some(Flight { sequence, parts, outcome }) = self.flights.pop_front() else { break };
            self.resolved = sequence;
            match outcome {
                Some(Outcome::Written(position)) => self.written(position, parts),
                Some(Outcome::Full) => self.full(parts),
                Some(Outcome::Failed(error)) => {
                    for part in parts {
                        self.finish(part.request, Err(error.clone()));
                    }
                }
                None => {}
            }
        }
        self.fill();
    }

    fn written(&mut self, position: Position, parts: Vec<Part>) {
        let records = parts.iter().map(|part| part.record.clone()).collect();
        self.out.push_back(Command::Apply { position, records });
        for part in parts {
            self.finish(part.request, Ok(()));
        }
    }

    fn full(&mut self, parts: Vec<Part>) {
        self.queued_bytes += parts.iter().filter_map(|part| part.data.as_ref()).map(|data| data.len() as u64).sum::<u64>();
        self.retry.extend(parts);
        if !std::mem::replace(&mut self.stalled, true) {
            self.out.push_back(Command::Stalled);
        }
    }

    /// One part of a request is done.
    pub(crate) fn finish(&mut self, request: u64, result: Result<(), BlockError>) {
        let Some(progress) = self.requests.get_mut(&request) else { return };
        progress.parts -= 1;
        if let (Err(error), None) = (result, &progress.error) {
            progress.error = Some(error);
        }
        if progress.parts == 0 {
            let result = self.requests.remove(&request).and_then(|progress| progress.error).map_or(Ok(()), Err);
            self.out.push_back(Command::Answer { request, result });
        }
    }

    fn fill(&mut self) {
        while !self.stalled && self.flights.len() < self.window && !(self.queue.is_empty() && self.retry.is_empty()) {
            let mut parts: Vec<Part> = Vec::new();
            let mut blocks = 0;
            while parts.len() < RECORDS_MAX {
                let source = if self.retry.is_empty() { &mut self.queue } else { &mut self.retry };
                let Some(next) = source.front() else { break };
                let more = if next.data.is_some() { next.record.count } else { 0 };
                if blocks + more > UNIT_BLOCKS_MAX {
                    break;
                }
                blocks += more;
                parts.extend(source.pop_front());
            }
            let data: Vec<Bytes> = parts.iter().filter_map(|part| part.data.clone()).collect();
            self.queued_bytes -= data.iter().map(|data| data.len() as u64).sum::<u64>();
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            let records = parts.iter().map(|part| part.record.clone()).collect();
            let requests = parts.iter().map(|part| part.request).collect();
            self.flights.push_back(Flight { sequence, parts, outcome: None });
            self.out.push_back(Command::Send { sequence, requests, records, data });
        }
    }

    /// The next thing to do.
    pub(crate) fn next(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// Sends again what found no space.
    pub(crate) fn resume(&mut self) {
        self.stalled = false;
        self.fill();
    }

    /// Answers everything that waits for space with [`BlockError::NoSpace`].
    pub(crate) fn give_up(&mut self) {
        self.stalled = false;
        self.queued_bytes = 0;
        let waiting: Vec<Part> = self.retry.drain(..).chain(self.queue.drain(..)).collect();
        for part in waiting {
            self.finish(part.request, Err(BlockError::NoSpace));
        }
    }

    /// Takes the ranges without data out of what waits for space: they need none. Each is to be finished by the caller.
    pub(crate) fn take_unlogged(&mut self) -> Vec<Unlogged> {
        let mut taken = Vec::new();
        for queue in [&mut self.retry, &mut self.queue] {
            for part in std::mem::take(queue) {
                if part.data.is_some() {
                    queue.push_back(part);
                } else {
                    let count = u64::from(part.record.count);
                    taken.push(Unlogged { request: part.request, first: part.record.first, count });
                }
            }
        }
        taken
    }

    /// Answers every request with `error` at once. What is under way is still applied when it comes back.
    pub(crate) fn fail_all(&mut self, error: &BlockError) {
        self.queue.clear();
        self.retry.clear();
        self.queued_bytes = 0;
        self.stalled = false;
        for request in std::mem::take(&mut self.requests).into_keys() {
            self.out.push_back(Command::Answer { request, result: Err(error.clone()) });
        }
    }

    /// Waiting for space.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.queue.is_empty() && self.retry.is_empty() && self.requests.is_empty()
    }

    /// Bytes that wait to be sent.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Every unit up to this sequence was applied or has failed.
    pub(crate) fn resolved_sequence(&self) -> u64 {
        self.resolved
    }
}

#[cfg(test)]
mod tests;
