//! Restoring redundancy: which chunks are short of copies, which copy is made next and where, and when a copy too many
//! may go.
//!
//! A copy counts while its device isn't lost. A silent device is only suspect at first: nothing is rebuilt for it. A copy
//! that is short on a living device is completed in place. A copy is dropped only when enough whole ones are on devices
//! that are up.

use crate::chunks::Chunk;
use crate::command::{Event, Reply};
use crate::placement::{Reserve, Wish};
use crate::state::State;
use api_types::limits::REPLICAS_MAX;
use api_types::master::{BadCopy, ChunkState, Copy, OrderResult, Role};
use api_types::{ChunkId, DeviceId, NodeName};
use std::collections::BTreeSet;

/// Copies being made on one device at a time.
const DEVICE_REPAIRS_MAX: usize = 2;
/// How many short chunks one plan looks at, most endangered first.
const PLAN_CHUNKS_MAX: usize = 256;
/// How often in a row a copy may fail to be completed in place before another device is taken.
const IN_PLACE_FAILURES_MAX: u8 = 3;
/// The first pause after a failed repair; doubled with each, up to 64 times this.
const RETRY_PAUSE_MS: u64 = 1000;

/// How many chunks are in which condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkCounts {
    /// All.
    pub total: u64,
    /// Granted and not sealed.
    pub open: u64,
    /// Sealed, with fewer whole copies than their pool wants.
    pub under_replicated: u64,
    /// Copies being made.
    pub in_repair: u64,
    /// Sealed, with no whole copy on a device that isn't lost.
    pub lost: u64,
    /// Sealed, with enough whole copies, one of which leaves its device.
    pub moving: u64,
}

impl State {
    /// Brings a chunk's place among the endangered up to date, and drops copies too many.
    pub(crate) fn refresh(&mut self, id: ChunkId, events: &mut Vec<Event>) {
        self.unlist_short(id);
        self.cancel_lost_repairs(id);
        let Some(chunk) = self.chunks.get(&id) else { return };
        if !matches!(chunk.record.state, ChunkState::Sealed { length: 1.. }) {
            return;
        }
        let wanted = self.copies_wanted(chunk);
        let whole = chunk.record.copies.iter().filter(|copy| copy.whole && self.counts(copy)).count();
        if whole < wanted {
            let danger = u8::try_from(whole).unwrap_or(u8::MAX);
            if let Some(chunk) = self.chunks.get_mut(&id) {
                chunk.danger = Some(danger);
            }
            self.short.insert((danger, id));
        } else if self.staying(chunk) < wanted {
            self.upkeep.moving.insert(id);
        } else {
            self.drop_surplus(id, wanted, events);
        }
    }

    pub(crate) fn unlist_short(&mut self, id: ChunkId) {
        self.upkeep.moving.remove(&id);
        if let Some(chunk) = self.chunks.get_mut(&id)
            && let Some(danger) = chunk.danger.take()
        {
            self.short.remove(&(danger, id));
        }
    }

    /// Whole copies that count and need not move.
    fn staying(&self, chunk: &Chunk) -> usize {
        let stays = |copy: &&Copy| copy.whole && self.counts(copy) && !self.upkeep.evacuates(copy.device);
        chunk.record.copies.iter().filter(stays).count()
    }

    pub(crate) fn copies_wanted(&self, chunk: &Chunk) -> usize {
        self.streams
            .get(&chunk.record.stream)
            .and_then(|stream| self.pools.get(&stream.pool))
            .map_or(1, |pool| usize::from(pool.replication.max_copy))
    }

    /// Its device isn't lost.
    fn counts(&self, copy: &Copy) -> bool {
        self.devices.get(&copy.device).is_some_and(|device| !device.lost(&self.upkeep))
    }

    /// On a device that is up and healthy.
    fn steady(&self, copy: &Copy) -> bool {
        self.devices.get(&copy.device).is_some_and(|device| device.takes_chunks(&self.upkeep))
    }

    fn in_repair(&self, chunk: ChunkId, device: DeviceId) -> bool {
        self.devices.get(&device).is_some_and(|device| device.repairs.values().any(|repaired| *repaired == chunk))
    }

    fn cancel_lost_repairs(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        for copy in &chunk.record.copies {
            if let Some(device) = self.devices.get_mut(&copy.device)
                && device.lost(&self.upkeep)
            {
                device.repairs.retain(|_, repaired| *repaired != id);
            }
        }
    }

