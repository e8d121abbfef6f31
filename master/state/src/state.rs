//! The whole state, the door that every change goes through, and its bytes in a snapshot.

use crate::answers::Answers;
use crate::chunks::{Chunk, Stream};
use crate::command::{Body, Command, Event, NewPool, Outcome, Reply};
use crate::namespace::{Entry, Namespace};
use crate::nodes::{Device, Node};
use crate::pools::{Pool, check_pool};
use crate::upkeep::Upkeep;
use crate::volumes::outside_volumes;
use api_types::master::{Error, VolumeRecord};
use api_types::{ChunkId, ClusterId, DeviceId, NodeName, Rule, StreamId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// First byte of an encoded state.
const VERSION: u8 = 2;
/// Version 1 ended before the upkeep: four empty sets.
const NO_UPKEEP: [u8; 4] = [0; 4];
/// The most names one listing answers.
const LIST_MAX: usize = 1000;

/// Everything that the masters agree on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    pub(crate) cluster: Option<ClusterId>,
    /// The last volume, stream or chunk id given out. Never goes back: ids are not used twice.
    pub(crate) last_id: u64,
    pub(crate) last_order: u64,
    /// The leader's wall clock at the command being applied.
    pub(crate) at_ms: u64,
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) devices: BTreeMap<DeviceId, Device>,
    pub(crate) pools: BTreeMap<String, Pool>,
    pub(crate) namespace: Namespace,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) chunks: BTreeMap<ChunkId, Chunk>,
    pub(crate) open_chunks: u64,
    /// Sealed chunks with too few whole copies: how many they have, fewest first.
    pub(crate) short: BTreeSet<(u8, ChunkId)>,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeRecord>,
    pub(crate) volume_names: BTreeMap<String, VolumeId>,
    pub(crate) answers: Answers,
    pub(crate) upkeep: Upkeep,
}

/// Bytes that aren't a state.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("state has version {0}, this program reads {VERSION}")]
    Version(u8),
    /// Cut off or damaged.
    #[error("state can't be read: {0}")]
    Damaged(String),
}

impl State {
    /// Nothing: no cluster yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one command: all of it, or nothing and an error.
    pub fn apply(&mut self, command: &Command) -> Outcome {
        if let Some(reply) = self.answers.get(command.request_id) {
            return Outcome { reply: Ok(reply.clone()), events: Vec::new() };
        }
        self.at_ms = command.at_ms;
        let mut events = Vec::new();
        let reply = self.dispatch(&command.body, command.seed, &mut events);
        if let Ok(reply) = &reply {
            self.answers.keep(command.request_id, command.at_ms, reply.clone());
        }
        Outcome { reply, events }
    }

