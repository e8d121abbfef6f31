//! Errors of the masters as gRPC statuses and back: the one edge where gRPC codes are chosen.

use crate::proto::master as pb;
use crate::proto::master::failure::Kind;
use api_types::Epoch;
use api_types::master::Error;
use prost::Message;
use tonic::{Code, Status};

/// What a status says to a client of the masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The leader decided: final.
    Decided(Error),
    /// Another member leads: ask it, or look around when its address isn't known.
    NotLeader(Option<String>),
    /// Nothing was decided, or it isn't known: ask again with the same request id.
    Unknown(String),
}

/// The status for an error.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let (code, kind, epoch) = match error {
        Error::Unavailable(_) => (Code::Unavailable, Kind::Unavailable, 0),
        Error::Fenced { epoch } => (Code::Aborted, Kind::Fenced, epoch.0),
        Error::NotFound { .. } => (Code::NotFound, Kind::NotFound, 0),
        Error::Conflict(_) => (Code::FailedPrecondition, Kind::Conflict, 0),
        Error::NoSpace(_) => (Code::ResourceExhausted, Kind::NoSpace, 0),
        Error::Invalid(_) => (Code::InvalidArgument, Kind::Invalid, 0),
    };
    let text = match error {
        Error::NotFound { what } => what.clone(),
        Error::Unavailable(text) | Error::Conflict(text) | Error::NoSpace(text) | Error::Invalid(text) => text.clone(),
        Error::Fenced { .. } => String::new(),
    };
    let failure = pb::Failure { kind: kind as i32, text, epoch, leader: String::new() };
    Status::with_details(code, error.to_string(), failure.encode_to_vec().into())
}

/// The status of a member that doesn't lead.
#[must_use]
pub fn not_leader(leader: Option<&str>) -> Status {
    let failure = pb::Failure {
        kind: Kind::NotLeader as i32,
        text: String::new(),
        epoch: 0,
        leader: leader.unwrap_or_default().to_owned(),
    };
    let message = match leader {
        Some(leader) => format!("this master does not lead: ask {leader}"),
        None => "this master does not lead, and knows no leader at the moment".to_owned(),
    };
    Status::with_details(Code::Unavailable, message, failure.encode_to_vec().into())
}

/// What a status says.
#[must_use]
pub fn read_status(status: &Status) -> Answer {
    let failure = pb::Failure::decode(status.details()).unwrap_or_default();
    match failure.kind() {
        Kind::NotLeader => Answer::NotLeader(Some(failure.leader).filter(|leader| !leader.is_empty())),
        Kind::Unavailable => Answer::Unknown(failure.text),
        Kind::Fenced => Answer::Decided(Error::Fenced { epoch: Epoch(failure.epoch) }),
        Kind::NotFound => Answer::Decided(Error::NotFound { what: failure.text }),
        Kind::Conflict => Answer::Decided(Error::Conflict(failure.text)),
        Kind::NoSpace => Answer::Decided(Error::NoSpace(failure.text)),
        Kind::Invalid => Answer::Decided(Error::Invalid(failure.text)),
        Kind::Unspecified => match status.code() {
            Code::InvalidArgument | Code::Unimplemented | Code::OutOfRange => {
                Answer::Decided(Error::Invalid(status.message().to_owned()))
            }
            code => Answer::Unknown(format!("{code:?}: {}", status.message())),
        },
    }
}
