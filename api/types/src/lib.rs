//! The words every room of Basalt shares: ids, epochs, the bytes of a unit, the questions a chunk store answers and
//! the questions the masters answer.
//!
//! Contract: plain values and pure functions only. No socket, file, clock or random source is read here; the seams
//! [`Clock`] and [`Rng`] are only *named* here, and implemented elsewhere. What crosses a socket is in `api-wire`.
//!
//! A type belongs here when at least two rooms on different sides of a seam must agree on it, and nowhere else.

pub mod checksum;
pub mod chunk;
pub mod clock;
pub mod id;
pub mod limits;
pub mod master;
pub mod qos;
pub mod rule;
pub mod size;
pub mod unit;

pub use clock::{Clock, Rng};
pub use id::{ChunkId, ClusterId, DeviceId, Epoch, NodeName, OwnerId, RequestId, StreamId, VolumeId};
pub use qos::{LifetimeClass, QosClass};
pub use rule::Rule;
