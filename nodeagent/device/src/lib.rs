//! Raw block I/O behind one trait, [`Device`].
//!
//! Contract: a device moves aligned bytes and says truthfully what is durable. It knows nothing of chunks, and never
//! retries: an error is the caller's to judge.

mod device;
pub mod faulty;
pub mod file;
mod memory;
mod observer;
mod range;
mod sys;

pub use device::{Device, Durability, Info, Media, Write};
pub use faulty::{FaultPlan, Faulty, Latency, OpKind, Power};
pub use file::FileDevice;
pub use memory::Memory;
pub use observer::{Observation, Observer};
pub use range::{IO_BYTES_MAX, RangeError};
