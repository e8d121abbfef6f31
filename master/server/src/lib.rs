//! The master process: the gRPC door to the replicated state, the leader's eye on who is alive, and the group's own
//! membership.
//!
//! ```text
//!  client, agent, csi ──▶ service ──▶ Group::propose ──▶ Raft ──▶ State::apply on every member
//!                             │  └──▶ Group::read  (the leader, after it has made sure that it still leads)
//!  heartbeats ──▶ leader: Liveness (soft) ──▶ commands only for what changed; repairs planned once a second
//! ```
//! Contract: nothing that matters is kept here; a process that ends loses at most the memory of who beat when, and a new
//! leader gives everybody the whole time again.

mod args;
mod leader;
mod master;
mod meters;
mod run;
mod service;
mod status;

pub use args::{ArgsError, MasterArgs};
pub use master::{Master, MasterConfig};
pub use run::{RunError, run};
