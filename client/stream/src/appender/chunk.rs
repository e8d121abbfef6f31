//! One chunk as its writer sees it: the units it still holds in memory, and how far each copy has come.

use super::Pending;
use crate::Config;
use api_types::checksum::FooterSeed;
use api_types::chunk::{self, Append};
use api_types::master::ChunkRecord;
use api_types::unit::{FOOTER_BYTES, finish_unit, unit_bytes};
use api_types::{ChunkId, DeviceId, Epoch, QosClass, Rule};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// Names one append that is under way, so that its answer finds its copy and stale answers are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The chunk.
    pub chunk: ChunkId,
    /// The device it was sent to.
    pub device: DeviceId,
    /// Counts how often sending to this copy was started over; failures of an earlier round say nothing new.
    pub round: u32,
    /// Length of the unit.
    pub bytes: u32,
}

/// A unit that is placed in the chunk and not yet everywhere.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) id: u64,
    pub(super) start: u32,
    pub(super) end: u32,
    data_bytes: u32,
    trailer_bytes: u32,
    bytes: Bytes,
    placed: Duration,
}

/// Whether appends are sent to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyState {
    /// Units are sent as they come.
    Live,
    /// The last try failed: sent again after `until`, one unit at a time until one is answered.
    Waiting { until: Duration },
    /// Nothing is sent any more; the masters will repair it.
    GivenUp,
}

/// One copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) device: DeviceId,
    /// Durable there up to here.
    pub(super) acked: u32,
    pub(super) state: CopyState,
    /// Failed in a way that calls for a chunk elsewhere, and hasn't answered since.
    pub(super) troubled: bool,
    sent: u32,
    in_flight_units: u32,
    in_flight_bytes: u32,
    round: u32,
    wait: Duration,
    /// When it last came forward, or fell behind.
    heard: Duration,
}

/// What an answer to an append means for the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing to decide.
    Fine,
    /// The copy is in trouble; the device may be well.
    Trouble,
    /// The copy is in trouble, and new chunks had better not be on this device for a while.
    Shun,
    /// A newer writer exists.
    Fenced,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) record: ChunkRecord,
    pub(super) copies: Vec<Copy>,
    /// Where the next unit starts.
    pub(super) end: u32,
    pub(super) committed: u32,
    /// When the committed length last grew.
    pub(super) committed_at: Duration,
    /// Something was sent to some copy.
    pub(super) touched: bool,
    pub(super) units: VecDeque<Unit>,
}

impl Chunk {
    pub(super) fn new(record: ChunkRecord, now: Duration) -> Self {
        let copies = record
            .copies
            .iter()
            .map(|copy| Copy {
                device: copy.device,
                acked: 0,
                state: CopyState::Live,
                troubled: false,
                sent: 0,
                in_flight_units: 0,
                in_flight_bytes: 0,
                round: 0,
                wait: Duration::ZERO,
                heard: now,
            })
            .collect();
        Chunk { record, copies, end: 0, committed: 0, committed_at: now, touched: false, units: VecDeque::new() }
    }

    pub(super) fn id(&self) -> ChunkId {
        self.record.shape.chunk
    }

    /// Length that `pending` would have here.
    pub(super) fn unit_bytes(&self, pending: &Pending) -> u32 {
        unit_bytes(pending.data_bytes, pending.trailer_bytes, self.record.shape.alignment)
    }

    pub(super) fn fits(&self, pending: &Pending) -> bool {
        self.record.shape.capacity - self.end >= self.unit_bytes(pending)
    }

    /// Puts a unit at the end of the chunk.
    pub(super) fn place(&mut self, pending: Pending, seed: FooterSeed, now: Duration) {
        let length = self.unit_bytes(&pending);
        let (data_bytes, trailer_bytes) = (pending.data_bytes, pending.trailer_bytes);
        // The unit begins at a multiple of the chunk's alignment in memory as well: a store on this node can write it with
        // direct I/O as it is.
        let alignment = self.record.shape.alignment.bytes() as usize;
        let mut bytes: Vec<u8> = Vec::with_capacity(length as usize + alignment);
        let lead = bytes.as_ptr().align_offset(alignment).min(alignment);
        bytes.resize(lead, 0);
        let trailer = pending.payload.copy_data_into(&mut bytes, data_bytes, trailer_bytes);
        bytes.resize(lead + length as usize, 0);
        finish_unit(&mut bytes[lead..], self.record.shape, self.end, data_bytes, &trailer, seed);
        let start = self.end;
        self.end += length;
        for copy in self.copies.iter_mut().filter(|copy| copy.acked == start) {
            copy.heard = now;
        }
        let bytes = Bytes::from(bytes).slice(lead..);
        self.units.push_back(Unit { id: pending.id, start, end: self.end, data_bytes, trailer_bytes, bytes, placed: now });
    }

