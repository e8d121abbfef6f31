//! How a path is opened, and why it may not be.

use super::FlushPolicy;
use crate::observer::Observer;
use nodeagent_reactor::priority::Limits;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What may be done with [`Device::trim`](crate::Device::trim).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trim {
    /// Discard on disks that can; leave files alone, since a hole in a file costs the next write there its speed.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Discard, or punch holes.
    On,
}

/// How a device is opened.
#[derive(Clone)]
pub struct Options {
    /// The block, 512 or 4096. `None`: the smallest that works.
    pub block_bytes: Option<u32>,
    /// See [`Trim`].
    pub trim: Trim,
    /// Bounds of what is under way and waits. All devices of one executor together must stay below its depth.
    pub limits: Limits,
    /// How durable writes become durable. `None`: as suits the disk.
    pub flush: Option<FlushPolicy>,
    /// Told of each request.
    pub observer: Option<Rc<dyn Observer>>,
}

impl Default for Options {
    fn default() -> Self {
        Options { block_bytes: None, trim: Trim::Auto, limits: Limits::default(), flush: None, observer: None }
    }
}

/// A path can't be a device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody has it.
    #[error("{} is in use: another process has it open as a device, or it is mounted", .path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// Neither file nor block device.
    #[error("{} is neither a regular file nor a block device", .path.display())]
    NotADevice {
        /// Which.
        path: PathBuf,
    },
    /// It holds less than a block.
    #[error("{} is empty: give it a size first", .path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Its blocks aren't ours.
    #[error("{} has blocks of {block_bytes} bytes: only 512 and 4096 are supported", .path.display())]
    Block {
        /// Which.
        path: PathBuf,
        /// Its block, in bytes.
        block_bytes: u32,
    },
    /// No direct I/O there.
    #[error("{} takes no direct I/O: put it on ext4, xfs or a disk", .path.display())]
    NoDirectIo {
        /// Which.
        path: PathBuf,
    },
    /// Anything else.
    #[error("could not open {}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            OpenError::Io { source, .. } => source.kind(),
            OpenError::NotADevice { .. } | OpenError::Empty { .. } | OpenError::Block { .. } => io::ErrorKind::InvalidInput,
            OpenError::NoDirectIo { .. } => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

/// Opens for direct I/O and locks.
pub(super) fn exclusively(path: &Path) -> Result<File, OpenError> {
    let error = |source: io::Error| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::InUse { path: path.to_owned() },
        _ => OpenError::Io { path: path.to_owned(), source },
    };
    let kind = std::fs::metadata(path).map_err(error)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::NotADevice { path: path.to_owned() });
    }
    // On a block device O_EXCL keeps filesystems and other such openers out; on a file only the lock does.
    let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let file = open(libc::O_DIRECT | exclusive).map_err(|source| match source.raw_os_error() {
        Some(libc::EINVAL) => OpenError::NoDirectIo { path: path.to_owned() },
        _ => error(source),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}
