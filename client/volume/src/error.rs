//! Why a volume doesn't open, and how errors of streams look from above.

use crate::BlockError;
use api_types::master;
use client_stream::Error as StreamError;

/// Why a volume doesn't open or doesn't close cleanly. Each kind is something else for the caller to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A newer writer exists: give up.
    #[error("this volume is served elsewhere now")]
    Fenced,
    /// Too few copies or no master answered: try again later. The volume stays closed rather than guess.
    #[error("can't open yet: {0}")]
    Unavailable(String),
    /// What is stored contradicts itself or doesn't verify: no retry helps; repair the named copies first.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The lease or the configuration breaks a rule; the text names the field and the fix.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The pool has no room for what closing or opening writes.
    #[error("no space left in the pool: {0}")]
    NoSpace(String),
}

impl From<StreamError> for OpenError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Fenced => OpenError::Fenced,
            StreamError::Unavailable(text) => OpenError::Unavailable(text),
            StreamError::NoSpace(text) => OpenError::NoSpace(text),
            StreamError::NotFound(_) | StreamError::Corrupt(_) => OpenError::Damaged(error.to_string()),
            StreamError::Invalid(text) => OpenError::Invalid(text),
            StreamError::Closed => OpenError::Unavailable(error.to_string()),
        }
    }
}

impl From<master::Error> for OpenError {
    fn from(error: master::Error) -> Self {
        StreamError::from(error).into()
    }
}

/// What a front end answers for an error of a stream.
pub(crate) fn block_error(error: &StreamError) -> BlockError {
    match error {
        StreamError::Fenced => BlockError::Fenced,
        StreamError::NoSpace(_) => BlockError::NoSpace,
        StreamError::Closed => BlockError::Closed,
        StreamError::Unavailable(_) | StreamError::NotFound(_) | StreamError::Corrupt(_) | StreamError::Invalid(_) => {
            BlockError::Unavailable(error.to_string())
        }
    }
}
