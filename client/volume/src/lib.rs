//! A log-structured block device over streams of chunks.
//!
//! Contract: what [`BlockDevice::write`] has answered is durable. The volume knows streams, never nodes or sockets.

mod block;

pub use block::{BlockDevice, BlockError};
