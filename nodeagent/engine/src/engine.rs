//! The door: opening a store and asking it.

use crate::mount::mount;
use crate::observe::{NoObserver, Observer};
use crate::shell::{RestoreWriter, Shell};
use crate::superblock::Superblock;
use api_types::chunk::{ChunkInfo, ChunkStore, Error, Request, Response, StoreStats};
use api_types::unit::ChunkShape;
use api_types::{ChunkId, Clock, ClusterId, DeviceId};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use nodeagent_device::Device;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How to open a store.
#[derive(Clone)]
pub struct OpenOptions {
    /// The cluster the device must belong to.
    pub cluster: ClusterId,
    /// How many extents are reserved ahead, so that a chunk is created with one write. 1 to 64.
    pub reserved_extents: usize,
    /// The longest an append waits for the device and for the appends before it.
    pub append_limit: Duration,
    /// The most bytes of appends under way; more are refused as busy.
    pub append_bytes_max: u64,
    /// The most bytes per second that a scrub reads.
    pub scrub_bytes_per_second: u64,
    /// Is told about every operation.
    pub observer: Rc<dyn Observer>,
}

impl OpenOptions {
    /// The usual options.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        OpenOptions {
            cluster,
            reserved_extents: 16,
            append_limit: Duration::from_secs(10),
            append_bytes_max: 64 << 20,
            scrub_bytes_per_second: 64 << 20,
            observer: Rc::new(NoObserver),
        }
    }
}

/// Why a store wasn't opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store of ours on it.
    #[error("{name} holds no Basalt store: format it first")]
    NotFormatted {
        /// Which device.
        name: String,
    },
    /// It belongs to another cluster.
    #[error("{name} belongs to cluster {found}, not to {expected}: it was left alone")]
    WrongCluster {
        /// Which device.
        name: String,
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// It was written by a version that this one doesn't know.
    #[error("{name} has format version {found}, this program knows version {known}")]
    WrongVersion {
        /// Which device.
        name: String,
        /// Its version.
        found: u32,
        /// The version this program knows.
        known: u32,
    },
    /// The device shrank since it was formatted.
    #[error("{name} has {size_bytes} bytes, but was formatted with {formatted_bytes}")]
    Shrunk {
        /// Which device.
        name: String,
        /// Its size now.
        size_bytes: u64,
        /// Its size then.
        formatted_bytes: u64,
    },
    /// What should describe the store doesn't verify.
    #[error("{name} is damaged: {what}")]
    Damaged {
        /// Which device.
        name: String,
        /// What, and where.
        what: String,
    },
    /// The device failed.
    #[error("cannot open {name}")]
    Io {
        /// Which device.
        name: String,
        /// What the device said.
        #[source]
        source: std::io::Error,
    },
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountReport {
    /// Damage that was survived, by name and place.
    pub damaged: Vec<String>,
    /// Journal records replayed.
    pub records: u64,
    /// Bytes read to find the ends of chunks that were open.
    pub scanned_bytes: u64,
    /// Chunks that were open, and are closed now.
    pub closed: u64,
}

/// The store in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// In short.
    pub store: StoreStats,
    /// Chunks that take appends.
    pub open_chunks: u64,
    /// Extents reserved and waiting for a chunk.
    pub reserved_extents: u64,
    /// Bytes of appends under way.
    pub append_bytes: u64,
    /// Requests that the device failed since the store was opened.
    pub device_errors: u64,
    /// Journal commits since then.
    pub journal_commits: u64,
    /// Checkpoints since then.
    pub checkpoints: u64,
}

/// A store of chunks on one device. Cheap to clone; when the last clone is dropped the store stops as if the process
/// had died, and nothing that was acknowledged is lost. Needs a tokio `LocalSet` around it.
#[derive(Clone)]
pub struct Engine {
    handle: Rc<Handle>,
}

/// What all clones share; its end is the store's end.
struct Handle {
    shell: Rc<Shell>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shell.stop();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Engine {
    /// Opens the store on a device: newer checkpoint, journal, ends of the chunks that were open. Those take no appends
    /// any more.
    pub async fn open(device: Rc<dyn Device>, clock: Rc<dyn Clock>, options: OpenOptions) -> Result<Engine, OpenError> {
        let mounted = mount(device.as_ref(), options.cluster).await?;
        for damaged in &mounted.report.damaged {
            tracing::warn!(device = %mounted.superblock.device, damaged, "damage was found at opening");
        }
        let shell = Shell::new(device, clock, options, mounted)?;
        let tasks = shell.start();
        let engine = Engine { handle: Rc::new(Handle { shell, tasks }) };
        engine.handle.shell.warm_up().await;
        Ok(engine)
    }

    /// Waits for what is under way, writes a checkpoint and stops. Later requests get an I/O error.
    pub async fn close(&self) -> Result<(), Error> {
        self.handle.shell.close().await
    }

    /// What is written on the device.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.handle.shell.superblock
    }

    /// What opening found.
    #[must_use]
    pub fn mount_report(&self) -> &MountReport {
        &self.handle.shell.report
    }

    /// The store in figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.shell.stats()
    }

    /// Chunks with ids above `after`, ascending, at most `count`.
    #[must_use]
    pub fn infos(&self, after: ChunkId, count: usize) -> Vec<ChunkInfo> {
        self.handle.shell.infos(after, count)
    }

    /// Starts to bring a sealed chunk back from another copy. Refused when the chunk is here, whole ([`Error::Conflict`])
    /// or open ([`Error::Busy`]: seal it first), and while another restore of it runs ([`Error::Busy`]). A shorter copy here
    /// stays until the new one is whole. Space for all of it is taken now.
    pub fn restore(&self, shape: ChunkShape, final_length: u32) -> LocalBoxFuture<'static, Result<Restore, Error>> {
        let shell = Rc::clone(&self.handle.shell);
        Box::pin(async move { Ok(Restore { writer: shell.restore(shape, final_length).await? }) })
    }
}

impl ChunkStore for Engine {
    fn device(&self) -> DeviceId {
        self.handle.shell.superblock.device
    }

    fn serve(&self, request: Request) -> LocalBoxFuture<'static, Result<Response, Error>> {
        self.handle.shell.serve(request)
    }
}

/// A chunk being brought back. Dropped unfinished, it is as if it had never been begun. It doesn't keep the store open.
pub struct Restore {
    writer: RestoreWriter,
}

impl Restore {
    /// How much has been written: where the next write must start.
    #[must_use]
    pub fn written(&self) -> u32 {
        self.writer.written()
    }

    /// Writes the next bytes of the chunk, any number of them that ends on the chunk's alignment. Bytes that don't verify
    /// are refused ([`Error::Corrupt`] with the offset of the bad unit): drop it, and begin again from another copy.
    pub async fn write(&mut self, offset: u32, data: Bytes) -> Result<(), Error> {
        self.writer.write(offset, data).await
    }

    /// Makes it a sealed chunk, when all of it has been written and every unit verified.
    pub async fn finish(self) -> Result<ChunkInfo, Error> {
        self.writer.finish().await
    }
}
