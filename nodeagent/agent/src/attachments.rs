//! What this agent has attached, kept in its run directory, so that an agent that was killed takes its volumes up again
//! under the filesystems that are still mounted.

use api_types::VolumeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How a volume reaches the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Door {
    /// A loop device over a FUSE file: any kernel with both.
    LoopFuse,
    /// A socket for NBD clients; no kernel device.
    Nbd,
}

/// One volume that is attached here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Through which door.
    pub door: Door,
    /// Writes are refused.
    pub read_only: bool,
}

/// The file `attachments.json`. Every change is on the disk before it is acted upon.
#[derive(Debug)]
pub(crate) struct Attachments {
    path: PathBuf,
    entries: BTreeMap<VolumeId, Entry>,
}

impl Attachments {
    /// Reads the file; a missing one is empty. A damaged one is an error: guessing would leave a mounted filesystem
    /// without its volume.
    pub(crate) fn load(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join("attachments.json");
        let entries = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged: {error}", path.display())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Attachments { path, entries })
    }

    /// All of them, by volume.
    #[must_use]
    pub(crate) fn entries(&self) -> &BTreeMap<VolumeId, Entry> {
        &self.entries
    }

    /// Remembers one.
    pub(crate) fn insert(&mut self, volume: VolumeId, entry: Entry) -> io::Result<()> {
        self.entries.insert(volume, entry);
        self.save()
    }

    /// Forgets one.
    pub(crate) fn remove(&mut self, volume: VolumeId) -> io::Result<()> {
        if self.entries.remove(&volume).is_none() {
            return Ok(());
        }
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let aside = self.path.with_extension("json.new");
        let mut file = std::fs::File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(&self.entries)?)?;
        file.sync_all()?;
        std::fs::rename(&aside, &self.path)?;
        std::fs::File::open(self.path.parent().unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_attached_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut attachments = Attachments::load(dir.path()).unwrap();
        attachments.insert(VolumeId(1), Entry { door: Door::LoopFuse, read_only: false }).unwrap();
        attachments.insert(VolumeId(2), Entry { door: Door::Nbd, read_only: true }).unwrap();
        attachments.remove(VolumeId(1)).unwrap();
        let again = Attachments::load(dir.path()).unwrap();
        assert_eq!(again.entries().keys().copied().collect::<Vec<_>>(), [VolumeId(2)]);
    }

    #[test]
    fn a_damaged_file_is_named_and_not_guessed_at() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("attachments.json"), b"{").unwrap();
        let error = Attachments::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains("attachments.json is damaged"), "{error}");
    }
}
