//! Loop devices. Everything here blocks, and much of it makes the kernel ask *us*: see `errand` for who may call it.

#![expect(unsafe_code, reason = "loop devices are configured by ioctl, which only takes raw arguments")]

use crate::front_end::FrontEndError;
use api_types::limits::BLOCK_BYTES;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4C04;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// Major number of loop devices.
const MAJOR: u32 = 7;
/// Others take a free device between our asking for it and our configuring it; so often and no more.
const ATTEMPTS: u32 = 64;
/// How long a device that was told to go may be held by a short look of udev or blkid.
const GONE_LIMIT: Duration = Duration::from_secs(2);
const GONE_STEP: Duration = Duration::from_millis(10);

/// `struct loop_info64`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<Info>() == 232);
    assert!(size_of::<Config>() == 304);
};

fn ioctl_with<T: IntoBytes + FromBytes>(file: &File, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: `argument` is plain bytes of exactly the struct that these loop requests read or write, and lives
    // through the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn ioctl_plain(file: &File, request: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: these loop requests take no pointer; zero is their argument.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// One `/dev/loopN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoopDevice {
    pub(crate) number: u32,
}

impl LoopDevice {
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    fn sys(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}", self.number))
    }

    /// The path of the file behind it, as the kernel shows it. `None`: nothing is behind it.
    pub(crate) fn backing(&self) -> Option<PathBuf> {
        let shown = std::fs::read_to_string(self.sys().join("loop/backing_file")).ok()?;
        Some(PathBuf::from(shown.trim_end_matches('\n')))
    }

    /// Makes a device over `file`: direct I/O, blocks of 4 KiB, as large as the file.
    pub(crate) fn create(file_path: &Path, read_only: bool) -> Result<Self, FrontEndError> {
        let file = File::options()
            .read(true)
            .write(!read_only)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(file_path)
            .map_err(FrontEndError::io(format!("opening {}", file_path.display())))?;
        let control = File::options()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(FrontEndError::io("opening /dev/loop-control"))?;
        let mut info = Info::new_zeroed();
        info.flags = DIRECT_IO | if read_only { READ_ONLY } else { 0 };
        let name = file_path.as_os_str().as_encoded_bytes();
        info.file_name[..name.len().min(63)].copy_from_slice(&name[..name.len().min(63)]);
        for _ in 0..ATTEMPTS {
            let number = ioctl_plain(&control, LOOP_CTL_GET_FREE).map_err(FrontEndError::io("asking for a free loop device"))?;
            let device = LoopDevice { number: number as u32 };
            device.ensure_node()?;
            let node = device.open(!read_only)?;
            let mut config = Config { fd: file.as_raw_fd() as u32, block_size: BLOCK_BYTES, info, reserved: [0; 8] };
            match ioctl_with(&node, LOOP_CONFIGURE, &mut config) {
                Ok(()) => {
                    device.tune();
                    return Ok(device);
                }
                // Another process took it first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => {
                    return Err(FrontEndError::io(format!("configuring {}", device.path().display()))(error));
                }
            }
        }
        Err(FrontEndError::TimedOut { what: "finding a free loop device", limit: Duration::ZERO })
    }

    fn open(&self, write: bool) -> Result<File, FrontEndError> {
        let path = self.path();
        File::options().read(true).write(write).open(&path).map_err(FrontEndError::io(format!("opening {}", path.display())))
    }

    /// Where `/dev` is not the kernel's own (in a container), a new device has no node yet.
    fn ensure_node(&self) -> Result<(), FrontEndError> {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let path = self.path();
        match std::fs::metadata(&path) {
            Ok(found) if found.file_type().is_block_device() && found.rdev() == makedev(MAJOR.into(), self.number.into()) => {
                Ok(())
            }
            Ok(_) => Err(FrontEndError::Invalid {
                field: "/dev",
                reason: format!("{} is not loop device {}", path.display(), self.number),
            }),
            Err(_) => mknod(&path, SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), makedev(MAJOR.into(), self.number.into()))
                .map_err(FrontEndError::errno(format!("making {}", path.display()))),
        }
    }

    /// Queue settings that suit a volume. Each is a wish: a kernel without one works too.
    fn tune(&self) {
        let queue = self.sys().join("queue");
        for (setting, value) in [("scheduler", "none"), ("rotational", "0"), ("nomerges", "1"), ("max_sectors_kb", "1024")] {
            if let Err(error) = std::fs::write(queue.join(setting), value) {
                tracing::debug!(%error, setting, device = self.number, "a queue setting was refused");
            }
        }
    }

    /// The kernel's size of it in bytes.
    pub(crate) fn size(&self) -> io::Result<u64> {
        let sectors = std::fs::read_to_string(self.sys().join("size"))?;
        sectors
            .trim()
            .parse::<u64>()
            .map(|sectors| sectors * 512)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Takes the size of the file behind it over.
    pub(crate) fn take_size(&self) -> Result<u64, FrontEndError> {
        let context = || format!("resizing {}", self.path().display());
        let node = self.open(false)?;
        ioctl_plain(&node, LOOP_SET_CAPACITY).map_err(FrontEndError::io(context()))?;
        self.size().map_err(FrontEndError::io(context()))
    }

    /// Somebody holds it as a whole: a mounted filesystem, a device mapper target, swap.
    fn held(&self) -> bool {
        let opened = File::options().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(self.path());
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// Takes it away. One in use is `Busy` and stays, unless `lazily`: then it goes when its last user does.
    pub(crate) fn remove(&self, lazily: bool) -> Result<(), FrontEndError> {
        let busy = |by: &str| FrontEndError::Busy { device: self.path().display().to_string(), by: by.to_owned() };
        if !lazily {
            if self.held() {
                return Err(busy("mounted, or held by another block device"));
            }
            // The kernel lets nobody change a device with requests under way, and waits for them without a bound.
            if !Self::waited(|| !self.active()) {
                return Err(busy("requests are under way"));
            }
        }
        let node = match self.open(false) {
            Ok(node) => node,
            Err(_) if self.backing().is_none() => return Ok(()),
            Err(error) => return Err(error),
        };
        match ioctl_plain(&node, LOOP_CLR_FD) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
            Err(error) => return Err(FrontEndError::io(format!("clearing {}", self.path().display()))(error)),
        }
        // It goes with the last descriptor: ours, if nobody else has one.
        drop(node);
        if lazily {
            return Ok(());
        }
        if Self::waited(|| self.backing().is_none()) {
            return Ok(());
        }
        self.keep();
        Err(busy("opened by a process"))
    }

    /// Waits, for a short bounded time, until something is so.
    fn waited(so: impl Fn() -> bool) -> bool {
        let mut waited = Duration::ZERO;
        while !so() {
            if waited >= GONE_LIMIT {
                return false;
            }
            std::thread::sleep(GONE_STEP);
            waited += GONE_STEP;
        }
        true
    }

    /// Requests are under way.
    fn active(&self) -> bool {
        let counts = std::fs::read_to_string(self.sys().join("inflight")).unwrap_or_default();
        counts.split_ascii_whitespace().any(|count| count != "0")
    }

    /// Takes the order to go with the last user back.
    fn keep(&self) {
        if self.active() {
            return tracing::warn!(device = self.number, "a busy loop device goes when its last user does");
        }
        let Ok(node) = self.open(false) else { return };
        let mut info = Info::new_zeroed();
        if ioctl_with(&node, LOOP_GET_STATUS64, &mut info).is_ok() {
            info.flags &= !AUTOCLEAR;
            if let Err(error) = ioctl_with(&node, LOOP_SET_STATUS64, &mut info) {
                tracing::warn!(%error, device = self.number, "a busy loop device goes when its last user does");
            }
        }
    }

    /// What [`LoopDevice::create`] labelled it: the path of its file, or the beginning of a long one.
    fn label(&self) -> Option<String> {
        let mut info = Info::new_zeroed();
        ioctl_with(&self.open(false).ok()?, LOOP_GET_STATUS64, &mut info).ok()?;
        let end = info.file_name.iter().position(|&byte| byte == 0).unwrap_or(info.file_name.len());
        Some(String::from_utf8_lossy(&info.file_name[..end]).into_owned())
    }

    /// How often disks of this kernel have changed, when this one last did; see `diskseq` in the kernel's
    /// Documentation/ABI/stable/sysfs-block. No two disks have had the same.
    pub(crate) fn sequence(&self) -> Option<u64> {
        std::fs::read_to_string(self.sys().join("diskseq")).ok()?.trim().parse().ok()
    }

    /// It was made for this file. Not known of a path too long for a label.
    pub(crate) fn is_labelled(&self, file: &Path) -> bool {
        self.label().is_some_and(|label| Path::new(&label) == file)
    }

    /// It was made for a file below one of these directories.
    pub(crate) fn labelled_below<'a>(&self, mut dirs: impl Iterator<Item = &'a Path>) -> bool {
        self.label().is_some_and(|label| dirs.any(|dir| Path::new(&label).starts_with(dir)))
    }

    /// All loop devices whose file lies below `dir`, or did: where the mount is gone the label tells.
    pub(crate) fn below(dir: &Path) -> Vec<(Self, PathBuf)> {
        let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
        let mut found: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("loop")?.parse().ok())
            .map(|number| LoopDevice { number })
            .filter_map(|device| device.backing().map(|backing| (device, backing)))
            .filter(|(device, backing)| {
                backing.starts_with(dir) || device.label().is_some_and(|label| Path::new(&label).starts_with(dir))
            })
            .collect();
        found.sort_by_key(|(device, _)| device.number);
        found
    }
}
