//! The store as its users see it: on devices in memory, in virtual time.
#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

mod crash;
mod damage;
mod format;
mod requests;
mod restore;
mod world;
