//! What clients, agents, CSI and people ask of the masters, as plain values. `api-wire` carries them over gRPC,
//! `master-state` decides them.

use crate::id::{ChunkId, ClusterId, DeviceId, Epoch, NodeName, StreamId, VolumeId};
use crate::qos::LifetimeClass;
use crate::unit::{Alignment, ChunkShape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a pool keeps its copies. `EC(k, m)` will stand beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replication {
    /// Copies a chunk has when all is well.
    pub max_copy: u8,
    /// Copies that must hold a byte before it is committed; more than half of `max_copy`.
    pub min_copy: u8,
}

impl Default for Replication {
    fn default() -> Self {
        Replication { max_copy: 3, min_copy: 2 }
    }
}

/// Which part of a chunk a device holds. Shards of erasure-coded chunks will have indices of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A whole copy.
    Replica,
}

/// One copy of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Copy {
    /// Where.
    pub device: DeviceId,
    /// As what.
    pub role: Role,
    /// Holds every byte up to the chunk's sealed length, as far as the masters know. Not meaningful before the seal.
    pub whole: bool,
}

/// The life of a chunk at the masters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ChunkState {
    /// Granted to a writer: unused as yet, or open.
    Granted,
    /// So long for ever.
    Sealed {
        /// Committed length in bytes. Zero: it never held anything, and may be deleted.
        length: u32,
    },
}

/// A chunk as the masters know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// What it is.
    pub shape: ChunkShape,
    /// Whose.
    pub stream: StreamId,
    /// Place in the stream's order: 0, 1, 2 … as granted; never given twice.
    pub index: u64,
    /// Open or sealed.
    pub state: ChunkState,
    /// Where.
    pub copies: Vec<Copy>,
}

/// What a stream is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamRecord {
    /// Its name.
    pub stream: StreamId,
    /// Its chunks in stream order; deleted ones are missing.
    pub chunks: Vec<ChunkRecord>,
}

/// Where a device can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceAddress {
    /// Which device.
    pub device: DeviceId,
    /// On which node.
    pub node: NodeName,
    /// `host:port` of the core that owns it.
    pub endpoint: String,
    /// Media class, for latency models: `nvme`, `ssd`, `hdd`, `memory`.
    pub media: String,
}

/// The files of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeStreams {
    /// What users write.
    pub hot: StreamId,
    /// What reclaim kept.
    pub cold: StreamId,
    /// Map leaves and checkpoints.
    pub index: StreamId,
}

/// Where the newest checkpoint of a volume starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RootPointer {
    /// Chunk of the index stream.
    pub chunk: ChunkId,
    /// Start of the root's unit in it.
    pub offset: u32,
    /// Length of that unit.
    pub length: u32,
}

/// Limits of a volume's foreground requests. Zero is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosLimits {
    /// Requests a second.
    pub iops: u64,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Seconds of unused allowance that may be spent at once.
    pub burst_seconds: u32,
}

/// A volume as the masters know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its id.
    pub volume: VolumeId,
    /// Its name: unique, as CSI's `CreateVolume` gave it.
    pub name: String,
    /// Size that the user sees, in bytes; a multiple of the block.
    pub size_bytes: u64,
    /// Pool it lives in.
    pub pool: String,
    /// The newest writer's epoch. Zero: never attached.
    pub epoch: Epoch,
    /// Node of the newest writer, while it is attached.
    pub attached: Option<NodeName>,
    /// Node that may attach it, as CSI's `ControllerPublishVolume` settled. `None`: nobody has said.
    pub published: Option<NodeName>,
    /// Its files.
    pub streams: VolumeStreams,
    /// Newest checkpoint.
    pub root: Option<RootPointer>,
    /// Foreground limits.
    pub qos: QosLimits,
    /// Remembered parameters, to tell a retry from a conflict.
    pub parameters: BTreeMap<String, String>,
}

/// What a new writer gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeLease {
    /// With the new epoch in it.
    pub volume: VolumeRecord,
    /// Copies of the pool.
    pub replication: Replication,
    /// Capacity of new chunks in bytes.
    pub chunk_bytes: u32,
}

/// Asks for chunks at the end of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The stream.
    pub stream: StreamId,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// How many; at most 16. Fewer may come when space is short, never none.
    pub count: u32,
    /// Capacity of each, in bytes.
    pub capacity: u32,
    /// Lifetime class of each.
    pub class: LifetimeClass,
    /// Devices that the client can't use just now. A hint: ignored where it would make placement impossible.
    pub avoid: Vec<DeviceId>,
}

/// Tells the masters that a chunk is closed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SealChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// The writer's (or recoverer's) epoch.
    pub epoch: Epoch,
    /// Committed length. Recorded once: a later seal of the same chunk gets the recorded length as its answer.
    pub length: u32,
    /// Devices known to hold every byte. The others are repaired.
    pub whole: Vec<DeviceId>,
}

/// A copy that failed its reader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BadCopy {
    /// The chunk.
    pub chunk: ChunkId,
    /// The device.
    pub device: DeviceId,
    /// What was seen, for people.
    pub reason: String,
}

/// A device as its agent registers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Where.
    pub address: DeviceAddress,
    /// Bytes for chunks in all.
    pub capacity_bytes: u64,
    /// Bytes left.
    pub free_bytes: u64,
    /// Alignment it wants.
    pub alignment: Alignment,
    /// It works: an agent whose device failed reports it with `false`.
    pub healthy: bool,
}

