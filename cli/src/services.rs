//! The daemons: each a thin call into its room.

use crate::failure::Failure;
use anyhow::Context;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the CSI driver until a signal ends it.
pub(crate) fn csi(args: csi::CsiArgs) -> Result<(), Failure> {
    block_on(async { csi::run(args).await.context("the CSI driver stopped") })
}

/// Runs a node agent until a signal ends it.
pub(crate) fn agent(args: nodeagent_agent::AgentArgs) -> Result<(), Failure> {
    nodeagent_agent::run(args).context("the agent stopped").map_err(Failure::from)
}

/// Runs a command on a runtime of its own.
pub(crate) fn block_on<F, E>(command: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), E>>,
    Failure: From<E>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    Ok(runtime.block_on(command)?)
}

/// Holds /dev/fuse open for an agent. No runtime, no thread, no flags parser.
pub(crate) fn fuse_holder(words: Vec<OsString>) -> ExitCode {
    nodeagent_frontend::run_holder(words)
}
