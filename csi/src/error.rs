//! Everything that can go wrong, and the one table that turns it into the codes of the CSI specification.
//!
//! | kind | gRPC code | what the orchestrator does |
//! |---|---|---|
//! | `Invalid` | INVALID_ARGUMENT | shows it; a person mends the request |
//! | `NotFound` | NOT_FOUND | looks again, slower and slower |
//! | `AlreadyExists` | ALREADY_EXISTS | shows it: same name or path, other properties |
//! | `Precondition` | FAILED_PRECONDITION | waits until it is not in use, or staged |
//! | `Busy` | ABORTED | tries again: another call on the same thing is under way |
//! | `BadToken` | ABORTED | lists again from the start |
//! | `NoSpace` | RESOURCE_EXHAUSTED | tries another place, or waits for space |
//! | `OutOfRange` | OUT_OF_RANGE | shows it; a person mends the size |
//! | `Unavailable` | UNAVAILABLE | tries again soon |
//! | `TimedOut` | DEADLINE_EXCEEDED | tries again; the call is idempotent |
//! | `Host` | INTERNAL | shows it and tries again, slower and slower |

use tonic::{Code, Status};

/// See the table of this module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule; the text names the field and the fix.
    #[error("{0}")]
    Invalid(String),
    /// There is no such volume, node, pool or mount.
    #[error("{0} does not exist")]
    NotFound(String),
    /// It is there, with other properties.
    #[error("{0}")]
    AlreadyExists(String),
    /// In use elsewhere, not staged, or holding foreign data.
    #[error("{0}")]
    Precondition(String),
    /// Another call on the same thing is under way.
    #[error("another call on {0} is under way: try again when it has ended")]
    Busy(String),
    /// A page token that was never given.
    #[error("starting_token `{0}` was not given by this driver: list again from the start")]
    BadToken(String),
    /// Space or devices are short.
    #[error("{0}")]
    NoSpace(String),
    /// No volume can have that size.
    #[error("{0}")]
    OutOfRange(String),
    /// Masters or agent don't answer just now.
    #[error("{0}")]
    Unavailable(String),
    /// It took longer than it may.
    #[error("{what} did not end within {seconds} s")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// The machine refused: a mount, a tool, a path.
    #[error("{0}")]
    Host(String),
}

impl Error {
    /// The code of the specification.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Invalid(_) => Code::InvalidArgument,
            Error::NotFound(_) => Code::NotFound,
            Error::AlreadyExists(_) => Code::AlreadyExists,
            Error::Precondition(_) => Code::FailedPrecondition,
            Error::Busy(_) | Error::BadToken(_) => Code::Aborted,
            Error::NoSpace(_) => Code::ResourceExhausted,
            Error::OutOfRange(_) => Code::OutOfRange,
            Error::Unavailable(_) => Code::Unavailable,
            Error::TimedOut { .. } => Code::DeadlineExceeded,
            Error::Host(_) => Code::Internal,
        }
    }

    /// A field that must not be empty is.
    pub(crate) fn missing(field: &str) -> Self {
        Error::Invalid(format!("{field} is missing: it is required"))
    }
}

/// The specification wants the details of a status to be empty.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Status::new(error.code(), error.to_string())
    }
}

/// What the masters say. A conflict is a volume in use here; where it means "other properties", the caller says so.
impl From<api_types::master::Error> for Error {
    fn from(error: api_types::master::Error) -> Self {
        use api_types::master::Error as Master;
        match error {
            Master::Unavailable(text) => Error::Unavailable(format!("no master leads at the moment: {text}")),
            Master::Fenced { epoch } => Error::Precondition(format!("the volume is served elsewhere since epoch {epoch}")),
            Master::NotFound { what } => Error::NotFound(what),
            Master::Conflict(text) => Error::Precondition(text),
            Master::NoSpace(text) => Error::NoSpace(text),
            Master::Invalid(text) => Error::Invalid(text),
        }
    }
}

/// What the agent says over its socket.
impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let text = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument => Error::Invalid(text),
            Code::NotFound => Error::NotFound(text.trim_end_matches(" does not exist").to_owned()),
            Code::AlreadyExists => Error::AlreadyExists(text),
            Code::FailedPrecondition => Error::Precondition(text),
            Code::Aborted => Error::Busy("the volume at this node's agent".to_owned()),
            Code::ResourceExhausted => Error::NoSpace(text),
            Code::OutOfRange => Error::OutOfRange(text),
            Code::Unavailable | Code::Cancelled => Error::Unavailable(format!("the agent of this node: {text}")),
            Code::DeadlineExceeded => Error::Unavailable(format!("the agent of this node took too long: {text}")),
            _ => Error::Host(format!("the agent of this node: {text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_code_of_the_specification() {
        let text = || "x".to_owned();
        let table = [
            (Error::Invalid(text()), Code::InvalidArgument),
            (Error::NotFound(text()), Code::NotFound),
            (Error::AlreadyExists(text()), Code::AlreadyExists),
            (Error::Precondition(text()), Code::FailedPrecondition),
            (Error::Busy(text()), Code::Aborted),
            (Error::BadToken(text()), Code::Aborted),
            (Error::NoSpace(text()), Code::ResourceExhausted),
            (Error::OutOfRange(text()), Code::OutOfRange),
            (Error::Unavailable(text()), Code::Unavailable),
            (Error::TimedOut { what: text(), seconds: 1 }, Code::DeadlineExceeded),
            (Error::Host(text()), Code::Internal),
        ];
        for (error, code) in table {
            let status = Status::from(error.clone());
            assert_eq!((status.code(), status.message()), (code, error.to_string().as_str()));
            assert!(status.details().is_empty());
        }
    }

    #[test]
    fn every_answer_of_the_masters_has_a_code() {
        use api_types::master::Error as Master;
        let text = || "x".to_owned();
        let table = [
            (Master::Unavailable(text()), Code::Unavailable),
            (Master::Fenced { epoch: api_types::Epoch(2) }, Code::FailedPrecondition),
            (Master::NotFound { what: text() }, Code::NotFound),
            (Master::Conflict(text()), Code::FailedPrecondition),
            (Master::NoSpace(text()), Code::ResourceExhausted),
            (Master::Invalid(text()), Code::InvalidArgument),
        ];
        for (master, code) in table {
            assert_eq!(Error::from(master).code(), code);
        }
    }
}
