//! What the masters know, and how it changes: nodes, devices, pools, the namespace, streams, chunks, volumes, and the
//! orders that bring a cluster back to full redundancy.
//!
//! ```text
//!  Command ──▶ State::apply ──▶ Outcome { reply, events }        every member applies the same commands in the same order
//!  NodeReport, time ──▶ Liveness ──▶ Command                     the leader alone; soft, never in a snapshot
//! ```
//!
//! Contract: pure and deterministic. No clock, socket, file or random source is read: the time and a seed come with the
//! command. One command is all or nothing. A command with a request id that was answered before gets the same answer.
//! Nothing here depends on how commands are ordered among members; `master-raft` does that, the simulator does it
//! with a plain call.

mod answers;
mod chunks;
mod command;
mod liveness;
mod namespace;
mod nodes;
mod placement;
mod pools;
mod repair;
mod report;
mod state;
mod upkeep;
mod volumes;

pub use command::{Body, Command, Event, FileLease, NewPool, NewVolume, Outcome, Reply};
pub use liveness::{Liveness, LivenessConfig};
pub use namespace::{DirectoryId, Entry, PartitionId, partition_of};
pub use nodes::{DeviceState, DeviceView, NodeView, Presence};
pub use repair::ChunkCounts;
pub use state::{DecodeError, State};
pub use upkeep::StopCheck;
