//! Writes, discards and flushes: through the door, into the sequencer, out of the stream, into the map.

use crate::BlockError;
use crate::chunks::{Aim, Pace, pace, write_delay};
use crate::error::block_error;
use crate::leaves::{Pins, leaves_of};
use crate::map::BRANCH_BLOCKS;
use crate::record::{Change, Trailer, WriteRecord, walk_writes};
use crate::root::{Log, LogPosition};
use crate::sequencer::{Command, Outcome, Unlogged};
use crate::stats::{Operation, Trace};
use crate::volume::{Inner, Phase, State};
use api_types::QosClass;
use bytes::Bytes;
use client_stream::{Error as StreamError, Position};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use std::rc::Rc;
use std::time::Duration;

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Tries of a checkpoint that is to make a discard durable in a full pool.
const UNLOGGED_TRIES: u32 = 4;

type Answer = Result<(), BlockError>;

/// One request under way.
pub(crate) struct Waiter {
    sender: oneshot::Sender<Answer>,
    /// The leaves that the request will change.
    _pins: Pins,
    trace: Trace,
    /// When the first unit of it was sent.
    sent: Option<Duration>,
}

fn fresh_trace(inner: &Inner, operation: Operation, offset: u64, length: u64) -> Trace {
    let (start, zero) = (inner.clock.now(), Duration::ZERO);
    Trace { operation, offset, length, start, throttled: zero, queued: zero, stream: zero, place: None, ok: true }
}

async fn answered(receiver: oneshot::Receiver<Answer>) -> Answer {
    receiver.await.unwrap_or(Err(BlockError::Closed))
}

impl Inner {
    /// How hard reclaim is to work now.
    pub(crate) fn pace(&self, state: &State) -> Pace {
        pace(&state.chunks, self.chunk_bytes, state.space, state.starved_since.is_some(), &self.config)
    }

    /// How long a request is held back: by its limits, and for reclaim.
    pub(crate) fn charge(&self, bytes: u64, writes: bool) -> Duration {
        let mut state = self.state.borrow_mut();
        let limited = state.limiter.charge(bytes, self.clock.now());
        if !writes {
            return limited;
        }
        let delay = write_delay(&state.chunks, self.chunk_bytes, state.space, &self.config);
        if !delay.is_zero() {
            state.stats.throttled += 1;
        }
        limited.max(delay)
    }

