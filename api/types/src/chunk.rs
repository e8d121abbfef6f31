//! What can be asked of a chunk store, and what it may answer. The same requests are served by an engine, carried by
//! frames, and simulated; `docs/protocol.md` holds the tables.

use crate::id::{ChunkId, DeviceId, Epoch, OwnerId};
use crate::qos::QosClass;
use crate::unit::ChunkShape;
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::time::Duration;

/// Appends one whole unit.
#[derive(Debug, Clone)]
pub struct Append {
    /// The chunk.
    pub chunk: ChunkId,
    /// The writer's epoch; must be the chunk's.
    pub epoch: Epoch,
    /// Where in the chunk the unit starts; must be the end of what was appended before, or a unit already there.
    pub offset: u32,
    /// The bytes, footer included, as `unit::finish_unit` makes them.
    pub unit: Bytes,
    /// Create the chunk from the shape in the footer, when the store doesn't have it. Only with offset zero.
    pub create: bool,
    /// Who asks.
    pub qos: QosClass,
}

/// Reads bytes of a chunk, as they are stored: checksums are the reader's to check.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The chunk.
    pub chunk: ChunkId,
    /// The first byte; any number.
    pub offset: u32,
    /// How many, at most `limits::READ_BYTES_MAX`.
    pub length: u32,
    /// Who asks.
    pub qos: QosClass,
}

/// Ends appends to a chunk for ever.
#[derive(Debug, Clone, Copy)]
pub struct Seal {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its fencing group.
    pub owner: OwnerId,
    /// The epoch of who seals. Refused when below the owner's floor; raises the floor to itself, durably, so that
    /// anything of an older epoch that is still on its way is refused for ever (also a CREATE of a chunk that isn't
    /// here).
    pub epoch: Epoch,
    /// Where to cut. A longer chunk forgets what is beyond; a shorter one answers its own length and stays to be
    /// repaired. `None`: at whatever is durable. The length never grows, and once cut at a given length that is final.
    pub length: Option<u32>,
}

/// What a store knows of a chunk after a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// The chunk is here, sealed, and so long.
    At(u32),
    /// The chunk isn't here and will never be: the floor keeps a late CREATE out.
    Absent,
}

/// A chunk as its store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkInfo {
    /// What it was created as.
    pub shape: ChunkShape,
    /// Bytes that are durable here.
    pub length: u32,
    /// No append will be taken any more.
    pub sealed: bool,
}

/// What reading a chunk from end to end found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubReport {
    /// Units that verified.
    pub units: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Where the first unit that doesn't verify starts.
    pub bad_at: Option<u32>,
}

/// A store in short, as a probe answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Bytes that chunks may take in all.
    pub capacity_bytes: u64,
    /// Bytes not taken by any chunk.
    pub free_bytes: u64,
    /// How many chunks there are.
    pub chunks: u64,
    /// Requests at the device or waiting for it.
    pub queued: u32,
}

/// A request to one store.
#[derive(Debug, Clone)]
pub enum Request {
    /// See [`Append`].
    Append(Append),
    /// See [`Read`].
    Read(Read),
    /// See [`Seal`].
    Seal(Seal),
    /// Forget a chunk and free its space. Deleting what isn't there succeeds.
    Delete(ChunkId),
    /// Tell about a chunk.
    Stat(ChunkId),
    /// Read a chunk from end to end and verify every unit.
    Scrub(ChunkId),
    /// Tell about the store; also the sign of life that lets a device off a blacklist.
    Probe,
    /// The chunks with ids above the one given, ascending, as many as fit an answer.
    List(ChunkId),
}

/// The answer to a request of the same name.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// Durable here: this unit and all before it, up to this length.
    Append(u32),
    /// The bytes, exactly as many as asked for.
    Read(Bytes),
    /// See [`Sealed`].
    Seal(Sealed),
    /// Gone.
    Delete,
    /// See [`ChunkInfo`].
    Stat(ChunkInfo),
    /// See [`ScrubReport`].
    Scrub(ScrubReport),
    /// See [`StoreStats`].
    Probe(StoreStats),
    /// Empty when there are no more.
    List(Vec<ChunkInfo>),
}

/// Why a store didn't do what was asked. Each kind is something else for the client to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The chunk isn't here: refresh the location.
    #[error("chunk is not here")]
    Unknown,
    /// No append is taken any more: go on in another chunk.
    #[error("chunk is sealed at {length} bytes")]
    Sealed {
        /// Its length here.
        length: u32,
    },
    /// The append doesn't start where the chunk ends here: send what lies between first.
    #[error("append does not start at the end: expected offset {expected}")]
    WrongOffset {
        /// Where the next unit must start.
        expected: u32,
    },
    /// A newer writer exists: stop for ever.
    #[error("fenced: the owner's epoch is at least {floor}")]
    Fenced {
        /// The lowest epoch that may still write.
        floor: Epoch,
    },
    /// No space in the chunk or on the device: go on in another chunk, on another device.
    #[error("no space left for this chunk or on this device")]
    Full,
    /// Other bytes stand at this place already: a programmer's error, or two writers in one epoch.
    #[error("different bytes stand at this offset already")]
    Conflict,
    /// Stored bytes don't verify: read another copy, and report this one.
    #[error("stored bytes at offset {offset} do not verify")]
    Corrupt {
        /// Where the damaged unit starts.
        offset: u32,
    },
    /// The request breaks a rule; the text names it. Never retried.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Too much is queued: try again a little later.
    #[error("too much is queued")]
    Busy,
    /// The deadline passed; whether it was done is not known.
    #[error("deadline passed")]
    Deadline,
    /// The device failed.
    #[error("device failed: {0}")]
    Io(String),
    /// No answer came from there; whether it was done is not known.
    #[error("not reachable: {0}")]
    Unreachable(String),
}

/// A store of chunks on one device: the engine in this process, or a simulated one.
pub trait ChunkStore {
    /// Which device.
    fn device(&self) -> DeviceId;

    /// Serves one request. Appends to one chunk are numbered by the order of these calls, not of the polls. Dropping
    /// the future doesn't undo the request.
    fn serve(&self, request: Request) -> LocalBoxFuture<'static, Result<Response, Error>>;
}

/// The way from a client to every store of the cluster: sockets, a direct call on the same core, or a simulated net.
pub trait ChunkTransport {
    /// Sends one request and waits for its answer, `limit` at most ([`Error::Deadline`] then). Requests to one device
    /// arrive in the order of these calls unless the connection breaks in between. Dropping the future doesn't undo the
    /// request.
    fn call(&self, device: DeviceId, request: Request, limit: Duration) -> LocalBoxFuture<'static, Result<Response, Error>>;
}
