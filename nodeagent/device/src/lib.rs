//! Raw block I/O behind one trait, [`Device`].
//!
//! Contract: a device moves aligned bytes and says truthfully what is durable. It knows nothing of chunks, and never
//! retries: an error is the caller's to judge.

mod device;
pub mod faulty;
mod memory;
mod range;

pub use device::{Device, Durability, Info, Media, Write};
pub use faulty::{FaultPlan, Faulty, Latency, OpKind, Power};
pub use memory::Memory;
pub use range::{IO_BYTES_MAX, RangeError};