    fn dispatch(&mut self, body: &Body, seed: u64, events: &mut Vec<Event>) -> Result<Reply, Error> {
        match body {
            Body::Bootstrap { cluster, pools } => self.bootstrap(*cluster, pools, events),
            _ if self.cluster.is_none() => Err(Error::Unavailable("the cluster has no name yet".into())),
            Body::Register(report) => self.register(report, events),
            Body::Observe { node, devices, done } => {
                for device in devices
                    .iter()
                    .filter(|device| self.devices.get(&device.address.device).is_some_and(|known| known.address.node == *node))
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    self.observe_device(&device, events);
                }
                for result in done {
                    self.order_ended(node, result, events);
                }
                Ok(Reply::Done)
            }
            Body::SetPresence { nodes, devices } => Ok(self.set_presence(nodes, devices, events)),
            Body::ForgetNode(node) => self.forget_node(node, events),
            Body::PlanRepairs => Ok(self.plan_repairs(seed, events)),
            Body::CreatePool(pool) => self.create_pool(pool),
            Body::CreateVolume(volume) => self.create_volume(volume, events),
            Body::DeleteVolume { volume, force } => self.delete_volume(*volume, *force, events),
            Body::GrowVolume { volume, size_bytes } => self.grow_volume(*volume, *size_bytes),
            Body::SetQos { volume, qos } => self.set_qos(*volume, *qos),
            Body::Publish { volume, node } => self.publish(*volume, node),
            Body::Unpublish { volume, node } => Ok(self.unpublish(*volume, node.as_ref())),
            Body::OpenVolume { volume, node } => self.open_volume(*volume, node, events),
            Body::CloseVolume { volume, epoch } => self.close_volume(*volume, *epoch),
            Body::SetRoot { volume, epoch, root } => self.set_root(*volume, *epoch, *root),
            Body::Grant(grant) => self.grant(grant, seed),
            Body::Seal(seal) => self.seal(seal, events),
            Body::DeleteChunks { stream, epoch, chunks } => self.delete_chunks(*stream, *epoch, chunks),
            Body::ReportBadCopy(bad) => Ok(self.report_bad_copy(bad, events)),
            Body::MakeDirectory(path) => {
                outside_volumes(path)?;
                self.namespace.make_directory(path).map(|id| Reply::Entry(Entry::Directory(id)))
            }
            Body::CreateFile { path, pool } => self.create_file(path, pool),
            Body::OpenFile(stream) => self.open_file(*stream),
            Body::Remove(path) => self.remove_path(path),
            Body::SetMaintenance { node, on } => self.set_maintenance(node, *on, events),
            Body::EvacuateDevice { device, on } => self.evacuate_device(*device, *on, events),
            Body::RemoveDevice(device) => self.remove_device(*device, events),
        }
    }

    fn bootstrap(&mut self, cluster: ClusterId, pools: &[NewPool], events: &mut Vec<Event>) -> Result<Reply, Error> {
        if let Some(known) = self.cluster {
            return match known == cluster {
                true => Ok(Reply::Cluster(known)),
                false => Err(Error::Conflict(format!("this is cluster {known} already"))),
            };
        }
        for pool in pools {
            check_pool(pool)?;
        }
        self.cluster = Some(cluster);
        for pool in pools.iter().chain([&NewPool::default()]) {
            if !self.pools.contains_key(&pool.name) {
                self.create_pool(pool)?;
            }
        }
        self.namespace.make_directory("/volumes")?;
        events.push(Event::Bootstrapped(cluster));
        Ok(Reply::Cluster(cluster))
    }

    /// The next id of a volume, stream or chunk.
    pub(crate) fn draw_id(&mut self) -> u64 {
        self.last_id += 1;
        if !Rule::IdsOnce.is_kept()
            && let Some(free) = (1..self.last_id).find(|id| self.is_unused(*id))
        {
            return free;
        }
        self.last_id
    }

    fn is_unused(&self, id: u64) -> bool {
        let streams = self.streams.contains_key(&StreamId(id));
        !(streams || self.chunks.contains_key(&ChunkId(id)) || self.volumes.contains_key(&VolumeId(id)))
    }

    pub(crate) fn draw_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    /// The cluster's name; `None` before the first command.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// What a path stands for.
    pub fn lookup(&self, path: &str) -> Result<Entry, Error> {
        self.namespace.lookup(path)
    }

    /// Names in a directory above `after`, ascending, `limit` at most (zero: 1000).
    pub fn list(&self, path: &str, after: &str, limit: usize) -> Result<Vec<(String, Entry)>, Error> {
        let limit = if limit == 0 { LIST_MAX } else { limit.min(LIST_MAX) };
        self.namespace.list(path, after, limit)
    }

    /// The bytes of a snapshot.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        postcard::to_extend(self, vec![VERSION]).map_err(|error| DecodeError::Damaged(error.to_string()))
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<State, DecodeError> {
        let read = |bytes: &[u8]| postcard::from_bytes(bytes).map_err(|error| DecodeError::Damaged(error.to_string()));
        match bytes.split_first() {
            Some((&VERSION, rest)) => read(rest),
            Some((1, rest)) => read(&[rest, &NO_UPKEEP].concat()),
            Some((version, _)) => Err(DecodeError::Version(*version)),
            None => Err(DecodeError::Damaged("it is empty".into())),
        }
    }
}

#[cfg(test)]
mod tests;
