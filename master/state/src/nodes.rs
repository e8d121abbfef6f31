//! Nodes and devices: what registered, where it is, whether it can be counted on.

use crate::command::{Event, Reply};
use crate::state::State;
use crate::upkeep::Upkeep;
use api_types::master::{DeviceAddress, DeviceReport, Error, NodeReport};
use api_types::unit::Alignment;
use api_types::{ChunkId, DeviceId, NodeName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most devices one node may register.
const NODE_DEVICES_MAX: usize = 256;

/// What silence says of a node or a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Presence {
    /// Beats.
    Up,
    /// Silent for a little: no new chunks, nothing is rebuilt.
    Suspect,
    /// Silent for so long that its copies are made again elsewhere.
    Lost,
}

impl Presence {
    /// For people: `up`, `suspect` or `lost`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Up => "up",
            Presence::Suspect => "suspect",
            Presence::Lost => "lost",
        }
    }
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) presence: Presence,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) address: DeviceAddress,
    pub(crate) capacity_bytes: u64,
    /// As reported last.
    pub(crate) free_bytes: u64,
    pub(crate) alignment: Alignment,
    pub(crate) healthy: bool,
    pub(crate) presence: Presence,
    /// By the masters' own count: sealed lengths, whole capacities of open chunks, and what is still to be deleted.
    pub(crate) used_bytes: u64,
    /// Chunks with a copy here.
    pub(crate) chunks: BTreeSet<ChunkId>,
    /// How many of them are open.
    pub(crate) open: u32,
    /// What it must delete, by order.
    pub(crate) deletes: BTreeMap<u64, Doomed>,
    /// What it must make whole, by order.
    pub(crate) repairs: BTreeMap<u64, ChunkId>,
}

/// A copy to be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Doomed {
    pub(crate) chunk: ChunkId,
    pub(crate) bytes: u64,
}

impl Device {
    /// Its copies count as lost: silent for too long without leave, or reported broken.
    pub(crate) fn lost(&self, upkeep: &Upkeep) -> bool {
        !self.healthy || (self.presence == Presence::Lost && !upkeep.in_maintenance(&self.address.node))
    }

    /// Its copies can be read now.
    pub(crate) fn is_up(&self) -> bool {
        self.presence == Presence::Up && self.healthy
    }

    /// Takes new chunks.
    pub(crate) fn takes_chunks(&self, upkeep: &Upkeep) -> bool {
        self.is_up() && !upkeep.in_maintenance(&self.address.node) && !upkeep.evacuates(self.address.device)
    }

    /// Bytes that new chunks may take: the smaller of our count and its report.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes).min(self.free_bytes)
    }
}

/// A device, to be shown or measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceView {
    /// Where.
    pub address: DeviceAddress,
    /// Bytes for chunks in all.
    pub capacity_bytes: u64,
    /// Bytes that new chunks may take.
    pub available_bytes: u64,
    /// Alignment it wants.
    pub alignment: Alignment,
    /// What it said and what its silence says.
    pub state: DeviceState,
    /// Chunks with a copy here.
    pub chunks: u64,
    /// Chunks it still has to delete.
    pub deletes: u64,
    /// Copies it is to make.
    pub repairs: u64,
    /// Chunks here that are open: they can't be moved yet.
    pub open: u64,
    /// Its copies are being moved away.
    pub evacuating: bool,
}

/// See [`DeviceView::state`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// It said that it works.
    pub healthy: bool,
    /// What its silence says.
    pub presence: Presence,
}

/// A node, to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its name.
    pub node: NodeName,
    /// Failure-domain labels.
    pub labels: BTreeMap<String, String>,
    /// What its silence says.
    pub presence: Presence,
    /// It is out for a while: nothing is rebuilt for it.
    pub maintenance: bool,
    /// Its devices.
    pub devices: Vec<DeviceView>,
}

impl State {
    pub(crate) fn register(&mut self, report: &NodeReport, events: &mut Vec<Event>) -> Result<Reply, Error> {
        self.check_report(report)?;
        for device in &report.devices {
            self.check_device(&report.node, device)?;
        }
        let node = Node { labels: report.labels.clone(), presence: Presence::Up };
        self.nodes.insert(report.node.clone(), node);
        events.push(Event::NodeRegistered(report.node.clone()));
        let known = |device: &&DeviceReport| !self.upkeep.is_removed(device.address.device);
        for device in report.devices.iter().filter(known).cloned().collect::<Vec<_>>() {
            self.observe_device(&device, events);
            self.set_device_presence(device.address.device, Presence::Up, events);
        }
        for result in &report.done {
            self.order_ended(&report.node, result, events);
        }
        Ok(Reply::Done)
    }

    /// Refuses a report that doesn't belong here.
    pub(crate) fn check_report(&self, report: &NodeReport) -> Result<(), Error> {
        let cluster = self.cluster.ok_or_else(|| Error::Unavailable("the cluster has no name yet".into()))?;
        if report.cluster != cluster {
            return Err(Error::Invalid(format!(
                "cluster: node `{}` belongs to cluster {}, this is {cluster}: start it with the right masters or empty devices",
                report.node, report.cluster
            )));
        }
        crate::namespace::check_name("node", &report.node.0)?;
        if report.devices.len() > NODE_DEVICES_MAX {
            return Err(Error::Invalid(format!("devices: {} is more than {NODE_DEVICES_MAX}", report.devices.len())));
        }
        Ok(())
    }

