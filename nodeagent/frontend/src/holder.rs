//! The holder: a tiny process that keeps a FUSE mount alive while agents come and go.
//!
//! It mounts, shakes hands with the kernel, and from then on only waits: on its socket, and for the end of the mount.
//! An agent that wants to serve gets a descriptor of the session over the socket; when it dies, the kernel keeps what
//! was not answered, and the next agent asks for it again. Two agents never read one session: the holder asks the one
//! that serves to stop, kills it if it doesn't, and only then hands the session over.
//!
//! One thread, no runtime, a few pages of memory. It exits when told to or when the mount is gone.

mod client;
mod ledger;
mod process;
mod wire;

pub(crate) use client::{Given, Link, Order, read_order, start};
pub(crate) use process::run;
