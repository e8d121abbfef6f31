//! The seam to the machine: mounts, filesystems, paths. The real one is [`LinuxHost`]; tests break it at every step.

use crate::content::{self, Content};
use crate::error::Error;
use crate::mount_flags;
use crate::mounts::{self, DeviceNumber, Mount};
use crate::parameters::Filesystem;
use crate::tool;
use nix::mount::{MntFlags, MsFlags};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest a call of the kernel may take before its caller gives up waiting.
const KERNEL_LIMIT: Duration = Duration::from_secs(30);
/// The longest an unmount may write back dirty pages.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(90);
/// The longest mkfs and the growers may take.
const TOOL_LIMIT: Duration = Duration::from_secs(300);
/// The longest a check may take: a damaged filesystem is read whole.
const CHECK_LIMIT: Duration = Duration::from_secs(1800);

/// What stands at a path that is about to become a mount point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetKind {
    /// For a filesystem.
    Folder,
    /// For a block device.
    File,
}

/// Space in a filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes in all, used, and left for users.
    pub bytes: (u64, u64, u64),
    /// Inodes in all, used, left.
    pub inodes: (u64, u64, u64),
}

/// What the node service asks of the machine. Every call is bounded in time.
#[tonic::async_trait]
pub trait Host: Send + Sync + 'static {
    /// The kernel's table of mounts.
    async fn mounts(&self) -> Result<Vec<Mount>, Error>;
    /// Mounts a filesystem.
    async fn mount(&self, device: &Path, target: &Path, kind: Filesystem, flags: &[String], read_only: bool)
    -> Result<(), Error>;
    /// Shows what is at `source` at `target` too.
    async fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<(), Error>;
    /// Takes the newest mount at `target` away. Never asks the device, never pretends.
    async fn unmount(&self, target: &Path) -> Result<(), Error>;
    /// What a device holds.
    async fn inspect(&self, device: &Path) -> Result<Content, Error>;
    /// Makes a filesystem over whatever is there. The tool holds `guard`.
    async fn make(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error>;
    /// Checks a filesystem that isn't mounted. The tool holds `guard`.
    async fn check(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error>;
    /// Takes a mounted filesystem up to the size of its device.
    async fn grow(&self, device: &Path, target: &Path, kind: Filesystem) -> Result<(), Error>;
    /// The number of a block device; `None`: there is no block device at this path.
    async fn device_number(&self, path: &Path) -> Result<Option<DeviceNumber>, Error>;
    /// Makes a folder or an empty file, unless it is there.
    async fn make_target(&self, path: &Path, kind: TargetKind) -> Result<(), Error>;
    /// Removes an empty folder or a file. One that is gone is no error; what somebody left in it is.
    async fn remove_target(&self, path: &Path) -> Result<(), Error>;
    /// Space in the filesystem at `path`.
    async fn usage(&self, path: &Path) -> Result<Usage, Error>;
    /// The path with the links in its parent followed, as the table of mounts has it. Never touches the last part.
    async fn resolve(&self, path: &Path) -> Result<PathBuf, Error>;
}

/// How often, and after which waits, a mount that is in use is tried.
const BUSY_TRIES: u32 = 50;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinuxHost;

/// Runs a call of the kernel on a thread that may wait for it. When the bound is over the thread is left to its wait
/// (nothing can call it back from the kernel), and the caller is told.
async fn kernel<T: Send + 'static>(
    what: String,
    limit: Duration,
    call: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(call)).await {
        Err(_) => Err(Error::TimedOut { what, seconds: limit.as_secs() }),
        Ok(Err(_)) => Err(Error::Host(format!("could not {what}: the call broke off"))),
        Ok(Ok(Err(error))) => Err(Error::Host(format!("could not {what}: {error}{}", hint(&error)))),
        Ok(Ok(Ok(value))) => Ok(value),
    }
}

/// Unmounts; while something uses it, tries again for a short time. A process that was just started holds every file of
/// its parent's for a moment, and tools that look at new block devices come and go.
fn umount_soon(target: &Path) -> nix::Result<()> {
    let mut tries = 0;
    loop {
        match nix::mount::umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
            Err(nix::errno::Errno::EBUSY) if tries < BUSY_TRIES => {
                tries += 1;
                std::thread::sleep(BUSY_WAIT);
            }
            result => return result,
        }
    }
}

/// What a person can do about an error of mount(2).
fn hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(117) => "; the filesystem is damaged: run xfs_repair or e2fsck on it by hand", // EUCLEAN
        Some(1) => "; the driver must be privileged",                                       // EPERM
        Some(19) => "; this kernel has no such filesystem",                                 // ENODEV
        Some(16) => "; something still uses it",                                            // EBUSY
        _ => "",
    }
}

#[tonic::async_trait]
impl Host for LinuxHost {
    async fn mounts(&self) -> Result<Vec<Mount>, Error> {
        let read = || std::fs::read("/proc/self/mountinfo");
        Ok(mounts::parse(&kernel("read /proc/self/mountinfo".into(), KERNEL_LIMIT, read).await?))
    }

