//! The kernel's doors: how a volume becomes a block device of this node.
//!
//! | front end | what a user sees | needs |
//! |---|---|---|
//! | [`LoopFuse`] | `/dev/loopN` | FUSE and loop, in any kernel; survives the agent's death on Linux 6.9 and later |
//! | [`Nbd`] | a unix socket, optionally TCP | nothing |
//!
//! All go through one seam, [`FrontEnd`] and [`Attachment`]; ublk, NVMe/TCP and vhost-user come through the same.
//!
//! Contract: everything runs on the core that owns the volume (a tokio current-thread `LocalSet`); calls of the kernel
//! that may wait for *us* (mount, loop ioctls, stat on our own file) run on a blocking thread and never on that core.
//! Requests are answered as they finish, many at once, with bounds on number and bytes. Whatever a client or the kernel
//! sends, the process goes on.
//!
//! What this crate never does: keep a write in a cache, answer before the volume did, or decide where a volume is served.
//!
//! Errors become numbers in one place, `errno.rs`: `NoSpace` is ENOSPC, `Fenced` and `Unavailable` are EIO, `Invalid`
//! is EINVAL.

mod adapter;
mod buffer;
mod errno;
mod front_end;
mod fuse;
mod holder;
mod keeper;
mod loop_fuse;
mod nbd;
mod ranges;
mod spawn;
pub mod testing;

pub use front_end::{Answered, Attachment, Context, FrontEnd, FrontEndError, Kind, Observer, Op, Spec, Unobserved};
pub use keeper::{Keeper, KeeperError, KeeperOptions, check_keeper, keeper_socket};
pub use loop_fuse::{FoundAttachment, FoundState, HolderCommand, LoopFuse, abandon, adopt, cleanup_orphans, run_holder};
pub use nbd::{Nbd, NbdOptions};
