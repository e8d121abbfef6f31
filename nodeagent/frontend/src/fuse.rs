//! A FUSE filesystem of one directory with one file, spoken over `/dev/fuse` without a library.
//!
//! The holder process mounts it and shakes hands (`INIT`); a [`Server`] reads requests from the descriptor it is given,
//! does them on a device, and answers them as they finish. Servers come and go; the kernel keeps what isn't answered.

mod abi;
mod init;
mod request;
mod server;

pub(crate) use init::{Negotiated, answer_init};
pub(crate) use server::Server;

/// The name of the only file.
pub(crate) const FILE_NAME: &str = "volume";

/// The most bytes of one request; the kernel is told so at `INIT`.
pub(crate) const MAX_WRITE: u32 = 1 << 20;
