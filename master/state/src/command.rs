//! What can be asked of the state, and what comes back.

use crate::namespace::Entry;
use crate::nodes::Presence;
use api_types::master::{
    BadCopy, ChunkRecord, DeviceReport, Error, Grant, NodeReport, OrderResult, PoolRecord, QosLimits, Replication, RootPointer,
    SealChunk, VolumeLease, VolumeRecord,
};
use api_types::{ChunkId, ClusterId, DeviceId, Epoch, NodeName, RequestId, StreamId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One change, as the leader puts it in the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Names the attempt. Zero: nobody will ask again, the answer isn't kept.
    pub request_id: RequestId,
    /// Wall clock of the leader in ms, for ages and pauses; nothing depends on it going forward.
    pub at_ms: u64,
    /// Chance for this command, drawn by the leader.
    pub seed: u64,
    /// What to do.
    pub body: Body,
}

/// See [`Command`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// The first command of a cluster: names it and makes its first pools. Refused when another cluster is here already.
    Bootstrap {
        /// The new cluster.
        cluster: ClusterId,
        /// Its first pools; `default` is made with standard properties when it isn't among them.
        pools: Vec<NewPool>,
    },
    /// A node came up.
    Register(NodeReport),
    /// What a beat brought that is worth remembering; made by [`crate::State::news`].
    Observe {
        /// Whose.
        node: NodeName,
        /// Devices whose properties changed.
        devices: Vec<DeviceReport>,
        /// Orders that ended.
        done: Vec<OrderResult>,
    },
    /// Nodes and devices fell silent, or came back; made by [`crate::Liveness`].
    SetPresence {
        /// Nodes, with what they are now.
        nodes: Vec<(NodeName, Presence)>,
        /// Devices, with what they are now.
        devices: Vec<(DeviceId, Presence)>,
    },
    /// A node is gone for good, with its devices. Refused while it is up.
    ForgetNode(NodeName),
    /// Picks the next repairs. Does nothing when there is nothing to pick.
    PlanRepairs,
    /// Makes a pool. The same again is no error.
    CreatePool(NewPool),
    /// Makes a volume and its streams. The same again answers the volume that is there.
    CreateVolume(NewVolume),
    /// Removes a volume with all its chunks.
    DeleteVolume {
        /// Which. A volume that is gone is no error.
        volume: VolumeId,
        /// Although it is attached.
        force: bool,
    },
    /// Makes a volume larger.
    GrowVolume {
        /// Which.
        volume: VolumeId,
        /// New size; below the present one is refused.
        size_bytes: u64,
    },
    /// Changes the limits of a volume.
    SetQos {
        /// Which.
        volume: VolumeId,
        /// The new limits.
        qos: QosLimits,
    },
    /// Notes the node that may attach a volume. Refused while another one is noted.
    Publish {
        /// Which.
        volume: VolumeId,
        /// To.
        node: NodeName,
    },
    /// Takes that back, unless another node is noted by now. When the node is lost and was the writer, it is fenced.
    Unpublish {
        /// Which. A volume that is gone is no error.
        volume: VolumeId,
        /// From; `None`: from wherever it is.
        node: Option<NodeName>,
    },
    /// A new writer: the epoch rises by one.
    OpenVolume {
        /// Which.
        volume: VolumeId,
        /// Where the writer runs.
        node: NodeName,
    },
    /// The writer stops.
    CloseVolume {
        /// Which.
        volume: VolumeId,
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// Records the newest checkpoint.
    SetRoot {
        /// Which.
        volume: VolumeId,
        /// The writer's epoch.
        epoch: Epoch,
        /// Where the checkpoint starts.
        root: RootPointer,
    },
    /// Chunks for the end of a stream.
    Grant(Grant),
    /// The end of a chunk.
    Seal(SealChunk),
    /// Chunks that are not needed any more.
    DeleteChunks {
        /// Whose.
        stream: StreamId,
        /// The writer's epoch.
        epoch: Epoch,
        /// Which. Those already gone are no error.
        chunks: Vec<ChunkId>,
    },
    /// A copy that failed its reader.
    ReportBadCopy(BadCopy),
    /// Makes a directory. One that is there is no error.
    MakeDirectory(String),
    /// Makes a file. Refused when the name is taken.
    CreateFile {
        /// Its path.
        path: String,
        /// Its pool; empty: `default`.
        pool: String,
    },
    /// A new writer of a file outside any volume.
    OpenFile(StreamId),
    /// Removes a file with its chunks, or an empty directory. Nothing below `/volumes`.
    Remove(String),
    /// Takes a node out for a while, or back in. The same again is no error.
    SetMaintenance {
        /// Which.
        node: NodeName,
        /// Out.
        on: bool,
    },
    /// Moves all copies off a device, or stops doing so. The same again is no error.
    EvacuateDevice {
        /// Which.
        device: DeviceId,
        /// Move them.
        on: bool,
    },
    /// Strikes a device off for good. Refused while any chunk has a copy on it.
    RemoveDevice(DeviceId),
}

