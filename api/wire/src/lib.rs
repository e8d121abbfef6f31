//! What crosses a socket: the frames of the data path, and the protos of the control plane with their way to and from
//! `api-types`.
//!
//! Contract: bytes are parsed once, here, and trusted after. No decision is taken here; a message that doesn't parse
//! is a typed error, never a panic.

pub mod admin;
pub mod convert;
pub mod frame;
pub mod master_client;
pub mod proto;
