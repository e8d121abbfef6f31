//! What every front end is: the one seam that the agent sees.

use api_types::{Clock, VolumeId};
use client_volume::{BlockDevice, BlockError};
use futures::future::LocalBoxFuture;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// The ways a volume can be given to this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `/dev/loopN` over a FUSE file that we serve.
    LoopFuse,
    /// A Network Block Device server: a socket, no kernel device.
    Nbd,
}

impl Kind {
    /// The name used in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::LoopFuse => "loop_fuse",
            Kind::Nbd => "nbd",
        }
    }
}

/// What is exported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// The volume; one attachment per front end and volume.
    pub volume: VolumeId,
    /// The volume's name, for people and as the NBD export's name. At most 255 bytes.
    pub name: String,
    /// Refuse writes, discards and zeroing.
    pub read_only: bool,
}

/// Why an attachment could not be made, changed or taken away.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// This kernel or host cannot do it at all; take another front end.
    #[error("not supported here: {0}")]
    Unsupported(String),
    /// The caller's values are wrong.
    #[error("invalid {field}: {reason}")]
    Invalid {
        /// The field at fault.
        field: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// Somebody uses the device; nothing was changed.
    #[error("{device} is in use ({by}): unmount or close it first, or detach with force")]
    Busy {
        /// The kernel device.
        device: String,
        /// How that was seen.
        by: String,
    },
    /// It took longer than its bound.
    #[error("{what} did not finish within {} ms", .limit.as_millis())]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The bound.
        limit: Duration,
    },
    /// The holder process could not be started or refused.
    #[error("fuse holder: {0}")]
    Holder(String),
    /// A process that was sent to the kernel on our behalf failed.
    #[error("kernel device: {0}")]
    Errand(String),
    /// A call to the kernel failed.
    #[error("{context}: {source}")]
    Io {
        /// What was tried, on what.
        context: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl FrontEndError {
    /// Wraps a kernel error with what was tried.
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let context = context.into();
        move |source| FrontEndError::Io { context, source }
    }

    /// The same for the calls of `nix`.
    pub(crate) fn errno(context: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Self {
        let context = context.into();
        move |errno| FrontEndError::Io { context, source: errno.into() }
    }
}

/// What a request asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Discard.
    Discard,
    /// Write zeroes.
    WriteZeroes,
}

impl Op {
    /// The name used in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write_zeroes",
        }
    }
}

/// One answered request, as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Of which volume.
    pub volume: VolumeId,
    /// What was asked.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes it covers.
    pub bytes: u64,
    /// From the request's last byte read off the kernel or socket to the device's answer.
    pub latency: Duration,
    /// Why it failed, if it did.
    pub error: Option<&'a BlockError>,
}

/// Sees every answered block request; called on the core that serves it, so it must be quick.
pub trait Observer {
    /// A request was answered.
    fn answered(&self, answered: Answered<'_>);
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn answered(&self, _: Answered<'_>) {}
}

/// What all attachments of a core share.
#[derive(Clone)]
pub struct Context {
    /// Time, for latencies and bounds.
    pub clock: Rc<dyn Clock>,
    /// Where answered requests are reported.
    pub observer: Rc<dyn Observer>,
}

/// One way to give volumes to this node.
pub trait FrontEnd {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Whether this host can do it: `Err(Unsupported)` says what is missing. Cheap; nothing is changed.
    fn probe(&self) -> Result<(), FrontEndError>;

    /// Gives the device to the node, or takes back what an earlier process of this agent had given. Bounded in time.
    fn export(
        &self,
        device: Rc<dyn BlockDevice>,
        spec: Spec,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Attachment>, FrontEndError>>;
}

/// A volume given to this node. Dropping it stops serving without detaching: the kernel's device stays, and its
/// requests wait for the next server.
pub trait Attachment {
    /// Which front end made it.
    fn kind(&self) -> Kind;

    /// `/dev/loopN`, or the URI of a socket.
    fn device_path(&self) -> String;

    /// Takes the device's present size over to the kernel and answers it. Growing is online; shrinking is refused.
    fn resize(&self) -> LocalBoxFuture<'static, Result<u64, FrontEndError>>;

    /// Takes it away: no new user, requests under way are answered, then everything is removed. A device in use is
    /// [`FrontEndError::Busy`] and stays as it was; with `force` its users get I/O errors instead. Idempotent.
    fn detach(&self, force: bool) -> LocalBoxFuture<'static, Result<(), FrontEndError>>;

    /// Stops serving for a planned restart: requests under way are answered, later ones wait in the kernel for the
    /// next server (NBD clients are disconnected).
    fn release(&self) -> LocalBoxFuture<'static, Result<(), FrontEndError>>;

    /// Why it doesn't serve, for people. `None` while it does.
    fn trouble(&self) -> Option<String>;
}