/// A pool to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Copies.
    pub replication: Replication,
    /// Capacity of new chunks, in bytes.
    pub chunk_bytes: u32,
    /// `node`, `device`, or the name of a node label: no two copies of a chunk are in one of these.
    pub failure_domain: String,
}

impl Default for NewPool {
    fn default() -> Self {
        NewPool {
            name: "default".to_owned(),
            replication: Replication::default(),
            chunk_bytes: 64 << 20,
            failure_domain: "node".to_owned(),
        }
    }
}

/// A volume to be made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Size in bytes, a multiple of the block.
    pub size_bytes: u64,
    /// Its pool; empty: `default`.
    pub pool: String,
    /// Foreground limits.
    pub qos: QosLimits,
    /// Remembered, to tell a retry from a conflict.
    pub parameters: BTreeMap<String, String>,
}

/// What the new writer of a file outside any volume gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileLease {
    /// Its epoch.
    pub epoch: Epoch,
    /// Copies of the pool.
    pub replication: Replication,
    /// Capacity of new chunks, in bytes.
    pub chunk_bytes: u32,
}

/// What a command answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// Of `Bootstrap`.
    Cluster(ClusterId),
    /// Of `Grant`.
    Chunks(Vec<ChunkRecord>),
    /// Of `Seal`: the recorded length.
    Length(u32),
    /// Of what makes or changes a volume.
    Volume(VolumeRecord),
    /// Of `OpenVolume`.
    Lease(VolumeLease),
    /// Of `MakeDirectory` and `CreateFile`.
    Entry(Entry),
    /// Of `OpenFile`.
    File(FileLease),
    /// Of `CreatePool`.
    Pool(PoolRecord),
}

/// What happened, for logs, metrics and whoever waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A cluster was named.
    Bootstrapped(ClusterId),
    /// A node is there for the first time or again.
    NodeRegistered(NodeName),
    /// A node's presence changed.
    NodePresence(NodeName, Presence),
    /// A device's presence changed.
    DevicePresence(DeviceId, Presence),
    /// A device's health changed.
    DeviceHealth(DeviceId, bool),
    /// A node was forgotten.
    NodeForgotten(NodeName),
    /// A volume was made.
    VolumeCreated(VolumeId),
    /// A volume was removed.
    VolumeDeleted(VolumeId),
    /// A volume has a new writer.
    VolumeOpened(VolumeId, Epoch, NodeName),
    /// A chunk was sealed at a length.
    ChunkSealed(ChunkId, u32),
    /// A copy turned out to be bad.
    CopyBad(ChunkId, DeviceId),
    /// A copy too many will be deleted.
    CopyDropped(ChunkId, DeviceId),
    /// A copy will be made on a device.
    RepairStarted(ChunkId, DeviceId),
    /// A copy is whole again.
    RepairDone(ChunkId, DeviceId),
    /// A copy could not be made.
    RepairFailed(ChunkId, DeviceId, String),
    /// A node went into maintenance, or came out of it.
    NodeMaintenance(NodeName, bool),
    /// A device is to be emptied, or not any more.
    DeviceEvacuation(DeviceId, bool),
    /// A device was struck off.
    DeviceRemoved(DeviceId),
}

/// The whole effect of a command, for whoever gave it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The answer.
    pub reply: Result<Reply, Error>,
    /// What happened. Empty when the answer comes from memory.
    pub events: Vec<Event>,
}
