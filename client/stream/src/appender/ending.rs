//! How an appender lets go: of a chunk, of appends that can't be had, of everything.

use super::chunk::Chunk;
use super::closing::{Closing, Report};
use super::{Appender, Closure, Command};
use crate::Error;
use api_types::chunk::Seal;
use api_types::master::{self, ChunkRecord, ChunkState, SealChunk};
use api_types::{ChunkId, Rule};
use std::time::Duration;

/// Tries of the deletion of an empty chunk: what is left is found and deleted by the next recovery.
const DELETE_TRIES_MAX: u32 = 5;

impl Appender {
    /// Ends the open chunk where it is committed. What isn't committed is appended again, in the same order.
    pub(super) fn leave_open(&mut self, now: Duration) {
        let Some(mut open) = self.open.take() else { return };
        if open.record.shape.capacity - open.end >= api_types::limits::UNIT_BYTES_MAX {
            self.stats.moves += 1;
        }
        let mut uncommitted = open.take_uncommitted();
        if !Rule::RequeueInOrder.is_kept() {
            uncommitted.reverse();
        }
        for pending in uncommitted.into_iter().rev() {
            self.queued_bytes += pending.bytes();
            self.queue.push_front(pending);
        }
        self.closing.push(Closing::new(open, now));
    }

    pub(super) fn give_back(&mut self, records: Vec<ChunkRecord>, now: Duration) {
        self.closing.extend(records.into_iter().map(|record| Closing::new(Chunk::new(record, now), now)));
    }

    pub(super) fn drive_closing(&mut self, now: Duration, out: &mut Vec<Command>) {
        let (owner, epoch) = (self.options.owner, self.options.epoch);
        for closing in &mut self.closing {
            let (chunk, length) = (closing.id(), closing.length());
            for device in closing.advance(&self.config, now) {
                out.push(Command::Seal { device, seal: Seal { chunk, owner, epoch, length: Some(length) } });
            }
            match closing.report {
                Report::Record { after, wait } if after <= now => {
                    closing.report = Report::Recording { wait };
                    out.push(Command::Record(SealChunk { chunk, epoch, length, whole: closing.whole() }));
                }
                Report::Delete { after, tries } if after <= now => {
                    closing.report = Report::Deleting { tries: tries + 1 };
                    out.push(Command::Delete(chunk));
                }
                _ => {}
            }
        }
    }

    pub(super) fn recorded(&mut self, chunk: ChunkId, result: Result<u32, master::Error>, now: Duration, out: &mut Vec<Command>) {
        let Some(at) = self.closing.iter().position(|closing| closing.id() == chunk) else { return };
        let closing = &mut self.closing[at];
        let Report::Recording { wait } = closing.report else { return };
        match result {
            Ok(length) if length == closing.length() => {
                self.stats.seals += 1;
                if length == 0 {
                    closing.report = Report::Delete { after: now, tries: 0 };
                    return;
                }
                let mut record = closing.chunk.record.clone();
                let whole = closing.whole();
                record.state = ChunkState::Sealed { length };
                for copy in &mut record.copies {
                    copy.whole = whole.contains(&copy.device);
                }
                self.closing.remove(at);
                out.push(Command::Finished(record));
            }
            // Only a newer writer's recovery could have recorded another length.
            Ok(_) | Err(master::Error::Fenced { .. }) => self.stop(Error::Fenced, out),
            Err(master::Error::NotFound { .. }) => {
                self.closing.remove(at);
            }
            Err(_) => {
                let wait = (wait * 2).clamp(self.config.retry_wait, self.config.retry_wait_max);
                closing.report = Report::Record { after: now + wait, wait };
            }
        }
    }

    pub(super) fn deleted(&mut self, chunk: ChunkId, result: &Result<(), master::Error>, now: Duration) {
        let Some(at) = self.closing.iter().position(|closing| closing.id() == chunk) else { return };
        let Report::Deleting { tries } = self.closing[at].report else { return };
        if result.is_ok() || tries >= DELETE_TRIES_MAX {
            self.closing.remove(at);
        } else {
            self.closing[at].report = Report::Delete { after: now + self.config.retry_wait_max, tries };
        }
    }

    pub(super) fn drive_close(&mut self, since: Duration, now: Duration, out: &mut Vec<Command>) {
        if !self.waiting() {
            self.leave_open(now);
            let spares = self.spares.take_all();
            self.give_back(spares, now);
            self.drive_closing(now, out);
        }
        let finished = !self.waiting() && self.closing.is_empty() && !self.spares.asked;
        let late = now >= since + self.config.append_give_up;
        if finished || late {
            self.closure = Closure::Done;
            self.fail_pending(&Error::Closed, now, out);
            let left = format!("{} chunks are not sealed at the masters", self.closing.len());
            out.push(Command::Closed(if finished { Ok(()) } else { Err(Error::Unavailable(left)) }));
        }
    }

    pub(super) fn why_stuck(&self) -> String {
        match &self.open {
            Some(open) => format!("nothing is committed in chunk {}: waiting for {:?}", open.id(), open.laggards()),
            None => "the masters grant no chunk".to_owned(),
        }
    }

    /// Fails everything that isn't committed. What was sent may still turn up at a recovery, so the chunk ends here.
    pub(super) fn fail_pending(&mut self, error: &Error, now: Duration, out: &mut Vec<Command>) {
        if self.open.as_ref().is_some_and(|open| open.end > open.committed) {
            self.leave_open(now);
        }
        self.queued_bytes = 0;
        for pending in self.queue.drain(..) {
            out.push(Command::Complete { id: pending.id, result: Err(error.clone()) });
        }
        self.progress = now;
    }

    /// Stops for ever.
    pub(super) fn stop(&mut self, error: Error, out: &mut Vec<Command>) {
        let open = self.open.take().map(|mut open| open.take_uncommitted()).unwrap_or_default();
        for pending in open.into_iter().chain(self.queue.drain(..)) {
            out.push(Command::Complete { id: pending.id, result: Err(error.clone()) });
        }
        self.queued_bytes = 0;
        self.closing.clear();
        if let Closure::Asked { .. } = self.closure {
            out.push(Command::Closed(Err(error.clone())));
        }
        self.stopped = Some(error);
    }
}