    async fn mount(
        &self,
        device: &Path,
        target: &Path,
        kind: Filesystem,
        flags: &[String],
        read_only: bool,
    ) -> Result<(), Error> {
        let (mut bits, data) = mount_flags::split(flags);
        bits.set(MsFlags::MS_RDONLY, bits.contains(MsFlags::MS_RDONLY) || read_only);
        let (device, target) = (device.to_owned(), target.to_owned());
        let what = format!("mount {} on {} as {}", device.display(), target.display(), kind.as_str());
        kernel(what, KERNEL_LIMIT, move || {
            let data = (!data.is_empty()).then_some(data.as_str());
            Ok(nix::mount::mount(Some(&device), &target, Some(kind.as_str()), bits, data)?)
        })
        .await
    }

    async fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<(), Error> {
        let (source, target) = (source.to_owned(), target.to_owned());
        kernel(format!("bind {} to {}", source.display(), target.display()), KERNEL_LIMIT, move || {
            let none: Option<&str> = None;
            nix::mount::mount(Some(&source), &target, none, MsFlags::MS_BIND, none)?;
            if read_only {
                // A bind mount takes its flags in a second step only.
                let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
                if let Err(error) = nix::mount::mount(none, &target, none, flags, none) {
                    nix::mount::umount2(&target, MntFlags::UMOUNT_NOFOLLOW).ok();
                    return Err(error.into());
                }
            }
            Ok(())
        })
        .await
    }

    async fn unmount(&self, target: &Path) -> Result<(), Error> {
        let target = target.to_owned();
        kernel(format!("unmount {}", target.display()), UNMOUNT_LIMIT, move || Ok(umount_soon(&target)?)).await
    }

    async fn inspect(&self, device: &Path) -> Result<Content, Error> {
        let device = device.to_owned();
        kernel(format!("look at what {} holds", device.display()), KERNEL_LIMIT, move || {
            content::inspect(&mut File::open(device)?)
        })
        .await
    }

    async fn make(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error> {
        let version = match kind {
            Filesystem::Ext4 => (0, 0),
            Filesystem::Xfs => tool::xfs_version(&tool::must("mkfs.xfs", &["-V"], KERNEL_LIMIT, None).await?),
        };
        let (program, mut args) = tool::make_arguments(kind, version);
        args.push(device.to_string_lossy().into_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        tool::must(program, &args, TOOL_LIMIT, Some(guard)).await.map(drop)
    }

    async fn check(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error> {
        tool::check(device, kind, CHECK_LIMIT, Some(guard)).await
    }

    async fn grow(&self, device: &Path, target: &Path, kind: Filesystem) -> Result<(), Error> {
        let (program, path) = match kind {
            Filesystem::Ext4 => ("resize2fs", device),
            Filesystem::Xfs => ("xfs_growfs", target),
        };
        match tool::must(program, &[&path.to_string_lossy()], TOOL_LIMIT, None).await {
            Err(Error::Host(text)) if kind == Filesystem::Ext4 && text.contains("Permission denied") => {
                Err(Error::Host(format!("{text}; growing a mounted ext4 needs CAP_SYS_RESOURCE: the driver must be privileged")))
            }
            ended => ended.map(drop),
        }
    }

    async fn device_number(&self, path: &Path) -> Result<Option<DeviceNumber>, Error> {
        let path = path.to_owned();
        kernel(format!("look at {}", path.display()), KERNEL_LIMIT, move || match std::fs::metadata(&path) {
            Ok(meta) if meta.file_type().is_block_device() => {
                let number = meta.rdev();
                Ok(Some((nix::sys::stat::major(number) as u32, nix::sys::stat::minor(number) as u32)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    async fn make_target(&self, path: &Path, kind: TargetKind) -> Result<(), Error> {
        let path = path.to_owned();
        kernel(format!("make {}", path.display()), KERNEL_LIMIT, move || match kind {
            TargetKind::Folder => std::fs::create_dir_all(&path),
            TargetKind::File => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                File::options().write(true).create(true).truncate(false).open(&path).map(drop)
            }
        })
        .await
    }

    async fn remove_target(&self, path: &Path) -> Result<(), Error> {
        let path = path.to_owned();
        kernel(format!("remove {}", path.display()), KERNEL_LIMIT, move || {
            let removed = match std::fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => std::fs::remove_dir(&path),
                Ok(_) => std::fs::remove_file(&path),
                Err(error) => Err(error),
            };
            removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
        })
        .await
    }

    async fn usage(&self, path: &Path) -> Result<Usage, Error> {
        let path = path.to_owned();
        kernel(format!("ask {} for its usage", path.display()), KERNEL_LIMIT, move || {
            let stat = rustix::fs::statvfs(&path)?;
            let unit = stat.f_frsize;
            Ok(Usage {
                bytes: (stat.f_blocks * unit, (stat.f_blocks - stat.f_bfree) * unit, stat.f_bavail * unit),
                inodes: (stat.f_files, stat.f_files.saturating_sub(stat.f_ffree), stat.f_favail),
            })
        })
        .await
    }

    async fn resolve(&self, path: &Path) -> Result<PathBuf, Error> {
        let path = path.to_owned();
        kernel(format!("follow {}", path.display()), KERNEL_LIMIT, move || {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path) };
            match parent.canonicalize() {
                Ok(parent) => Ok(parent.join(name)),
                // It will be made.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(path),
                Err(error) => Err(error),
            }
        })
        .await
    }
}
