//! The newest snapshot on disk.

use crate::error::OpenError;
use crate::file;
use crate::types::{Snapshot, SnapshotMeta};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "snapshot";
const MAGIC: [u8; 4] = *b"BSLS";

/// Where a member keeps its snapshot. One file: a newer one replaces the older.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotStore {
    directory: PathBuf,
}

impl SnapshotStore {
    pub(crate) fn new(directory: &Path) -> Self {
        SnapshotStore { directory: directory.into() }
    }

    pub(crate) fn save(&self, meta: &SnapshotMeta, state: &[u8]) -> io::Result<()> {
        let head = postcard::to_stdvec(meta).map_err(io::Error::other)?;
        file::replace(&self.directory, NAME, MAGIC, &head, state)
    }

    pub(crate) fn load(&self) -> Result<Option<Snapshot>, OpenError> {
        let path = self.directory.join(NAME);
        let Some((head, state)) = file::read(&path, MAGIC)? else { return Ok(None) };
        let meta = postcard::from_bytes(&head).map_err(|error| OpenError::damaged(&path, error.to_string()))?;
        Ok(Some(Snapshot { meta, snapshot: Bytes::from(state) }))
    }
}