    pub(crate) fn write(self: &Rc<Self>, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Answer> {
        let mut trace = fresh_trace(self, Operation::Write, offset, data.len() as u64);
        let range = self.check_open().and_then(|()| self.blocks(offset, data.len() as u64));
        let (first, count) = match range {
            Ok(range) if data.len() <= WRITE_BYTES_MAX => range,
            Ok(_) => return self.refuse(trace, BlockError::Invalid("a write has at most 1 MiB")),
            Err(error) => return self.refuse(trace, error),
        };
        if count == 0 {
            return async { Ok(()) }.boxed_local();
        }
        let delay = self.charge(trace.length, true);
        let (sender, receiver) = oneshot::channel();
        let full = self.state.borrow().sequencer.queued_bytes() > self.config.queued_bytes_max;
        if delay.is_zero()
            && !full
            && let Some(pins) = self.try_pin(leaves_of(first, count))
        {
            self.submit(trace, pins, sender, |state, request| state.sequencer.write(request, first, &data));
            return answered(receiver).boxed_local();
        }
        // The slow way runs on its own, so that a caller who goes away doesn't undo the request.
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            trace.throttled = inner.hold_back(delay).await;
            match inner.pin(leaves_of(first, count).collect(), QosClass::Foreground).await {
                Ok(pins) => inner.submit(trace, pins, sender, |state, request| state.sequencer.write(request, first, &data)),
                Err(error) => inner.fail(trace, sender, error),
            }
        });
        answered(receiver).boxed_local()
    }

    /// Waits for the request's turn, and for room in the queue.
    async fn hold_back(&self, delay: Duration) -> Duration {
        let start = self.clock.now();
        if !delay.is_zero() {
            self.clock.sleep(delay).await;
        }
        while self.is_running() && self.state.borrow().sequencer.queued_bytes() > self.config.queued_bytes_max {
            self.door.notified().await;
        }
        self.clock.now().saturating_sub(start)
    }

    /// Hands a request to the sequencer.
    fn submit(self: &Rc<Self>, trace: Trace, pins: Pins, sender: oneshot::Sender<Answer>, put: impl FnOnce(&mut State, u64)) {
        // Refused here as well: the volume may have stopped while the request waited. A request that was taken before the
        // volume began to close is still served.
        if !self.is_running() {
            let error = if self.phase.get() == Phase::Fenced { BlockError::Fenced } else { BlockError::Closed };
            return self.fail(trace, sender, error);
        }
        {
            let mut state = self.state.borrow_mut();
            let request = state.next_request;
            state.next_request += 1;
            state.waiters.insert(request, Waiter { sender, _pins: pins, trace, sent: None });
            put(&mut state, request);
        }
        self.drive();
    }

    fn refuse(&self, trace: Trace, error: BlockError) -> LocalBoxFuture<'static, Answer> {
        self.count(trace, &Err(error.clone()));
        async { Err(error) }.boxed_local()
    }

    fn fail(&self, trace: Trace, sender: oneshot::Sender<Answer>, error: BlockError) {
        let answer = Err(error);
        self.count(trace, &answer);
        let _ = sender.send(answer);
    }

    /// Counts an answered request and tells whoever traces.
    pub(crate) fn count(&self, mut trace: Trace, answer: &Answer) {
        trace.ok = answer.is_ok();
        {
            let stats = &mut self.state.borrow_mut().stats;
            match (answer, trace.operation) {
                (Err(_), _) => stats.errors += 1,
                (Ok(()), Operation::Read) => {
                    stats.reads += 1;
                    stats.read_bytes += trace.length;
                }
                (Ok(()), Operation::Write) => {
                    stats.writes += 1;
                    stats.write_bytes += trace.length;
                }
                (Ok(()), Operation::Flush) => stats.flushes += 1,
                (Ok(()), Operation::Discard) => stats.discards += 1,
            }
        }
        let hook = self.trace.borrow().clone();
        if let Some(hook) = hook {
            hook(&trace);
        }
    }

    pub(crate) fn flush(&self) -> Answer {
        let trace = fresh_trace(self, Operation::Flush, 0, 0);
        let answer = self.check_open();
        self.count(trace, &answer);
        answer
    }

    /// Discard and write-zeroes: only the map changes.
    pub(crate) fn forget(self: &Rc<Self>, offset: u64, length: u64) -> LocalBoxFuture<'static, Answer> {
        let mut trace = fresh_trace(self, Operation::Discard, offset, length);
        let (first, count) = match self.check_open().and_then(|()| self.blocks(offset, length)) {
            Ok(range) => range,
            Err(error) => return self.refuse(trace, error),
        };
        let inner = self.clone();
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_local(async move {
            let delay = inner.charge(0, false);
            trace.throttled = inner.hold_back(delay).await;
            let mut answer = Ok(());
            let mut next = first;
            while next < first + count && answer.is_ok() {
                // A branch at a time bounds the leaves in memory, and what a unit's record may forget.
                let end = (first + count).min((next / BRANCH_BLOCKS + 1) * BRANCH_BLOCKS);
                answer = inner.forget_piece(trace, next, (end - next) as u32).await;
                next = end;
            }
            trace.queued = inner.clock.now().saturating_sub(trace.start).saturating_sub(trace.throttled);
            inner.count(trace, &answer);
            let _ = sender.send(answer);
        });
        answered(receiver).boxed_local()
    }

    async fn forget_piece(self: &Rc<Self>, trace: Trace, first: u64, count: u32) -> Answer {
        let nothing_there = {
            let state = self.state.borrow();
            // A unit that failed may still be found by a recovery: only a record after it, or a checkpoint, buries it.
            state.failed_sequence == 0 && state.map.leaves_in(first, u64::from(count)).is_empty()
        };
        if nothing_there {
            return self.check_running();
        }
        // Empty leaves as well: one that fills up meanwhile must not leave the memory before this is applied.
        let pins = self.pin(leaves_of(first, u64::from(count)).collect(), QosClass::Foreground).await?;
        if self.state.borrow().sequencer.is_stalled() {
            return self.forget_unlogged(first, u64::from(count)).await;
        }
        let (sender, receiver) = oneshot::channel();
        self.submit(trace, pins, sender, |state, request| state.sequencer.forget(request, first, count));
        answered(receiver).await
    }

    fn check_running(&self) -> Answer {
        if self.is_running() { Ok(()) } else { self.check_open() }
    }

    /// In a full pool there is no place in the log for a discard, and yet it is what frees space. It changes the map at
    /// once, and is answered when a checkpoint holds it.
    async fn forget_unlogged(self: &Rc<Self>, first: u64, count: u64) -> Answer {
        for _ in 0..UNLOGGED_TRIES {
            self.check_running()?;
            let _pins = self.pin(leaves_of(first, count).collect(), QosClass::Foreground).await?;
            {
                let mut state = self.state.borrow_mut();
                let State { map, chunks, .. } = &mut *state;
                map.clear(first, count, |old| chunks.forget(&old));
                state.dirty_since.get_or_insert_with(|| self.clock.now());
            }
            if self.checkpoint_of_now().await {
                return Ok(());
            }
        }
        self.check_running().and(Err(BlockError::NoSpace))
    }

    /// Does what the sequencer wants done.
    pub(crate) fn drive(self: &Rc<Self>) {
        loop {
            let command = self.state.borrow_mut().sequencer.next();
            match command {
                None => return,
                Some(Command::Send { sequence, requests, records, data }) => self.send(sequence, requests, records, data),
                Some(Command::Apply { position, records }) => self.apply(position, &records),
                Some(Command::Answer { request, result }) => self.answer(request, result),
                Some(Command::Stalled) => self.stalled(),
            }
        }
    }

    fn send(self: &Rc<Self>, sequence: u64, requests: Vec<u64>, records: Vec<WriteRecord>, data: Vec<Bytes>) {
        let now = self.clock.now();
        {
            let mut state = self.state.borrow_mut();
            for request in &requests {
                if let Some(waiter) = state.waiters.get_mut(request) {
                    waiter.sent.get_or_insert(now);
                }
            }
        }
        let trailer = Bytes::from(Trailer::Hot { sequence, records }.encode());
        let append = self.hot.with(|writer| writer.append(data, trailer));
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            let outcome = match append {
                None => Outcome::Failed(BlockError::Closed),
                Some(append) => match append.await {
                    Ok(position) => Outcome::Written(position),
                    Err(StreamError::NoSpace(_)) => Outcome::Full,
                    Err(StreamError::Fenced) => {
                        inner.stop(Phase::Fenced);
                        Outcome::Failed(BlockError::Fenced)
                    }
                    Err(error) => Outcome::Failed(block_error(&error)),
                },
            };
            {
                let mut state = inner.state.borrow_mut();
                if let Outcome::Written(position) = &outcome {
                    for request in &requests {
                        if let Some(waiter) = state.waiters.get_mut(request) {
                            waiter.trace.place = Some((position.chunk, position.offset));
                        }
                    }
                } else {
                    state.failed_sequence = state.failed_sequence.max(sequence);
                }
                state.sequencer.resolved(sequence, outcome);
            }
            inner.drive();
            inner.door.notify_waiters();
        });
    }

    fn apply(&self, position: Position, records: &[WriteRecord]) {
        // Once fenced or closed the pins are gone, and nobody reads the map any more.
        if !self.is_running() {
            return;
        }
        let mut state = self.state.borrow_mut();
        apply_writes(&mut state, position, records);
        state.starved_since = None;
        state.stats.units += 1;
        let bytes = u64::from(position.end - position.offset);
        state.stats.hot_bytes += bytes;
        self.logged(&mut state, bytes);
    }

    /// Counts bytes that a crash would replay; wakes whom they concern.
    pub(crate) fn logged(&self, state: &mut State, bytes: u64) {
        let before = state.log_bytes;
        state.log_bytes += bytes;
        let limit = self.config.checkpoint_log_bytes;
        let full = before < limit && state.log_bytes >= limit;
        if state.dirty_since.is_none() || full || self.map_is_heavy(state) {
            state.dirty_since.get_or_insert_with(|| self.clock.now());
            self.wake_checkpoint.notify_one();
        }
        state.reclaim_after = state.reclaim_after.saturating_sub(bytes);
        if state.reclaim_after == 0 {
            state.reclaim_after = u64::from(self.chunk_bytes) / 8;
            self.wake_reclaim.notify_one();
        }
    }

    /// Changed leaves take so much memory that a checkpoint must let them go.
    pub(crate) fn map_is_heavy(&self, state: &State) -> bool {
        state.map.dirty() * crate::map::LEAF_BYTES > self.config.leaf_bytes_max / 2
    }

    fn answer(&self, request: u64, result: Answer) {
        let waiter = self.state.borrow_mut().waiters.remove(&request);
        let Some(Waiter { sender, _pins: pins, mut trace, sent }) = waiter else { return };
        drop(pins);
        // Pieces of a discard are counted once, by whoever cut it.
        if trace.operation == Operation::Write {
            let now = self.clock.now();
            let sent = sent.unwrap_or(now);
            trace.queued = sent.saturating_sub(trace.start).saturating_sub(trace.throttled);
            trace.stream = now.saturating_sub(sent);
            self.count(trace, &result);
        }
        let _ = sender.send(result);
    }

    /// A write found no space: reclaim is told, discards go their own way, and everything else is tried again until
    /// patience or hope ends.
    fn stalled(self: &Rc<Self>) {
        let (since, unlogged) = {
            let mut state = self.state.borrow_mut();
            let since = *state.starved_since.get_or_insert_with(|| self.clock.now());
            state.stats.throttled += 1;
            (since, state.sequencer.take_unlogged())
        };
        self.wake_reclaim.notify_one();
        for Unlogged { request, first, count } in unlogged {
            let inner = self.clone();
            tokio::task::spawn_local(async move {
                let result = inner.forget_unlogged(first, count).await;
                inner.state.borrow_mut().sequencer.finish(request, result);
                inner.drive();
                inner.door.notify_waiters();
            });
        }
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            if inner.is_hopeless(since) {
                inner.state.borrow_mut().sequencer.give_up();
            } else {
                inner.clock.sleep(inner.config.no_space_retry).await;
                inner.state.borrow_mut().sequencer.resume();
            }
            inner.drive();
            inner.door.notify_waiters();
        });
    }

    /// Nothing that could still be freed would let a write pass in time.
    fn is_hopeless(&self, since: Duration) -> bool {
        let state = self.state.borrow();
        let now = self.clock.now();
        let waited = now.saturating_sub(since.max(state.freed_at));
        let can_help = state.chunks.victim(Aim::Cheapest, self.chunk_bytes).is_some()
            || state.chunks.empty_bytes(state.hot.position, state.cold.position) > 0;
        let patience = if can_help { self.config.no_space_patience } else { self.config.no_space_patience / 8 };
        waited >= patience
    }
}

/// Changes the map as the records of a committed unit say, and counts what lives where.
pub(crate) fn apply_writes(state: &mut State, position: Position, records: &[WriteRecord]) {
    let State { map, chunks, hot, .. } = state;
    chunks.grow(Log::Hot, position.chunk, position.index, position.end);
    walk_writes(records, position.chunk, position.offset, |change| match change {
        Change::Set(block, location) => {
            chunks.refer(&location);
            if let Some(old) = map.set(block, Some(location)) {
                chunks.forget(&old);
            }
        }
        Change::Clear(first, count) => map.clear(first, count, |old| chunks.forget(&old)),
    });
    hot.position = LogPosition { index: position.index, end: position.end };
}