    /// Refuses a device that another live node has: two disks with one id, or one disk seen twice.
    fn check_device(&self, node: &NodeName, report: &DeviceReport) -> Result<(), Error> {
        let (id, address) = (report.address.device, &report.address);
        if id.0 == 0 {
            return Err(Error::Invalid("device: id 0 is not a device".into()));
        }
        if address.node != *node {
            return Err(Error::Invalid(format!("device {id}: node `{}` is not the reporting node `{node}`", address.node)));
        }
        if let Some(known) = self.devices.get(&id)
            && known.address.node != *node
            && known.presence == Presence::Up
        {
            return Err(Error::Conflict(format!(
                "device {id} is in use on node `{}`: a copied disk must be formatted anew before it can be used",
                known.address.node
            )));
        }
        Ok(())
    }

    /// Takes over what an agent says of its device.
    pub(crate) fn observe_device(&mut self, report: &DeviceReport, events: &mut Vec<Event>) {
        let id = report.address.device;
        let device = self.devices.entry(id).or_insert_with(|| Device {
            address: report.address.clone(),
            capacity_bytes: 0,
            free_bytes: 0,
            alignment: report.alignment,
            healthy: report.healthy,
            presence: Presence::Up,
            used_bytes: 0,
            chunks: BTreeSet::new(),
            open: 0,
            deletes: BTreeMap::new(),
            repairs: BTreeMap::new(),
        });
        device.address = report.address.clone();
        device.capacity_bytes = report.capacity_bytes;
        device.free_bytes = report.free_bytes;
        device.alignment = report.alignment;
        if device.healthy != report.healthy {
            device.healthy = report.healthy;
            events.push(Event::DeviceHealth(id, report.healthy));
            self.device_changed(id, events);
        }
    }

    pub(crate) fn set_presence(
        &mut self,
        nodes: &[(NodeName, Presence)],
        devices: &[(DeviceId, Presence)],
        events: &mut Vec<Event>,
    ) -> Reply {
        for (name, presence) in nodes {
            if let Some(node) = self.nodes.get_mut(name)
                && node.presence != *presence
            {
                node.presence = *presence;
                events.push(Event::NodePresence(name.clone(), *presence));
            }
        }
        for (id, presence) in devices {
            self.set_device_presence(*id, *presence, events);
        }
        Reply::Done
    }

    fn set_device_presence(&mut self, id: DeviceId, presence: Presence, events: &mut Vec<Event>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.presence == presence {
            return;
        }
        let was_lost = device.lost(&self.upkeep);
        device.presence = presence;
        events.push(Event::DevicePresence(id, presence));
        // Copies too many are only dropped while enough others are up: one that comes back may be what was waited for.
        if presence == Presence::Up || self.devices.get(&id).is_some_and(|device| device.lost(&self.upkeep) != was_lost) {
            self.device_changed(id, events);
        }
    }

    /// A node and its devices never come back: every copy there is struck off.
    pub(crate) fn forget_node(&mut self, name: &NodeName, events: &mut Vec<Event>) -> Result<Reply, Error> {
        let Some(node) = self.nodes.get(name) else { return Ok(Reply::Done) };
        if node.presence == Presence::Up {
            return Err(Error::Conflict(format!("node `{name}` is up: stop its agent first")));
        }
        let gone: Vec<DeviceId> =
            self.devices.iter().filter(|(_, device)| device.address.node == *name).map(|(id, _)| *id).collect();
        for id in &gone {
            if let Some(chunk) = self.only_whole_copies_on(*id, &gone) {
                return Err(Error::Conflict(format!("node `{name}` holds the only whole copy of chunk {chunk} on device {id}")));
            }
        }
        for id in gone {
            self.forget_device(id, events);
        }
        self.nodes.remove(name);
        self.upkeep.forget_node(name);
        events.push(Event::NodeForgotten(name.clone()));
        Ok(Reply::Done)
    }

    /// Nodes with their devices.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        let of = |name: &NodeName| {
            let devices = self.devices.values().filter(|device| device.address.node == *name);
            devices.map(|device| view(device, &self.upkeep)).collect()
        };
        self.nodes
            .iter()
            .map(|(name, node)| NodeView {
                node: name.clone(),
                labels: node.labels.clone(),
                presence: node.presence,
                maintenance: self.upkeep.in_maintenance(name),
                devices: of(name),
            })
            .collect()
    }

    /// Where all devices are, ordered by id.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceAddress> {
        self.devices.values().map(|device| device.address.clone()).collect()
    }

    /// One device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<DeviceView> {
        self.devices.get(&id).map(|device| view(device, &self.upkeep))
    }
}

fn view(device: &Device, upkeep: &Upkeep) -> DeviceView {
    DeviceView {
        address: device.address.clone(),
        capacity_bytes: device.capacity_bytes,
        available_bytes: device.available_bytes(),
        alignment: device.alignment,
        state: DeviceState { healthy: device.healthy, presence: device.presence },
        chunks: device.chunks.len() as u64,
        deletes: device.deletes.len() as u64,
        repairs: device.repairs.len() as u64,
        open: u64::from(device.open),
        evacuating: upkeep.evacuates(device.address.device),
    }
}
