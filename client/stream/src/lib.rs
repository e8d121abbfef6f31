//! Streams of chunks: append, read, seal, recover.
//!
//! ```text
//!   append ─▶ Writer ─▶ appender (pure) ─▶ transport ─▶ replicas        read ─▶ directory ─▶ reader (pure) ─▶ transport
//!                          │  grant, seal                                          │ locate
//!                          └──────────────▶ masters ◀─────────────────────────────┘
//! ```
//! Contract: an append that was answered is on `min_copy` devices, durably, and no later failure, takeover or crash
//! changes it or its place in the stream. The tables of states and events, and why fencing is safe, are in
//! `docs/protocol.md`.
//!
//! What decides is synchronous and knows no clock, socket or chance: [`appender`], `recovery`, `reader`, `latency`,
//! `blacklist`. What is thin around it runs on one thread inside a tokio `LocalSet`.
//!
//! It never knows what the bytes mean, never opens a socket, and never decides by a wall clock.

pub mod appender;
mod blacklist;
mod client;
mod config;
mod directory;
mod error;
mod latency;
mod reader;
mod recovery;
mod scan;
mod writer;

pub use client::{Client, ClientStats, Deps};
pub use config::Config;
pub use error::Error;
pub use scan::{Scan, ScannedUnit};
pub use writer::{Position, Writer, WriterOptions};
