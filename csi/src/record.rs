//! One small file per volume on this node: its lock keeps two tools off one device, also when the first was started by
//! a driver that died; its content says that a filesystem is being made, so that a retry may make it again over the
//! remains.

use crate::error::Error;
use api_types::VolumeId;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAKING: &[u8] = b"making a filesystem\n";

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Records {
    dir: PathBuf,
}

/// The file of one volume, locked.
#[derive(Debug)]
pub struct Record {
    file: File,
    path: PathBuf,
}

impl Records {
    /// Keeps them in `dir`, which is made when it isn't there. It should survive a restart of the node.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(|error| Error::Host(format!("could not make {}: {error}", dir.display())))?;
        Ok(Records { dir: dir.to_owned() })
    }

    fn path(&self, volume: VolumeId) -> PathBuf {
        self.dir.join(format!("{volume}.stage"))
    }

    /// Locks the volume's file. [`Error::Busy`] while a tool that an earlier driver started still runs.
    pub fn lock(&self, volume: VolumeId) -> Result<Record, Error> {
        let path = self.path(volume);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(|error| failed(&path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Record { file, path }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(format!("volume {volume} (a tool still works on its device)"))),
            Err(TryLockError::Error(error)) => Err(failed(&path, &error)),
        }
    }

    /// Forgets the volume.
    pub fn remove(&self, volume: VolumeId) -> Result<(), Error> {
        match std::fs::remove_file(self.path(volume)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&self.path(volume), &error)),
            _ => Ok(()),
        }
    }
}

impl Record {
    /// A filesystem was being made when the last call ended.
    pub fn is_making(&mut self) -> Result<bool, Error> {
        let mut content = Vec::new();
        let read = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.read_to_end(&mut content));
        read.map_err(|error| failed(&self.path, &error))?;
        Ok(content == MAKING)
    }

    /// Notes durably that a filesystem is being made, or that it is made.
    pub fn set_making(&mut self, making: bool) -> Result<(), Error> {
        let change = || -> std::io::Result<()> {
            self.file.set_len(0)?;
            if making {
                self.file.seek(SeekFrom::Start(0))?;
                self.file.write_all(MAKING)?;
            }
            self.file.sync_all()
        };
        let mut change = change;
        change().map_err(|error| failed(&self.path, &error))
    }

    /// A second handle with the same lock, for a tool to hold.
    pub fn guard(&self) -> Result<File, Error> {
        self.file.try_clone().map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::Host(format!("could not keep {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_outlives_the_handle_and_goes_when_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        records.lock(VolumeId(1)).unwrap().set_making(true).unwrap();
        let mut record = records.lock(VolumeId(1)).unwrap();
        assert!(record.is_making().unwrap());
        record.set_making(false).unwrap();
        assert!(!record.is_making().unwrap());
        drop(record);
        records.remove(VolumeId(1)).unwrap();
        records.remove(VolumeId(1)).unwrap();
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_tool_that_still_runs_keeps_the_lock_after_its_starter_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let record = records.lock(VolumeId(1)).unwrap();
        let mut tool = std::process::Command::new("sleep").arg("1000").stdin(record.guard().unwrap()).spawn().unwrap();
        drop(record);
        assert!(matches!(records.lock(VolumeId(1)), Err(Error::Busy(_))));
        tool.kill().unwrap();
        tool.wait().unwrap();
        records.lock(VolumeId(1)).unwrap();
    }
}
