//! What people do to nodes and devices: maintenance, evacuation, removal, and whether an agent may stop now.
//!
//! A node in maintenance may be silent for as long as it likes: nothing is rebuilt for it, and it gets no new chunks. A
//! device under evacuation gets none either, and each sealed chunk on it is copied to another device before its copy goes.
//! Neither lowers the redundancy that is counted.

use crate::chunks::Chunk;
use crate::command::{Event, Reply};
use crate::state::State;
use api_types::master::{ChunkState, Copy, Error};
use api_types::{ChunkId, DeviceId, NodeName, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most things that one answer names as being in the way.
const BLOCKERS_MAX: usize = 8;

/// What was said of nodes and devices. It holds whatever they report, and through their restarts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Upkeep {
    maintenance: BTreeSet<NodeName>,
    evacuating: BTreeSet<DeviceId>,
    /// Devices that are never taken back. Formatting gives a device a new id, so this holds one id for each one removed.
    removed: BTreeSet<DeviceId>,
    /// Sealed chunks with copies enough, one of which must move.
    pub(crate) moving: BTreeSet<ChunkId>,
}

impl Upkeep {
    pub(crate) fn in_maintenance(&self, node: &NodeName) -> bool {
        self.maintenance.contains(node)
    }

    pub(crate) fn evacuates(&self, device: DeviceId) -> bool {
        self.evacuating.contains(&device)
    }

    pub(crate) fn is_removed(&self, device: DeviceId) -> bool {
        self.removed.contains(&device)
    }

    pub(crate) fn forget_node(&mut self, node: &NodeName) {
        self.maintenance.remove(node);
    }

    pub(crate) fn forget_device(&mut self, device: DeviceId) {
        self.evacuating.remove(&device);
    }
}

/// Whether an agent may stop now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StopCheck {
    /// What is in the way, for people; empty: it may. Eight at most.
    pub blockers: Vec<String>,
    /// Volumes served there. Their requests wait until an agent serves them again.
    pub attached: Vec<VolumeId>,
}

fn no_device(id: DeviceId) -> Error {
    Error::NotFound { what: format!("device {id}") }
}

