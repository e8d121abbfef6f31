//! What a path is: size, block, cache, medium.

use super::OpenError;
use crate::device::Media;
use nodeagent_reactor::BufferPool;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What was found about an open file or block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// A block device; else a regular file.
    pub block_device: bool,
    /// In bytes, cut to whole blocks.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub block_bytes: u32,
    /// The disk, or the one under the file's filesystem, has a volatile write cache. `None`: nobody says.
    pub write_cache: Option<bool>,
    /// The disk makes a single write durable by itself.
    pub fua: bool,
    /// The disk takes discards.
    pub discards: bool,
    /// Kind of medium.
    pub media: Media,
    /// Model and serial number, where there are any.
    pub model: String,
}

impl Probe {
    pub(super) fn of(path: &Path, file: &File, wanted_block: Option<u32>, pool: &BufferPool) -> Result<Self, OpenError> {
        let open = |source| OpenError::Io { path: path.to_owned(), source };
        let metadata = file.metadata().map_err(open)?;
        let block_device = metadata.file_type().is_block_device();
        if !block_device && !metadata.is_file() {
            return Err(OpenError::NotADevice { path: path.to_owned() });
        }
        let block_bytes = match (wanted_block, block_device) {
            (Some(bytes), _) => bytes,
            (None, true) => rustix::fs::ioctl_blksszget(file.as_fd()).map_err(|errno| open(errno.into()))?,
            (None, false) => {
                if takes_block(file, 512, metadata.len(), pool) {
                    512
                } else {
                    4096
                }
            }
        };
        if block_bytes != 512 && block_bytes != 4096 {
            return Err(OpenError::Block { path: path.to_owned(), block_bytes });
        }
        let size_bytes = if block_device {
            rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(|errno| open(errno.into()))?
        } else {
            metadata.len()
        };
        let size_bytes = size_bytes - size_bytes % u64::from(block_bytes);
        if size_bytes == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        let disk = Disk::of(if block_device { metadata.rdev() } else { metadata.dev() });
        Ok(Probe {
            block_device,
            size_bytes,
            block_bytes,
            write_cache: disk.as_ref().and_then(Disk::write_cache),
            fua: disk.as_ref().is_some_and(Disk::fua),
            discards: disk.as_ref().is_some_and(Disk::discards),
            media: if block_device { disk.as_ref().map_or(Media::Ssd, Disk::media) } else { Media::File },
            model: if block_device { disk.as_ref().map(Disk::model).unwrap_or_default() } else { String::new() },
        })
    }
}

/// Direct I/O in blocks of this size works on this file. The first block is read and written back as it was, which is
/// harmless: the file is ours alone, and a torn write of equal bytes is no tear.
fn takes_block(file: &File, block_bytes: usize, file_bytes: u64, pool: &BufferPool) -> bool {
    if file_bytes < block_bytes as u64 {
        return false;
    }
    let Ok(mut buffer) = pool.try_take(block_bytes) else { return false };
    file.read_exact_at(&mut buffer, 0).is_ok() && file.write_all_at(&buffer, 0).is_ok()
}

/// A disk in sysfs.
struct Disk {
    directory: PathBuf,
}

impl Disk {
    /// `None` for filesystems that are on no disk of their own.
    fn of(device: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let directory = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // What matters is told of whole disks only.
        let whole = if directory.join("partition").exists() { directory.parent()?.to_owned() } else { directory };
        Some(Disk { directory: whole })
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn write_cache(&self) -> Option<bool> {
        self.text("queue/write_cache").map(|text| text != "write through")
    }

    fn fua(&self) -> bool {
        self.text("queue/fua").is_some_and(|fua| fua == "1")
    }

    fn discards(&self) -> bool {
        self.text("queue/discard_max_bytes").is_some_and(|bytes| bytes != "0")
    }

    fn media(&self) -> Media {
        let name = self.directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("nvme") {
            Media::Nvme
        } else if self.text("queue/rotational").is_some_and(|rotates| rotates == "1") {
            Media::Hdd
        } else {
            Media::Ssd
        }
    }

    fn model(&self) -> String {
        let parts = [self.text("device/model"), self.text("device/serial").or_else(|| self.text("serial"))];
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}
