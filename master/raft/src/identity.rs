//! Who a data directory belongs to.

use crate::error::OpenError;
use crate::file;
use api_types::ClusterId;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "identity";
const MAGIC: [u8; 4] = *b"BSLI";
/// How often and after which waits the directory's lock is tried.
const LOCK_TRIES: u32 = 400;
const LOCK_WAIT: Duration = Duration::from_millis(5);

/// Who a member is: written when its directory is first used, and again when it learns its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The member.
    pub member: u64,
    /// Its cluster; `None` until it has heard of one.
    pub cluster: Option<ClusterId>,
}

/// Takes a directory for one member. The lock lasts as long as the file is open.
pub(crate) fn claim(directory: &Path, member: u64) -> Result<(File, Identity), OpenError> {
    fs::create_dir_all(directory).map_err(OpenError::io(directory))?;
    let path = directory.join("lock");
    let lock = File::create(&path).map_err(OpenError::io(&path))?;
    take(&lock, directory, &path)?;
    let path = directory.join(NAME);
    let identity = match file::read(&path, MAGIC)? {
        Some((head, _)) => postcard::from_bytes(&head).map_err(|error| OpenError::damaged(&path, error.to_string()))?,
        None => {
            let identity = Identity { member, cluster: None };
            save(directory, identity).map_err(OpenError::io(&path))?;
            identity
        }
    };
    if identity.member != member {
        return Err(OpenError::OtherMember { dir: directory.into(), found: identity.member, given: member });
    }
    Ok((lock, identity))
}

/// A process that was killed holds the lock until its last thread is gone, a moment after its end can be seen.
fn take(lock: &File, directory: &Path, path: &Path) -> Result<(), OpenError> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT),
            Err(TryLockError::Error(error)) => return Err(OpenError::io(path)(error)),
        }
    }
    Err(OpenError::Locked(directory.into()))
}

/// Records who the member is.
pub(crate) fn save(directory: &Path, identity: Identity) -> std::io::Result<()> {
    let head = postcard::to_stdvec(&identity).map_err(std::io::Error::other)?;
    file::replace(directory, NAME, MAGIC, &head, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_member_and_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let (lock, identity) = claim(directory.path(), 1).unwrap();
        assert_eq!(identity, Identity { member: 1, cluster: None });
        assert!(matches!(claim(directory.path(), 1), Err(OpenError::Locked(_))));
        drop(lock);
        save(directory.path(), Identity { member: 1, cluster: Some(ClusterId(7)) }).unwrap();
        assert!(matches!(claim(directory.path(), 2), Err(OpenError::OtherMember { found: 1, given: 2, .. })));
        assert_eq!(claim(directory.path(), 1).unwrap().1.cluster, Some(ClusterId(7)));
    }
}
