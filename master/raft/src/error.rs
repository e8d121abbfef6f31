//! What can go wrong, by what the caller does next.

use std::io;
use std::path::PathBuf;

/// Why the group didn't do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Another member leads, or none: ask there, or wait.
    #[error("this member does not lead, {} does", .leader.as_deref().unwrap_or("nobody"))]
    NotLeader {
        /// `host:port` of the leader, when it is known.
        leader: Option<String>,
    },
    /// No majority answers just now; whether it was done is not known.
    #[error("no majority of masters answers: {0}")]
    Unavailable(String),
    /// It would break the group, or contradicts what it is. The text says what to do.
    #[error("{0}")]
    Refused(String),
    /// This member is broken and must be restarted or replaced.
    #[error("this master has stopped: {0}")]
    Fatal(String),
}

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("data directory {0} is in use by another master")]
    Locked(PathBuf),
    /// It is another member's.
    #[error("data directory {dir} belongs to member {found}, not {given}: use the right directory or an empty one")]
    OtherMember {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who was started.
        given: u64,
    },
    /// A file is damaged in a way that no crash explains.
    #[error("{path} is damaged: {what}; remove this member from the group, empty its directory and add it again")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file was written by another version.
    #[error("{path} has version {version}, this program reads {}", crate::file::VERSION)]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The disk failed.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The configuration contradicts itself.
    #[error("configuration: {0}")]
    Config(String),
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Io { path, source }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, what: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: path.into(), what: what.into() }
    }
}