    /// The next append to send, to any copy that may be sent one.
    pub(super) fn next_send(&mut self, epoch: Epoch, qos: QosClass, config: &Config, now: Duration) -> Option<(Ticket, Append)> {
        let chunk = self.id();
        for copy in &mut self.copies {
            let units_max = match copy.state {
                CopyState::GivenUp => continue,
                CopyState::Waiting { until } if now < until => continue,
                CopyState::Waiting { .. } => 1,
                CopyState::Live => config.copy_units_max,
            };
            if copy.in_flight_units >= units_max || copy.in_flight_bytes >= config.in_flight_bytes_max {
                continue;
            }
            let at = self.units.partition_point(|unit| unit.start < copy.sent);
            let Some(unit) = self.units.get(at) else { continue };
            let bytes = unit.end - unit.start;
            copy.sent = unit.end;
            copy.in_flight_units += 1;
            copy.in_flight_bytes += bytes;
            self.touched = true;
            let ticket = Ticket { chunk, device: copy.device, round: copy.round, bytes };
            let create = unit.start == 0;
            return Some((ticket, Append { chunk, epoch, offset: unit.start, unit: unit.bytes.clone(), create, qos }));
        }
        None
    }

    /// Takes the answer to an append.
    pub(super) fn answered(
        &mut self,
        ticket: Ticket,
        result: Result<u32, chunk::Error>,
        config: &Config,
        now: Duration,
    ) -> Verdict {
        let end = self.end;
        let Some(copy) = self.copies.iter_mut().find(|copy| copy.device == ticket.device) else { return Verdict::Fine };
        let current = ticket.round == copy.round;
        if current {
            copy.in_flight_units = copy.in_flight_units.saturating_sub(1);
            copy.in_flight_bytes = copy.in_flight_bytes.saturating_sub(ticket.bytes);
        }
        match result {
            Ok(length) => {
                // A store can't hold more than was ever placed; whatever it says beyond is not believed.
                let length = length.min(end);
                if length > copy.acked {
                    copy.acked = length;
                    copy.sent = copy.sent.max(length);
                    copy.heard = now;
                }
                if copy.state != CopyState::GivenUp {
                    copy.state = CopyState::Live;
                    copy.troubled = false;
                    copy.wait = Duration::ZERO;
                }
                Verdict::Fine
            }
            Err(chunk::Error::Fenced { .. }) => Verdict::Fenced,
            Err(_) if !current || copy.state == CopyState::GivenUp => Verdict::Fine,
            Err(error) => copy.failed(&error, config, now),
        }
    }

    /// Recomputes the committed length; true when it grew.
    pub(super) fn commit(&mut self, min_copy: u8, now: Duration) -> bool {
        let mut acked: Vec<u32> = self.copies.iter().map(|copy| copy.acked).collect();
        acked.sort_unstable_by(|a, b| b.cmp(a));
        let min_copy = if Rule::CommitOnMinCopy.is_kept() { min_copy } else { 1 };
        let Some(&held) = usize::from(min_copy).checked_sub(1).and_then(|at| acked.get(at)) else { return false };
        if held <= self.committed {
            return false;
        }
        self.committed = held;
        self.committed_at = now;
        true
    }

    /// Forgets what every copy that is still pursued has, as far as it is committed.
    pub(super) fn trim(&mut self) {
        let held = self.copies.iter().filter(|copy| copy.state != CopyState::GivenUp).map(|copy| copy.acked).min();
        let held = held.unwrap_or(self.committed).min(self.committed);
        while self.units.front().is_some_and(|unit| unit.end <= held) {
            self.units.pop_front();
        }
    }

    /// Takes the uncommitted units out again, in order.
    pub(super) fn take_uncommitted(&mut self) -> Vec<Pending> {
        let at = self.units.partition_point(|unit| unit.end <= self.committed);
        let taken = self.units.split_off(at);
        self.end = self.committed;
        for copy in &mut self.copies {
            copy.sent = copy.sent.min(self.end);
        }
        taken.into_iter().map(Unit::into_pending).collect()
    }

    /// Copies that are still pursued.
    pub(super) fn pursued(&self) -> usize {
        self.copies.iter().filter(|copy| copy.state != CopyState::GivenUp).count()
    }

    /// Units and bytes that are placed and not committed.
    pub(super) fn uncommitted(&self) -> (u32, u32) {
        let at = self.units.partition_point(|unit| unit.end <= self.committed);
        ((self.units.len() - at) as u32, self.end - self.committed)
    }

    /// Bytes held in memory only because some copy is behind.
    pub(super) fn chased_bytes(&self) -> u64 {
        self.units.front().map_or(0, |unit| u64::from(self.committed.saturating_sub(unit.start)))
    }

    /// Since when the first uncommitted unit has been waiting without any commit.
    pub(super) fn stalled_since(&self) -> Option<Duration> {
        let at = self.units.partition_point(|unit| unit.end <= self.committed);
        self.units.get(at).map(|unit| unit.placed.max(self.committed_at))
    }

