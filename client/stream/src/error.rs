//! Why a stream operation failed, by what the caller does next.

use api_types::master;

/// See each kind for what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A newer writer exists: stop for ever.
    #[error("fenced: a newer writer of this stream exists")]
    Fenced,
    /// No space for a new chunk: free some, then try again. What failed with it may still be found by a recovery, at
    /// its own place in the order.
    #[error("no space for a new chunk: {0}")]
    NoSpace(String),
    /// Too few answered within the bound: try again later. The text says who did not.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The chunk or stream does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
    /// No reachable copy holds bytes that verify.
    #[error("no copy verifies: {0}")]
    Corrupt(String),
    /// The request breaks a rule; the text names the field and the fix. Never retried.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The writer was closed or dropped.
    #[error("the writer is closed")]
    Closed,
}

impl From<master::Error> for Error {
    fn from(error: master::Error) -> Self {
        match error {
            master::Error::Unavailable(text) => Error::Unavailable(text),
            master::Error::Fenced { .. } => Error::Fenced,
            master::Error::NotFound { what } => Error::NotFound(what),
            master::Error::Conflict(text) | master::Error::Invalid(text) => Error::Invalid(text),
            master::Error::NoSpace(text) => Error::NoSpace(text),
        }
    }
}
