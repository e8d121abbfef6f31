//! The chunk store: append-only chunks on one disk, crash-safe, with one device write per append.
//!
//! ```text
//! | superblock | superblock copy | journal ring | checkpoint | checkpoint | extents of 1 MiB ...            |
//! ```
//! A chunk is a list of extent runs that double in size; its units end with footers, so that the bytes alone tell what
//! they are (`docs/format.md`). The journal records what the footers can't tell: reservations, further runs, seals,
//! deletions, epoch floors. It is group-committed and never waited for by an append, because space is reserved and
//! bound ahead of need.
//!
//! Contract: what was acknowledged is there after any crash; an append is acknowledged when it and all before it are
//! durable; a sealed length never grows; a deleted chunk never comes back. One engine owns a device on one thread.
//!
//! Inside, `core` is a synchronous state machine (requests and completions in, effects out) and `engine` the thin
//! asynchronous shell that carries effects to the device and the journal. The engine has no clock, file or random
//! source of its own. It never retries an I/O error and never looks into the bytes of a unit beyond their checksums.

mod bytes_io;
mod checkpoint;
mod core;
mod engine;
mod extent;
mod format;
mod image;
mod inspect;
mod journal;
mod mount;
mod observe;
mod poison;
mod record;
mod shell;
mod space;
mod superblock;

pub use engine::{Engine, MountReport, OpenError, OpenOptions, Restore, Stats};
pub use format::{FormatError, FormatOptions, format};
pub use inspect::{Contents, InspectError, Signature, inspect};
pub use observe::{NoObserver, Observer, Op, Stage};
pub use superblock::{Layout, Superblock};
