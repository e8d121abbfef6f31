//! The types openraft is told to use.

use master_state::{Command, Outcome, Reply};
use serde::{Deserialize, Serialize};
use std::fmt;

openraft::declare_raft_types!(
    /// Commands in, outcomes out, on tokio.
    pub(crate) TypeConfig:
        D = Proposal,
        R = Outcome,
);

/// A command in the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Proposal(pub(crate) Command);

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.request_id)
    }
}

pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type Membership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, bytes::Bytes>;
pub(crate) type Raft = openraft::Raft<TypeConfig, crate::machine::Machine>;

/// The answer to an entry that holds no command.
pub(crate) fn nothing() -> Outcome {
    Outcome { reply: Ok(Reply::Done), events: Vec::new() }
}
