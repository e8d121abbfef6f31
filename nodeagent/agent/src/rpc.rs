//! The data plane's sockets: frames in, store calls, frames out; and the way back for clients.
//!
//! ```text
//!  client core                                      server core
//!  TcpTransport::call ─▶ Link queue ─▶ one writev ══▶ Intake ─▶ ChunkStore::serve (in arrival order)
//!          ▲                                          │
//!          └── by request id ◀─ Intake ◀══ one writev ┴◀ Outbox ◀─ answers as they finish
//! ```
//! One connection carries the requests of one core for one device. It is one task that polls everything itself (no
//! hop between a reading and a writing task), reads and writes in as few system calls as the load allows, and stops
//! reading when too much is under way: the kernel's socket buffers then push back to the client.
//!
//! Never here: what a request means, retries of a request, or where a device should be.

mod client;
mod connection;
mod counted;
mod intake;
mod link;
mod observe;
mod outbox;
mod server;
mod socket;

pub use client::{AddressBook, ClientOptions, Directory, LocalStores, TcpTransport};
pub use connection::End;
pub(crate) use counted::CountedObserver;
pub use observe::{Called, NoObserver, Observer, Served};
pub use server::{Lookup, ServerContext, ServerOptions, serve};

#[cfg(test)]
mod tests;