    /// The copies without which the first uncommitted unit stays uncommitted.
    pub(super) fn laggards(&self) -> Vec<DeviceId> {
        self.copies.iter().filter(|copy| copy.acked <= self.committed).map(|copy| copy.device).collect()
    }

    /// Gives up the copies that have been silent for too long; true when there was one.
    pub(super) fn judge_silence(&mut self, config: &Config, now: Duration) -> bool {
        let committed = self.committed;
        let mut any = false;
        for copy in &mut self.copies {
            if let Some(deadline) = copy.silence_deadline(committed, config)
                && deadline <= now
            {
                copy.give_up();
                any = true;
            }
        }
        if any {
            self.trim();
        }
        any
    }

    /// Gives up the copy that is furthest behind.
    pub(super) fn give_up_slowest(&mut self) -> Option<DeviceId> {
        let committed = self.committed;
        let behind = |copy: &&mut Copy| copy.state != CopyState::GivenUp && copy.acked < committed;
        let copy = self.copies.iter_mut().filter(behind).min_by_key(|copy| copy.acked)?;
        copy.give_up();
        Some(copy.device)
    }

    /// The copy that is furthest behind, if any is.
    pub(super) fn slowest(&self) -> Option<DeviceId> {
        let behind = |copy: &&Copy| copy.state != CopyState::GivenUp && copy.acked < self.committed;
        self.copies.iter().filter(behind).min_by_key(|copy| copy.acked).map(|copy| copy.device)
    }

    /// When something has to be looked at again though nothing happens.
    pub(super) fn deadline(&self, config: &Config) -> Option<Duration> {
        let per_copy = |copy: &Copy| {
            let retry = match copy.state {
                CopyState::Waiting { until } if copy.in_flight_units == 0 && copy.sent < self.end => Some(until),
                _ => None,
            };
            [retry, copy.silence_deadline(self.committed, config)].into_iter().flatten().min()
        };
        self.copies.iter().filter_map(per_copy).min()
    }
}

impl Unit {
    fn into_pending(self) -> Pending {
        Pending {
            id: self.id,
            data_bytes: self.data_bytes,
            trailer_bytes: self.trailer_bytes,
            payload: Payload::Unit(self.bytes),
        }
    }
}

impl Copy {
    fn failed(&mut self, error: &chunk::Error, config: &Config, now: Duration) -> Verdict {
        match error {
            chunk::Error::Busy => self.retry_later(config, now),
            // The unit before was lost on its way: start over from what is known to be there.
            chunk::Error::WrongOffset { expected } if *expected >= self.acked => self.retry_later(config, now),
            chunk::Error::Unknown if self.acked == 0 => self.retry_later(config, now),
            chunk::Error::Unreachable(_) | chunk::Error::Deadline => {
                self.troubled = true;
                self.retry_later(config, now);
                return Verdict::Trouble;
            }
            chunk::Error::Sealed { .. } | chunk::Error::Unknown | chunk::Error::WrongOffset { .. } => {
                self.give_up();
                return Verdict::Trouble;
            }
            _ => {
                self.give_up();
                return Verdict::Shun;
            }
        }
        Verdict::Fine
    }

    fn retry_later(&mut self, config: &Config, now: Duration) {
        self.wait = (self.wait * 2).clamp(config.retry_wait, config.retry_wait_max);
        self.state = CopyState::Waiting { until: now + self.wait };
        self.round += 1;
        self.sent = self.acked;
        self.in_flight_units = 0;
        self.in_flight_bytes = 0;
    }

    pub(super) fn give_up(&mut self) {
        self.state = CopyState::GivenUp;
        self.troubled = true;
    }

    /// Judged by committed bytes only: whether uncommitted ones are late is the commit timeout's to say.
    fn silence_deadline(&self, committed: u32, config: &Config) -> Option<Duration> {
        let rest = committed.saturating_sub(self.acked);
        if rest == 0 || self.state == CopyState::GivenUp {
            return None;
        }
        let limit = if rest > config.chase_rest_max { config.chase_time } else { config.chase_give_up };
        Some(self.heard + limit)
    }
}

/// The bytes of an append, before or after it was first placed.
#[derive(Debug)]
pub(super) enum Payload {
    /// As the caller gave them.
    Parts { data: Vec<Bytes>, trailer: Bytes },
    /// A unit that was made for another place.
    Unit(Bytes),
}

impl Payload {
    /// Appends the data to `out` and returns the trailer.
    fn copy_data_into(self, out: &mut Vec<u8>, data_bytes: u32, trailer_bytes: u32) -> Bytes {
        match self {
            Payload::Parts { data, trailer } => {
                for part in &data {
                    out.extend_from_slice(part);
                }
                trailer
            }
            Payload::Unit(unit) => {
                out.extend_from_slice(&unit[..data_bytes as usize]);
                let footer_at = unit.len() - FOOTER_BYTES as usize;
                unit.slice(footer_at - trailer_bytes as usize..footer_at)
            }
        }
    }
}
