//! The agent: the process on every node that has disks or uses volumes. It serves chunks to the cluster and volumes to
//! this node, one thread a core.

mod address_book;
mod attach_service;
mod attachments;
mod config;
mod cores;
mod disks;
mod heartbeat;
mod masters;
mod meters;
mod orders;
pub mod rpc;
mod run;
mod side;
mod trace;
mod volumes;

pub use config::{AgentArgs, Config, ConfigError};
pub use run::{RunError, run};
pub use side::StartError;