/// A node as it registers and as it beats.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name.
    pub node: NodeName,
    /// Cluster the node's devices belong to; refused when it isn't this one.
    pub cluster: ClusterId,
    /// Failure-domain labels, such as `zone`, `rack`.
    pub labels: BTreeMap<String, String>,
    /// Its devices, all of them.
    pub devices: Vec<DeviceReport>,
    /// Volumes it serves, with the epoch it serves each with.
    pub volumes: Vec<(VolumeId, Epoch)>,
    /// Orders done, or failed for good, since the last beat.
    pub done: Vec<OrderResult>,
}

/// One thing the masters want an agent to do. Repeated with every beat until reported done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Names the order.
    pub id: u64,
    /// On this device of the agent.
    pub device: DeviceId,
    /// What.
    pub work: Work,
}

/// See [`Order`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Delete a chunk.
    Delete(ChunkId),
    /// Make `device` hold a whole copy of a sealed chunk, read from any of `sources`.
    Repair {
        /// What the chunk is.
        shape: ChunkShape,
        /// Its sealed length.
        length: u32,
        /// Devices that hold it whole.
        sources: Vec<DeviceId>,
    },
}

/// How an order ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OrderResult {
    /// Which.
    pub id: u64,
    /// `None`: done. Otherwise why not.
    pub error: Option<String>,
}

/// The answer to a beat.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeOrders {
    /// To do, most urgent first.
    pub orders: Vec<Order>,
    /// The newest epoch of each volume the node said it serves. A newer one than its own: stop serving at once. A
    /// volume that is gone has epoch `u64::MAX`.
    pub epochs: Vec<(VolumeId, Epoch)>,
    /// How long the beat's answer lets the node serve reads of its volumes, in ms.
    pub lease_ms: u64,
}

/// A pool, in short.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// Copies.
    pub replication: Replication,
    /// Capacity of new chunks of its volumes, in bytes.
    pub chunk_bytes: u32,
    /// Label that separates failure domains; `node` is the node's name.
    pub failure_domain: String,
    /// Bytes of user data it can still take, copies and reserve counted.
    pub available_bytes: u64,
    /// Bytes of user data it could take in all.
    pub capacity_bytes: u64,
}

/// Why the masters didn't do what was asked. Each kind is something else for the caller to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// No leader answers just now: try again.
    #[error("no master leads at the moment: {0}")]
    Unavailable(String),
    /// A newer writer exists: stop for ever.
    #[error("fenced: the epoch is {epoch} now")]
    Fenced {
        /// The newest epoch.
        epoch: Epoch,
    },
    /// There is no such thing.
    #[error("{what} does not exist")]
    NotFound {
        /// Kind and name.
        what: String,
    },
    /// It exists, with other properties; or it is in use.
    #[error("{0}")]
    Conflict(String),
    /// Not enough space or not enough devices in separate failure domains. The text says which.
    #[error("{0}")]
    NoSpace(String),
    /// The request breaks a rule; the text names the field and the fix.
    #[error("{0}")]
    Invalid(String),
}

/// What the data path asks of the masters: a gRPC connection, or simulated masters. Every call is bounded in time by
/// the implementation, which retries what is safe to retry (one request id for all tries) and answers
/// [`Error::Unavailable`] when it gives up.
pub trait MasterClient {
    /// Takes chunks at the end of a stream.
    fn grant(&self, grant: Grant) -> futures::future::LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>>;
    /// Records the length of a chunk for ever; the recorded length is the answer.
    fn seal(&self, seal: SealChunk) -> futures::future::LocalBoxFuture<'static, Result<u32, Error>>;
    /// All chunks of a stream.
    fn stream(&self, stream: StreamId) -> futures::future::LocalBoxFuture<'static, Result<StreamRecord, Error>>;
    /// Where chunks are. Those that don't exist are missing from the answer.
    fn locate(&self, chunks: Vec<ChunkId>) -> futures::future::LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>>;
    /// Gives chunks of a stream back. Those already gone are no error.
    fn delete_chunks(
        &self,
        stream: StreamId,
        epoch: Epoch,
        chunks: Vec<ChunkId>,
    ) -> futures::future::LocalBoxFuture<'static, Result<(), Error>>;
    /// Reports a copy that doesn't verify or is missing.
    fn report(&self, bad: BadCopy) -> futures::future::LocalBoxFuture<'static, Result<(), Error>>;
    /// Where devices are; all of them.
    fn devices(&self) -> futures::future::LocalBoxFuture<'static, Result<Vec<DeviceAddress>, Error>>;
    /// Becomes the writer of a volume, with the next epoch.
    fn open_volume(
        &self,
        volume: VolumeId,
        node: NodeName,
    ) -> futures::future::LocalBoxFuture<'static, Result<VolumeLease, Error>>;
    /// Stops being the writer. The epoch stays.
    fn close_volume(&self, volume: VolumeId, epoch: Epoch) -> futures::future::LocalBoxFuture<'static, Result<(), Error>>;
    /// Records the newest checkpoint.
    fn set_root(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        root: RootPointer,
    ) -> futures::future::LocalBoxFuture<'static, Result<(), Error>>;
}
