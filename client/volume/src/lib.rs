//! A log-structured block device over streams of chunks.
//!
//! Contract: what [`BlockDevice::write`] has answered is durable. The volume knows streams, never nodes or sockets.

mod block;
mod bucket;
mod checkpoint;
mod chunks;
mod codec;
mod config;
mod error;
mod leaves;
mod map;
#[cfg(test)]
mod model;
mod nodes;
mod open;
mod read;
mod reclaim;
mod record;
mod root;
mod sequencer;
mod stats;
mod streams;
mod volume;
mod write;

pub use block::{BlockDevice, BlockError};
pub use config::{Config, PoolSpace};
pub use error::OpenError;
pub use stats::{Operation, Stats, Trace, TraceHook};
pub use volume::Volume;
