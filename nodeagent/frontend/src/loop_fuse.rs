//! `/dev/loopN` over a FUSE file that we serve.

mod found;

use crate::front_end::{Attachment, Context, FrontEnd, FrontEndError, Kind, Spec};
use client_volume::BlockDevice;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

pub use found::{FoundAttachment, FoundState, adopt, cleanup_orphans};

/// How a holder process is started: `program arguments… --socket <path> --mount <path>`, which must end in
/// [`run_holder`] before any thread or runtime is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderCommand {
    /// The binary; usually the agent's own.
    pub program: PathBuf,
    /// What comes before the holder's options; usually `["fuse-holder"]`.
    pub arguments: Vec<OsString>,
}

/// The front end. One per core; all of an agent share one run directory.
#[derive(Clone)]
pub struct LoopFuse {
    run_dir: PathBuf,
    holder: HolderCommand,
    context: Context,
}

impl LoopFuse {
    /// `run_dir` is private to the agent and on tmpfs (`/run/basalt`); each attachment has a directory of its own in
    /// it. Nothing is touched yet.
    #[must_use]
    pub fn new(run_dir: PathBuf, holder: HolderCommand, context: Context) -> Self {
        LoopFuse { run_dir, holder, context }
    }
}

impl FrontEnd for LoopFuse {
    fn kind(&self) -> Kind {
        Kind::LoopFuse
    }

    fn probe(&self) -> Result<(), FrontEndError> {
        Err(FrontEndError::Unsupported("not built yet".to_owned()))
    }

    fn export(
        &self,
        _device: Rc<dyn BlockDevice>,
        _spec: Spec,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Attachment>, FrontEndError>> {
        let _ = (&self.run_dir, &self.holder, &self.context);
        async { Err(FrontEndError::Unsupported("not built yet".to_owned())) }.boxed_local()
    }
}

/// The holder process: mounts, keeps `/dev/fuse` and the mount alive while agents come and go, and exits when told or
/// when the mount is gone. `arguments` are what follows the subcommand. Call it before any thread exists.
#[must_use]
pub fn run_holder(_arguments: Vec<OsString>) -> ExitCode {
    ExitCode::FAILURE
}
