//! The daemons: each a thin call into its room.

use crate::failure::{Failure, Kind};
use anyhow::Context;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the CSI driver until a signal ends it.
pub(crate) fn csi(args: csi::CsiArgs) -> Result<(), Failure> {
    block_on(async { csi::run(args).await.context("the CSI driver stopped") })
}

/// Runs a command on a runtime of its own.
pub(crate) fn block_on<F: Future<Output = anyhow::Result<()>>>(command: F) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    Ok(runtime.block_on(command)?)
}

/// Holds /dev/fuse open for an agent. No runtime, no thread, no flags parser.
pub(crate) fn fuse_holder(words: Vec<OsString>) -> ExitCode {
    let _ = words;
    eprintln!("error: this build has no loop-on-FUSE front end");
    ExitCode::from(Kind::Failed as u8)
}
