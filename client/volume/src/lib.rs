//! A log-structured block device over streams of chunks.
//!
//! Contract: what [`BlockDevice::write`] has answered is durable. The volume knows streams, never nodes or sockets.

mod block;
mod config;
mod error;
mod stats;
mod volume;

pub use block::{BlockDevice, BlockError};
pub use config::{Config, PoolSpace};
pub use error::OpenError;
pub use stats::{Operation, Stats, Trace, TraceHook};
pub use volume::Volume;
