//! The seam between chunk store and disk.

use api_types::QosClass;
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::io;

/// What kind of medium it is, for latency models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Media {
    /// NVMe flash.
    Nvme,
    /// Other flash.
    Ssd,
    /// Spinning.
    Hdd,
    /// A file in a filesystem.
    File,
    /// Main memory.
    Memory,
}

impl Media {
    /// The name used in metrics and at the masters.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Media::Nvme => "nvme",
            Media::Ssd => "ssd",
            Media::Hdd => "hdd",
            Media::File => "file",
            Media::Memory => "memory",
        }
    }
}

/// What a device is, detected when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// For people: path and, where there is one, model and serial number.
    pub name: String,
    /// Usable bytes; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Smallest unit of I/O: 512 or 4096. Offsets and lengths are multiples of it.
    pub block_bytes: u32,
    /// Power loss forgets writes that weren't made durable.
    pub volatile_cache: bool,
    /// `trim` does something.
    pub trims: bool,
    /// Kind of medium.
    pub media: Media,
    /// How I/O is done, for logs: `io_uring`, `libaio`, `threads`, `memory`.
    pub backend: &'static str,
}

/// When a write may be called done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Survives the loss of power once done (FUA, or followed by a flush; nothing extra on a write-through device).
    Durable,
    /// May be lost until the next [`Device::flush`].
    Cached,
}

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Byte offset on the device.
    pub offset: u64,
    /// The bytes. From a pooled aligned buffer they go to the disk as they are; others are copied into one first.
    pub data: Bytes,
    /// See [`Durability`].
    pub durability: Durability,
    /// Who asks.
    pub qos: QosClass,
}

/// A disk, owned by one thread. All futures may be dropped without undoing the request. Requests overlap freely:
/// nothing is promised on the order of writes that are under way together, and a write that hasn't finished may be
/// torn at any block by a crash.
pub trait Device {
    /// What it is.
    fn info(&self) -> &Info;

    /// Reads `length` bytes at `offset`, both multiples of the block.
    fn read(&self, offset: u64, length: u32, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>>;

    /// Writes. The request is queued by this call, not by the first poll.
    fn write(&self, write: Write) -> LocalBoxFuture<'static, io::Result<()>>;

    /// Makes all writes that had finished before this call durable.
    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>>;

    /// Tells the device that these bytes aren't needed. What reads there afterwards is undefined.
    fn trim(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, io::Result<()>>;

    /// Requests waiting or under way.
    fn queued(&self) -> u32;
}
