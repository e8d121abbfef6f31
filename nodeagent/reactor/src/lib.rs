//! What a data thread runs on: a core loop, time, chance, aligned memory and disk requests.
//!
//! Contract: a [`Core`] is one OS thread with one current-thread runtime; everything started in it stays in it. Memory
//! for I/O comes from a bounded [`BufferPool`] and is never copied on its way to a disk. Disk requests go through a
//! [`disk::Executor`]: io_uring where the kernel grants it, else Linux AIO or threads, behind one interface, and the
//! buffer of a request lives until the kernel is done with it, whoever stops waiting.
//!
//! This crate knows nothing of chunks, volumes or devices, and never retries.

pub mod buffer;
pub mod clock;
pub mod core;
pub mod disk;
pub mod priority;

pub use buffer::{AlignedBuf, BufferPool, PoolInfo, PoolOptions, TakeError, is_aligned};
pub use clock::{RealClock, RealRng};
pub use core::{Core, spawn_local};
