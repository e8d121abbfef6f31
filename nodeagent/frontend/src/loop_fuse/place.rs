//! Where an attachment lives, and what is remembered of it for the next process of this agent.
//!
//! ```text
//! <run_dir>/loop-fuse/<volume>/holder.sock       the holder's socket
//!                              mnt/volume        the file behind the loop device
//!                              attachment.json   what follows
//! ```

use super::device::LoopDevice;
use crate::front_end::{FrontEndError, Spec};
use crate::fuse::FILE_NAME;
use api_types::VolumeId;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Longest path of a unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// The directory of all attachments of this front end.
pub(crate) fn root(run_dir: &Path) -> PathBuf {
    run_dir.join("loop-fuse")
}

/// One attachment's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

/// What the next process has to know. The kernel knows the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    pub(crate) volume: VolumeId,
    pub(crate) name: String,
    pub(crate) read_only: bool,
    /// The number of the loop device, once there is one.
    pub(crate) loop_number: Option<u32>,
    /// The kernel's count for what stands behind that number (Linux 5.15): another when it was set up again.
    #[serde(default)]
    pub(crate) disk_sequence: Option<u64>,
}

impl Remembered {
    pub(crate) fn new(spec: &Spec, device: Option<&LoopDevice>) -> Self {
        Remembered {
            volume: spec.volume,
            name: spec.name.clone(),
            read_only: spec.read_only,
            loop_number: device.map(|device| device.number),
            disk_sequence: device.and_then(LoopDevice::sequence),
        }
    }
}

impl Place {
    pub(crate) fn of(run_dir: &Path, volume: VolumeId) -> Self {
        Place(root(run_dir).join(volume.to_string()))
    }

    /// A directory that was found there.
    pub(crate) fn at(dir: PathBuf) -> Self {
        Place(dir)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("holder.sock")
    }

    pub(crate) fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.mount().join(FILE_NAME)
    }

    fn memory(&self) -> PathBuf {
        self.0.join("attachment.json")
    }

    /// Makes the directories, for root only.
    pub(crate) fn make(&self) -> Result<(), FrontEndError> {
        if self.socket().as_os_str().len() > SOCKET_PATH_MAX {
            let reason =
                format!("{} is longer than {SOCKET_PATH_MAX} bytes, the kernel's bound for sockets", self.socket().display());
            return Err(FrontEndError::Invalid { field: "run_dir", reason });
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(FrontEndError::io(format!("making {}", self.0.display())))
    }

    /// Makes the mount point. Only when nothing is mounted: looking at a dead mount is an error.
    pub(crate) fn make_mount_point(&self) -> Result<(), FrontEndError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.mount());
        made.map_err(FrontEndError::io(format!("making {}", self.mount().display())))
    }

    pub(crate) fn remember(&self, what: &Remembered) -> Result<(), FrontEndError> {
        let new = self.0.join("attachment.json.new");
        let text = serde_json::to_vec(what).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        text.and_then(|text| std::fs::write(&new, text))
            .and_then(|()| std::fs::rename(&new, self.memory()))
            .map_err(FrontEndError::io(format!("writing {}", self.memory().display())))
    }

    pub(crate) fn recall(&self) -> Option<Remembered> {
        serde_json::from_slice(&std::fs::read(self.memory()).ok()?).ok()
    }

    /// The loop device over our file: the remembered one, if it still is ours, or the one that is found. The path that
    /// the kernel shows can't tell alone: it is cut short once the container that made the device is gone.
    pub(crate) fn device(&self) -> Option<LoopDevice> {
        let is_ours = |device: &LoopDevice| device.backing().is_some_and(|backing| backing == self.file());
        let remembered = self.recall().and_then(|what| {
            let device = LoopDevice { number: what.loop_number? };
            let same = what.disk_sequence.is_some() && device.sequence() == what.disk_sequence && device.backing().is_some();
            (same || is_ours(&device)).then_some(device)
        });
        let found = || LoopDevice::below(&self.0).into_iter().map(|(device, _)| device);
        remembered.or_else(|| found().find(|device| is_ours(device) || device.is_labelled(&self.file())))
    }

    /// Removes whatever is left of an attachment whose session is gone. Answers, for people, what had to stay.
    pub(crate) fn clear(&self) -> Vec<String> {
        let mut stays = Vec::new();
        for (device, _) in LoopDevice::below(&self.0) {
            match device.remove(true) {
                Ok(()) if device.backing().is_some() => {
                    stays.push(format!("{} goes when its last user does", device.path().display()));
                }
                Ok(()) => {}
                Err(error) => stays.push(error.to_string()),
            }
        }
        match umount2(&self.mount(), MntFlags::MNT_DETACH) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => stays.push(format!("unmounting {}: {errno}", self.mount().display())),
        }
        self.forget();
        stays
    }

    /// Removes the directory. The mount may be going at this moment: it must not be looked into.
    pub(crate) fn forget(&self) {
        for file in [self.socket(), self.memory(), self.0.join("attachment.json.new")] {
            let _ = std::fs::remove_file(file);
        }
        for dir in [&self.mount(), &self.0] {
            if let Err(error) = std::fs::remove_dir(dir)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, dir = %dir.display(), "a directory of an attachment could not be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_recalled() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(dir.path(), VolumeId(0x2a));
        assert!(place.socket().ends_with("loop-fuse/v-2a/holder.sock"));
        place.make().unwrap();
        assert_eq!(place.recall(), None);
        let spec = Spec { volume: VolumeId(0x2a), name: "disk".to_owned(), read_only: true };
        let what = Remembered::new(&spec, Some(&LoopDevice { number: 3 }));
        place.remember(&what).unwrap();
        assert_eq!(place.recall(), Some(what));
        place.forget();
        assert!(!place.dir().exists());
    }

    #[test]
    fn a_run_directory_too_deep_for_a_socket_is_refused() {
        let place = Place::of(&PathBuf::from("/").join("x".repeat(120)), VolumeId(1));
        assert!(matches!(place.make(), Err(FrontEndError::Invalid { field: "run_dir", .. })));
    }
}
