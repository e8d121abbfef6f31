//! What a stream's writer decides, without clock, socket or chance: events in, commands out. The table of states and
//! events is in `docs/protocol.md`.
//!
//! ```text
//!   append ─▶ queue ─▶ open chunk ──(full · trouble · stalled)──▶ closing chunks ─▶ recorded
//!                        ▲                │ uncommitted units go back to the queue
//!                     spares ◀── grants   ▼
//! ```
//! Invariants: a byte of a chunk is written once, so all copies are prefixes of one another; the length at which a chunk
//! is left never changes once it is decided; appends complete in the order in which they were asked.

mod chunk;
mod closing;
mod ending;
mod event;
mod spares;

pub use chunk::Ticket;
pub use event::{Command, Event, WriterStats};

use crate::writer::{Position, WriterOptions};
use crate::{Config, Error};
use api_types::checksum::FooterSeed;
use api_types::chunk as store;
use api_types::limits::{UNIT_DATA_BYTES_MAX, UNIT_TRAILER_BYTES_MAX};
use api_types::master::{self, ChunkRecord, Grant};
use api_types::{Rule, StreamId};
use bytes::Bytes;
use chunk::{Chunk, Payload, Verdict};
use closing::Closing;
use spares::{Need, Shunned, Spares};
use std::collections::VecDeque;
use std::time::Duration;

/// An append that waits for its place.
#[derive(Debug)]
pub(super) struct Pending {
    id: u64,
    data_bytes: u32,
    trailer_bytes: u32,
    payload: Payload,
}

