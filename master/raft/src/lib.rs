//! The masters' agreement: openraft behind a thin adapter, with a log, a vote and snapshots of our own on disk.
//!
//! ```text
//!  propose ─▶ Group ─▶ openraft ─▶ LogStore ─▶ SegmentLog      one thread, one fdatasync for all that waits
//!                         │  └────▶ Peers ─▶ gRPC ─▶ RaftService of the others
//!                         └───────▶ Machine ─▶ master_state::State, snapshots
//! ```
//!
//! Contract: what `propose` answered is on a majority of disks, synced, and every member applies the same commands in
//! the same order. openraft's 0.10 line is used for its runtime seam and its pre-vote; no type of it leaves this
//! crate, so that a change of version stays here. The bytes on disk are described in `docs/format.md`.
//!
//! openraft runs on a thread of its own, so that a busy gRPC service delays no heartbeat.

mod error;
mod file;
mod group;
mod identity;
mod log_store;
mod machine;
mod members;
mod network;
mod record;
mod segments;
mod service;
mod snapshot;
mod types;

pub use error::{GroupError, OpenError};
pub use group::{Consistency, Group, GroupConfig, GroupStatus, Timing};
pub use identity::Identity;
pub use members::Member;
pub use service::RaftService;