impl State {
    /// Takes a node out for a while, or back in. A node that isn't known is refused.
    pub(crate) fn set_maintenance(&mut self, name: &NodeName, on: bool, events: &mut Vec<Event>) -> Result<Reply, Error> {
        if !self.nodes.contains_key(name) {
            return Err(Error::NotFound { what: format!("node `{name}`") });
        }
        let changed = if on { self.upkeep.maintenance.insert(name.clone()) } else { self.upkeep.maintenance.remove(name) };
        if changed {
            events.push(Event::NodeMaintenance(name.clone(), on));
            let devices = self.devices.iter().filter(|(_, device)| device.address.node == *name);
            for id in devices.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.device_changed(id, events);
            }
        }
        Ok(Reply::Done)
    }

    /// Begins to move all copies off a device, or stops doing so.
    pub(crate) fn evacuate_device(&mut self, id: DeviceId, on: bool, events: &mut Vec<Event>) -> Result<Reply, Error> {
        if !self.devices.contains_key(&id) {
            return Err(no_device(id));
        }
        let changed = if on { self.upkeep.evacuating.insert(id) } else { self.upkeep.evacuating.remove(&id) };
        if changed {
            events.push(Event::DeviceEvacuation(id, on));
            self.device_changed(id, events);
        }
        Ok(Reply::Done)
    }

    /// Strikes a device off for good. Refused while any chunk has a copy on it; one that is gone already is no error.
    pub(crate) fn remove_device(&mut self, id: DeviceId, events: &mut Vec<Event>) -> Result<Reply, Error> {
        let Some(device) = self.devices.get(&id) else {
            return if self.upkeep.is_removed(id) { Ok(Reply::Done) } else { Err(no_device(id)) };
        };
        if !device.chunks.is_empty() {
            let fix = if self.upkeep.evacuates(id) { "wait for its evacuation" } else { "evacuate it first" };
            return Err(Error::Conflict(format!(
                "device {id} holds copies of {} chunks, {} of them open{}: {fix}",
                device.chunks.len(),
                device.open,
                self.writers_on(id)
            )));
        }
        self.forget_device(id, events);
        self.upkeep.removed.insert(id);
        events.push(Event::DeviceRemoved(id));
        Ok(Reply::Done)
    }

    /// ` (volumes a, b)`: whose open chunks are on a device. They leave it once their writers have filled or closed them.
    fn writers_on(&self, id: DeviceId) -> String {
        let chunks = self.devices.get(&id).into_iter().flat_map(|device| &device.chunks);
        let open = chunks.filter_map(|id| self.chunks.get(id)).filter(|chunk| chunk.record.state == ChunkState::Granted);
        let volumes: BTreeSet<&str> = open
            .filter_map(|chunk| self.volumes.get(&VolumeId(chunk.record.shape.owner.0)))
            .map(|volume| volume.name.as_str())
            .collect();
        if volumes.is_empty() {
            return String::new();
        }
        let named: Vec<_> = volumes.iter().take(BLOCKERS_MAX).copied().collect();
        let more = if volumes.len() > named.len() { ", …" } else { "" };
        format!(" (volumes {}{more})", named.join(", "))
    }

    /// Whether a node's agent may stop now: every chunk keeps its other copies within reach, and new chunks still find
    /// devices.
    pub fn stop_check(&self, name: &NodeName) -> Result<StopCheck, Error> {
        if !self.nodes.contains_key(name) {
            return Err(Error::NotFound { what: format!("node `{name}`") });
        }
        let of_node = || self.devices.iter().filter(|(_, device)| device.address.node == *name);
        let chunks: BTreeSet<ChunkId> = of_node().flat_map(|(_, device)| device.chunks.iter().copied()).collect();
        let endangered: Vec<String> = chunks
            .iter()
            .filter_map(|id| self.chunks.get(id))
            .filter(|chunk| !self.lives_without(chunk, name))
            .map(|chunk| self.describe(chunk))
            .collect();
        let mut blockers = Vec::new();
        if let Some(first) = endangered.first() {
            blockers.push(format!("{} chunks would have too few copies within reach, such as {first}", endangered.len()));
        }
        blockers.extend(self.pools.keys().filter_map(|pool| self.starved(pool, name)));
        blockers.truncate(BLOCKERS_MAX);
        let served = self.volumes.iter().filter(|(_, volume)| volume.attached.as_ref() == Some(name));
        Ok(StopCheck { blockers, attached: served.map(|(id, _)| *id).collect() })
    }

    /// A sealed chunk needs all whole copies but the node's own, an open one all copies but that.
    fn lives_without(&self, chunk: &Chunk, node: &NodeName) -> bool {
        let remains =
            |copy: &&Copy| self.devices.get(&copy.device).is_some_and(|device| device.is_up() && device.address.node != *node);
        let copies = &chunk.record.copies;
        match chunk.record.state {
            ChunkState::Sealed { length: 0 } => true,
            ChunkState::Sealed { .. } => {
                let wanted = self.copies_wanted(chunk).saturating_sub(1).max(1);
                copies.iter().filter(|copy| copy.whole).filter(remains).count() >= wanted
            }
            ChunkState::Granted => copies.iter().filter(remains).count() >= copies.len().saturating_sub(1).max(1),
        }
    }

    fn describe(&self, chunk: &Chunk) -> String {
        let id = chunk.record.shape.chunk;
        match self.volumes.get(&VolumeId(chunk.record.shape.owner.0)) {
            Some(volume) => format!("chunk {id} of volume `{}`", volume.name),
            None => format!("chunk {id}"),
        }
    }

    /// What a pool that is in use would lack for new chunks.
    fn starved(&self, name: &str, without: &NodeName) -> Option<String> {
        let pool = self.pools.get(name).filter(|_| self.streams.values().any(|stream| stream.pool == name))?;
        let devices = self.devices.iter().filter(|(_, device)| device.address.node != *without);
        let domains: BTreeMap<String, DeviceId> = devices
            .filter(|(_, device)| device.takes_chunks(&self.upkeep))
            .filter_map(|(id, device)| Some((self.domain_of(&pool.failure_domain, device)?, *id)))
            .collect();
        let needed = usize::from(pool.replication.min_copy);
        (domains.len() < needed).then(|| {
            format!(
                "pool `{name}` would find {} failure domains (`{}`) for new chunks, it needs {needed}",
                domains.len(),
                pool.failure_domain
            )
        })
    }
}