    /// Keeps the first `wanted` whole copies on steady devices. Does nothing when there are fewer of those.
    fn drop_surplus(&mut self, id: ChunkId, wanted: usize, events: &mut Vec<Event>) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        if chunk.record.copies.len() <= wanted {
            return;
        }
        let keep: Vec<DeviceId> = chunk
            .record
            .copies
            .iter()
            .filter(|copy| copy.whole && self.steady(copy))
            .map(|copy| copy.device)
            .take(wanted)
            .collect();
        if keep.len() < wanted {
            return;
        }
        let bytes = chunk.bytes();
        let surplus: Vec<DeviceId> =
            chunk.record.copies.iter().map(|copy| copy.device).filter(|device| !keep.contains(device)).collect();
        if let Some(chunk) = self.chunks.get_mut(&id) {
            chunk.record.copies.retain(|copy| keep.contains(&copy.device));
        }
        for device in surplus {
            self.doom_copy(id, device, bytes, false);
            events.push(Event::CopyDropped(id, device));
        }
    }

    /// A device was lost, broke, or came back.
    pub(crate) fn device_changed(&mut self, id: DeviceId, events: &mut Vec<Event>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.lost(&self.upkeep) {
            device.repairs.clear();
        }
        let chunks: Vec<ChunkId> = device.chunks.iter().copied().collect();
        for chunk in chunks {
            self.refresh(chunk, events);
        }
    }

    /// A chunk that would be lost with these devices.
    pub(crate) fn only_whole_copies_on(&self, device: DeviceId, gone: &[DeviceId]) -> Option<ChunkId> {
        let of_device = self.devices.get(&device).into_iter().flat_map(|device| &device.chunks);
        of_device.filter_map(|id| self.chunks.get(id)).find_map(|chunk| {
            let mut whole = chunk.record.copies.iter().filter(|copy| copy.whole).peekable();
            (whole.peek().is_some() && whole.all(|copy| gone.contains(&copy.device))).then_some(chunk.record.shape.chunk)
        })
    }

    pub(crate) fn forget_device(&mut self, id: DeviceId, events: &mut Vec<Event>) {
        let Some(device) = self.devices.remove(&id) else { return };
        self.upkeep.forget_device(id);
        for chunk in device.chunks {
            if let Some(chunk) = self.chunks.get_mut(&chunk) {
                chunk.record.copies.retain(|copy| copy.device != id);
            }
            self.refresh(chunk, events);
        }
    }

    pub(crate) fn report_bad_copy(&mut self, bad: &BadCopy, events: &mut Vec<Event>) -> Reply {
        let Some(chunk) = self.chunks.get(&bad.chunk) else { return Reply::Done };
        // The last whole copy stays: most of it can still be read, and there is nothing to repair it from.
        let others = chunk.record.copies.iter().any(|copy| copy.whole && copy.device != bad.device && self.counts(copy));
        let sealed = matches!(chunk.record.state, ChunkState::Sealed { .. });
        if !sealed || !others || chunk.copy_on(bad.device).is_none_or(|copy| !copy.whole) {
            return Reply::Done;
        }
        if let Some(copy) = self
            .chunks
            .get_mut(&bad.chunk)
            .and_then(|chunk| chunk.record.copies.iter_mut().find(|copy| copy.device == bad.device))
        {
            copy.whole = false;
        }
        events.push(Event::CopyBad(bad.chunk, bad.device));
        self.refresh(bad.chunk, events);
        Reply::Done
    }

    /// Whether [`crate::Body::PlanRepairs`] would do something.
    #[must_use]
    pub fn repairs_wanted(&self, at_ms: u64) -> bool {
        self.candidates().any(|id| !self.choose(id, at_ms, 0).is_empty())
    }

    /// What a plan looks at: short chunks, most endangered first, then those that must move.
    fn candidates(&self) -> impl Iterator<Item = ChunkId> {
        self.short.iter().map(|(_, id)| *id).chain(self.upkeep.moving.iter().copied()).take(PLAN_CHUNKS_MAX)
    }

    pub(crate) fn plan_repairs(&mut self, seed: u64, events: &mut Vec<Event>) -> Reply {
        for id in self.candidates().collect::<Vec<_>>() {
            for device in self.choose(id, self.at_ms, seed) {
                self.start_repair(id, device);
                events.push(Event::RepairStarted(id, device));
            }
        }
        Reply::Done
    }

    /// The devices on which copies of a chunk should be made now.
    fn choose(&self, id: ChunkId, at_ms: u64, seed: u64) -> Vec<DeviceId> {
        let Some(chunk) = self.chunks.get(&id) else { return Vec::new() };
        let copies = &chunk.record.copies;
        let whole = copies.iter().filter(|copy| copy.whole && self.counts(copy)).count();
        if whole == 0 || (chunk.failures > 0 && at_ms < chunk.retry_at_ms && chunk.retry_at_ms - at_ms <= RETRY_PAUSE_MS << 6) {
            return Vec::new();
        }
        let mut missing = self.copies_wanted(chunk).saturating_sub(self.staying(chunk));
        let mut chosen = Vec::new();
        let in_place = chunk.failures < IN_PLACE_FAILURES_MAX;
        for copy in copies.iter().filter(|copy| !copy.whole && self.counts(copy) && !self.upkeep.evacuates(copy.device)) {
            let busy = self.devices.get(&copy.device).is_some_and(|device| device.repairs.len() >= DEVICE_REPAIRS_MAX);
            let pending = self.in_repair(id, copy.device);
            if missing == 0 || !(in_place || pending) {
                continue;
            }
            missing -= 1;
            if !pending && !busy && self.steady(copy) {
                chosen.push(copy.device);
            }
        }
        if missing > 0 {
            chosen.extend(self.choose_new(chunk, missing, seed));
        }
        chosen
    }

    /// New places for a chunk's missing copies, as many as there are.
    fn choose_new(&self, chunk: &Chunk, missing: usize, seed: u64) -> Vec<DeviceId> {
        let id = chunk.record.shape.chunk;
        let Some(pool) = self.streams.get(&chunk.record.stream).and_then(|stream| self.pools.get(&stream.pool)) else {
            return Vec::new();
        };
        let useful = |copy: &&Copy| {
            // A copy that moves leaves its failure domain free.
            let stays = self.counts(copy) && !self.upkeep.evacuates(copy.device);
            stays && (copy.whole || chunk.failures < IN_PLACE_FAILURES_MAX)
        };
        let taken = chunk.record.copies.iter().filter(useful);
        let taken: BTreeSet<String> = taken
            .filter_map(|copy| self.devices.get(&copy.device))
            .filter_map(|device| self.domain_of(&pool.failure_domain, device))
            .collect();
        let mut without: BTreeSet<DeviceId> = chunk.record.copies.iter().map(|copy| copy.device).collect();
        for (device_id, device) in &self.devices {
            let doomed = || device.deletes.values().any(|doomed| doomed.chunk == id);
            // Units are aligned for the devices the chunk was made for; a device that wants larger blocks can't take them.
            let coarse = device.alignment > chunk.record.shape.alignment;
            if device.repairs.len() >= DEVICE_REPAIRS_MAX || coarse || doomed() {
                without.insert(*device_id);
            }
        }
        let wish = Wish {
            failure_domain: &pool.failure_domain,
            taken,
            without,
            avoid: &[],
            near: None,
            bytes: chunk.bytes(),
            reserve: Reserve::Once,
            seed: seed ^ id.0,
        };
        let room = REPLICAS_MAX.saturating_sub(chunk.record.copies.len());
        self.place(&wish, missing.min(room), 1).unwrap_or_default()
    }

    fn start_repair(&mut self, id: ChunkId, target: DeviceId) {
        let order = self.draw_order();
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let bytes = chunk.bytes();
        let new = chunk.copy_on(target).is_none();
        if new {
            chunk.record.copies.push(Copy { device: target, role: Role::Replica, whole: false });
        }
        if let Some(device) = self.devices.get_mut(&target) {
            device.used_bytes += if new { bytes } else { 0 };
            device.chunks.insert(id);
            device.repairs.insert(order, id);
        }
    }

    /// An agent did what it was told, or can't.
    pub(crate) fn order_ended(&mut self, node: &NodeName, result: &OrderResult, events: &mut Vec<Event>) {
        let owned = |device: &&mut crate::nodes::Device| {
            device.address.node == *node && (device.deletes.contains_key(&result.id) || device.repairs.contains_key(&result.id))
        };
        let Some(device) = self.devices.values_mut().find(owned) else { return };
        let target = device.address.device;
        if result.error.is_none()
            && let Some(doomed) = device.deletes.remove(&result.id)
        {
            device.used_bytes = device.used_bytes.saturating_sub(doomed.bytes);
            device.free_bytes = device.free_bytes.saturating_add(doomed.bytes).min(device.capacity_bytes);
        }
        if let Some(chunk) = device.repairs.remove(&result.id) {
            self.repair_ended(chunk, target, result.error.as_deref(), events);
        }
    }

    fn repair_ended(&mut self, id: ChunkId, target: DeviceId, error: Option<&str>, events: &mut Vec<Event>) {
        let at_ms = self.at_ms;
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        match error {
            None => {
                chunk.failures = 0;
                for copy in chunk.record.copies.iter_mut().filter(|copy| copy.device == target) {
                    copy.whole = true;
                }
                events.push(Event::RepairDone(id, target));
            }
            Some(error) => {
                chunk.retry_at_ms = at_ms + (RETRY_PAUSE_MS << chunk.failures.min(6));
                chunk.failures = chunk.failures.saturating_add(1);
                events.push(Event::RepairFailed(id, target, error.to_owned()));
            }
        }
        self.refresh(id, events);
    }

    /// How many chunks are in which condition.
    #[must_use]
    pub fn chunk_counts(&self) -> ChunkCounts {
        ChunkCounts {
            total: self.chunks.len() as u64,
            open: self.open_chunks,
            under_replicated: self.short.len() as u64,
            in_repair: self.devices.values().map(|device| device.repairs.len() as u64).sum(),
            lost: self.short.range(..(1, ChunkId(0))).count() as u64,
            moving: self.upkeep.moving.len() as u64,
        }
    }
}