impl Pending {
    fn bytes(&self) -> u64 {
        u64::from(self.data_bytes) + u64::from(self.trailer_bytes)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closure {
    Open,
    Asked { since: Duration },
    Done,
}

/// See the module. Every event is handled in time proportional to the number of commands it causes, copies and closing
/// chunks being few.
#[derive(Debug)]
pub struct Appender {
    stream: StreamId,
    options: WriterOptions,
    config: Config,
    seed: FooterSeed,
    queue: VecDeque<Pending>,
    queued_bytes: u64,
    open: Option<Chunk>,
    closing: Vec<Closing>,
    spares: Spares,
    shunned: Shunned,
    /// When something was last committed, or when the first append came after all had been.
    progress: Duration,
    /// The open chunk's stall was looked at then.
    stall_seen: Duration,
    /// A chunk on devices that aren't well isn't taken before this.
    desperate_after: Duration,
    stopped: Option<Error>,
    closure: Closure,
    committed: Option<Position>,
    stats: WriterStats,
}

impl Appender {
    /// A writer without any chunk.
    #[must_use]
    pub fn new(stream: StreamId, options: WriterOptions, config: Config, seed: FooterSeed, now: Duration) -> Self {
        Appender {
            stream,
            options,
            config,
            seed,
            queue: VecDeque::new(),
            queued_bytes: 0,
            open: None,
            closing: Vec::new(),
            spares: Spares::default(),
            shunned: Shunned::default(),
            progress: now,
            stall_seen: now,
            desperate_after: now,
            stopped: None,
            closure: Closure::Open,
            committed: None,
            stats: WriterStats::default(),
        }
    }

    /// Takes an event at the time `now`, and adds what has to be done to `out`, in this order.
    pub fn handle(&mut self, now: Duration, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Append { id, data, trailer } => self.append(id, data, trailer, now, out),
            Event::Appended { ticket, result } => self.appended(ticket, result, now, out),
            Event::Sealed { chunk, device, result } => {
                let closing = self.closing.iter_mut().find(|closing| closing.id() == chunk);
                if closing.is_some_and(|closing| closing.sealed(device, result, &self.config, now)) {
                    self.stop(Error::Fenced, out);
                }
            }
            Event::Granted(result) => self.granted(result, now, out),
            Event::Recorded { chunk, result } => self.recorded(chunk, result, now, out),
            Event::Deleted { chunk, result } => self.deleted(chunk, &result, now),
            Event::Listed(listed) => self.shunned.set_listed(listed),
            Event::Close if self.closure == Closure::Open => self.closure = Closure::Asked { since: now },
            Event::Close | Event::Tick => {}
        }
        self.advance(now, out);
    }

    /// When to send [`Event::Tick`], if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if self.stopped.is_some() || self.closure == Closure::Done {
            return None;
        }
        let open = self.open.as_ref().and_then(|open| {
            let stall = open.stalled_since().map(|since| since.max(self.stall_seen) + self.config.commit_timeout);
            [stall, open.deadline(&self.config)].into_iter().flatten().min()
        });
        let waiting = self.waiting().then_some(self.progress + self.config.append_give_up);
        let desperate =
            (self.open.is_none() && !self.queue.is_empty() && !self.spares.is_empty()).then_some(self.desperate_after);
        let closing = self.closing.iter().filter_map(|closing| closing.deadline(&self.config)).min();
        let close = match self.closure {
            Closure::Asked { since } => Some(since + self.config.append_give_up),
            _ => None,
        };
        let asks = self.closure == Closure::Open || !self.queue.is_empty();
        let spares = asks.then(|| self.spares.deadline(self.wants_better(), &self.config)).flatten();
        [open, waiting, desperate, closing, spares, close, self.shunned.next_change()].into_iter().flatten().min()
    }

    /// Where the last committed unit stands.
    #[must_use]
    pub fn committed(&self) -> Option<Position> {
        self.committed
    }

    /// Why nothing can succeed any more.
    #[must_use]
    pub fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    /// The open chunk and its committed length.
    #[must_use]
    pub fn open_chunk(&self) -> Option<(&ChunkRecord, u32)> {
        self.open.as_ref().map(|open| (&open.record, open.committed))
    }

    /// See [`WriterStats`].
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        WriterStats { chased_bytes: self.chased_bytes(), ..self.stats }
    }

    fn append(&mut self, id: u64, data: Vec<Bytes>, trailer: Bytes, now: Duration, out: &mut Vec<Command>) {
        let data_bytes = data.iter().map(Bytes::len).sum::<usize>();
        let refusal = if let Some(error) = &self.stopped {
            Some(error.clone())
        } else if self.closure != Closure::Open {
            Some(Error::Closed)
        } else if data_bytes > UNIT_DATA_BYTES_MAX as usize {
            Some(Error::Invalid(format!("data of {data_bytes} bytes: at most {UNIT_DATA_BYTES_MAX} fit one unit")))
        } else if trailer.len() > UNIT_TRAILER_BYTES_MAX as usize {
            Some(Error::Invalid(format!("trailer of {} bytes: at most {UNIT_TRAILER_BYTES_MAX} fit one unit", trailer.len())))
        } else if self.queued_bytes + data_bytes as u64 > self.config.queued_bytes_max && !self.queue.is_empty() {
            Some(Error::Unavailable(format!("{} bytes wait to be sent already", self.queued_bytes)))
        } else {
            None
        };
        if let Some(error) = refusal {
            out.push(Command::Complete { id, result: Err(error) });
            return;
        }
        if !self.waiting() {
            self.progress = now;
        }
        let trailer_bytes = trailer.len() as u32;
        self.push_back(Pending { id, data_bytes: data_bytes as u32, trailer_bytes, payload: Payload::Parts { data, trailer } });
    }

    fn push_back(&mut self, pending: Pending) {
        self.queued_bytes += pending.bytes();
        self.queue.push_back(pending);
    }

    fn appended(&mut self, ticket: Ticket, result: Result<u32, store::Error>, now: Duration, out: &mut Vec<Command>) {
        let open = self.open.iter_mut().find(|open| open.id() == ticket.chunk);
        let is_open = open.is_some();
        let closing = self.closing.iter_mut().map(|closing| &mut closing.chunk);
        let Some(chunk) = open.or_else(|| closing.into_iter().find(|chunk| chunk.id() == ticket.chunk)) else { return };
        match chunk.answered(ticket, result, &self.config, now) {
            Verdict::Fine | Verdict::Trouble => {}
            Verdict::Shun => {
                self.stats.copies_given_up += 1;
                self.shunned.add(ticket.device, now);
            }
            Verdict::Fenced => return self.stop(Error::Fenced, out),
        }
        // The length of a chunk that was left is decided: late answers only tell which copies are whole.
        if is_open && chunk.commit(self.options.replication.min_copy, now) {
            self.complete(now, out);
        } else {
            chunk.trim();
        }
    }

    /// Completes what the open chunk has committed.
    fn complete(&mut self, now: Duration, out: &mut Vec<Command>) {
        let Some(open) = &mut self.open else { return };
        let (chunk, index) = (open.id(), open.record.index);
        let done = self.committed.filter(|position| position.chunk == chunk).map_or(0, |position| position.end);
        let from = open.units.partition_point(|unit| unit.end <= done);
        let first = out.len();
        for unit in open.units.range(from..).take_while(|unit| unit.end <= open.committed) {
            let position = Position { chunk, index, offset: unit.start, end: unit.end };
            self.committed = Some(position);
            self.stats.commits += 1;
            out.push(Command::Complete { id: unit.id, result: Ok(position) });
        }
        if !Rule::ApplyInLogOrder.is_kept() {
            out[first..].reverse();
        }
        self.progress = now;
        open.trim();
    }

    fn granted(&mut self, result: Result<Vec<ChunkRecord>, master::Error>, now: Duration, out: &mut Vec<Command>) {
        match result {
            Ok(records) if !records.is_empty() => self.spares.add(records),
            Ok(_) => self.spares.refused(&self.config, now),
            Err(master::Error::Fenced { .. }) => self.stop(Error::Fenced, out),
            Err(error) => {
                self.spares.refused(&self.config, now);
                let stuck = self.open.is_none() && self.spares.is_empty();
                match error {
                    master::Error::Unavailable(_) | master::Error::Fenced { .. } => {}
                    // What is queued can't be placed and should not wait for space that may never come.
                    error if stuck => self.fail_pending(&error.into(), now, out),
                    _ => {}
                }
            }
        }
    }

    /// Something was appended and isn't committed.
    fn waiting(&self) -> bool {
        !self.queue.is_empty() || self.open.as_ref().is_some_and(|open| open.end > open.committed)
    }

    fn chased_bytes(&self) -> u64 {
        let chunks = self.open.iter().chain(self.closing.iter().map(|closing| &closing.chunk));
        chunks.map(Chunk::chased_bytes).sum()
    }

    /// Some copy of the open chunk failed, or is behind on a device that isn't well.
    fn troubled(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.copies.iter().any(|copy| copy.troubled || (copy.acked < open.committed && self.shunned.has(copy.device)))
        })
    }

    /// A spare on other devices than these would be of use.
    fn wants_better(&self) -> bool {
        self.troubled() || (self.open.is_none() && !self.queue.is_empty())
    }

    fn advance(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.stopped.is_some() || self.closure == Closure::Done {
            return;
        }
        self.shunned.forget_old(now);
        self.judge(now, out);
        self.place(now, out);
        self.send(now, out);
        // Before the closing chunks are driven, as it may add one to them.
        if self.waiting() && now >= self.progress + self.config.append_give_up {
            let text = self.why_stuck();
            self.fail_pending(&Error::Unavailable(text), now, out);
        }
        self.drive_closing(now, out);
        self.ask_grant(now, out);
        if let Closure::Asked { since } = self.closure {
            self.drive_close(since, now, out);
        }
    }

    /// Decides whether the open chunk is to be left.
    fn judge(&mut self, now: Duration, out: &mut Vec<Command>) {
        let Some(open) = &mut self.open else { return };
        if open.judge_silence(&self.config, now) {
            self.stats.copies_given_up += 1;
        }
        self.bound_chasing(now, out);
        let Some(open) = &self.open else { return };
        let min_copy = usize::from(self.options.replication.min_copy);
        let hopeless = open.pursued() < min_copy;
        let stalled = open.stalled_since().is_some_and(|since| now >= since.max(self.stall_seen) + self.config.commit_timeout);
        if hopeless {
            self.leave_open(now);
        } else if stalled {
            self.stall_seen = now;
            for device in open.laggards() {
                self.shunned.add(device, now);
                out.push(Command::Suspect(device));
            }
            self.replace_open(Need::Usable, now, out);
        } else if self.troubled() {
            self.replace_open(Need::Well, now, out);
        }
    }

    /// Keeps the memory for copies that are behind within its bound: at half of it the writer goes to other devices if
    /// there are any, beyond it the copy that is furthest behind is given up, of the oldest chunk first.
    fn bound_chasing(&mut self, now: Duration, out: &mut Vec<Command>) {
        if let Some(open) = &self.open
            && open.chased_bytes() > self.config.chase_bytes_max / 2
            && let Some(device) = open.slowest()
            && !self.shunned.has(device)
        {
            self.shunned.add(device, now);
            out.push(Command::Suspect(device));
            self.replace_open(Need::Well, now, out);
        }
        while self.chased_bytes() > self.config.chase_bytes_max {
            let mut chunks = self.closing.iter_mut().map(|closing| &mut closing.chunk).chain(self.open.as_mut());
            let Some(chunk) = chunks.find(|chunk| chunk.slowest().is_some() && chunk.chased_bytes() > 0) else { return };
            chunk.give_up_slowest();
            chunk.trim();
            self.stats.copies_given_up += 1;
        }
    }

    /// Leaves the open chunk if there is a spare that satisfies `need`.
    fn replace_open(&mut self, need: Need, now: Duration, out: &mut Vec<Command>) {
        if self.closing.iter().filter(|closing| closing.busy()).count() >= self.config.closing_max as usize {
            return;
        }
        let Some((record, skipped)) = self.spares.take(need, self.options.replication.min_copy, &self.shunned) else { return };
        self.leave_open(now);
        self.open_spare(record, skipped, now, out);
    }

    fn open_spare(&mut self, record: ChunkRecord, skipped: Vec<ChunkRecord>, now: Duration, out: &mut Vec<Command>) {
        self.give_back(skipped, now);
        self.stall_seen = now;
        out.push(Command::Opened(record.clone()));
        self.open = Some(Chunk::new(record, now));
    }

    /// Gives queued appends their places, as far as the bounds allow.
    fn place(&mut self, now: Duration, out: &mut Vec<Command>) {
        while let Some(head) = self.queue.front() {
            let Some(open) = &mut self.open else {
                if !self.take_spare(now, out) {
                    return;
                }
                continue;
            };
            if !open.fits(head) {
                if open.committed < open.end {
                    return;
                }
                if open.end == 0 {
                    let error = Error::Invalid(format!("a unit of {} bytes doesn't fit an empty chunk", head.bytes()));
                    return self.fail_pending(&error, now, out);
                }
                self.leave_open(now);
                continue;
            }
            let (units, bytes) = open.uncommitted();
            let length = open.unit_bytes(head);
            if units >= self.config.in_flight_units_max || (units > 0 && bytes + length > self.config.in_flight_bytes_max) {
                return;
            }
            let Some(head) = self.queue.pop_front() else { return };
            self.queued_bytes -= head.bytes();
            open.place(head, self.seed, now);
        }
    }

    fn take_spare(&mut self, now: Duration, out: &mut Vec<Command>) -> bool {
        let need = if now >= self.desperate_after { Need::Any } else { Need::Usable };
        let Some((record, skipped)) = self.spares.take(need, self.options.replication.min_copy, &self.shunned) else {
            return false;
        };
        self.desperate_after = now + self.config.commit_timeout;
        self.open_spare(record, skipped, now, out);
        true
    }

    fn send(&mut self, now: Duration, out: &mut Vec<Command>) {
        let chunks = self.closing.iter_mut().map(|closing| &mut closing.chunk).chain(self.open.as_mut());
        for chunk in chunks {
            while let Some((ticket, append)) = chunk.next_send(self.options.epoch, self.options.qos, &self.config, now) {
                out.push(Command::Append { device: ticket.device, ticket, append });
            }
        }
    }

    fn ask_grant(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.closure != Closure::Open && self.queue.is_empty() {
            return;
        }
        let better = self.wants_better();
        let count = self.spares.count_to_ask(better, &self.config, now);
        if count == 0 {
            return;
        }
        self.spares.note_asked(better, now);
        out.push(Command::Grant(Grant {
            stream: self.stream,
            epoch: self.options.epoch,
            count,
            capacity: self.options.chunk_bytes,
            class: self.options.class,
            avoid: self.shunned.all(),
        }));
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
