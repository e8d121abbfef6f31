//! The daemons: each a thin call into its room.

use crate::args::FuseKeeperArgs;
use crate::failure::Failure;
use anyhow::Context;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the CSI driver until a signal ends it.
pub(crate) fn csi(args: csi::CsiArgs) -> Result<(), Failure> {
    // It has a thread and a runtime of its own, and so comes before ours.
    let telemetry = api_telemetry::init(&args.telemetry, "csi", args.node_name.as_deref().unwrap_or("controller"));
    let _telemetry = telemetry.context("could not set up logs and metrics")?;
    block_on(async { csi::run(args).await.context("the CSI driver stopped") })
}

/// Runs a master until a signal ends it.
pub(crate) fn master(args: master_server::MasterArgs) -> Result<(), Failure> {
    master_server::run(args).context("the master stopped").map_err(Failure::from)
}

/// Runs a node agent until a signal ends it.
pub(crate) fn agent(args: nodeagent_agent::AgentArgs) -> Result<(), Failure> {
    nodeagent_agent::run(args).context("the agent stopped").map_err(Failure::from)
}

/// Runs the keeper of fuse sessions until a signal ends it. No runtime: it starts processes and waits.
pub(crate) fn fuse_keeper(args: FuseKeeperArgs) -> Result<(), Failure> {
    if args.check {
        return nodeagent_frontend::check_keeper(&args.run_dir).context("no keeper answers").map_err(Failure::from);
    }
    let program = std::env::current_exe().context("could not find the program that runs")?;
    let options = nodeagent_frontend::KeeperOptions { run_dir: args.run_dir, program, arguments: vec!["fuse-holder".into()] };
    let keeper = nodeagent_frontend::Keeper::start(options).context("could not start the keeper")?;
    // After the keeper has blocked the signals that end it, for this runtime's thread too.
    let telemetry = api_telemetry::init(&args.telemetry, "fuse-keeper", "keeper");
    let _telemetry = telemetry.context("could not set up logs and metrics")?;
    keeper.run().context("the keeper stopped").map_err(Failure::from)
}

/// Runs the operator until a signal ends it.
pub(crate) fn operator(args: operator::OperatorArgs) -> Result<(), Failure> {
    let telemetry = api_telemetry::init(&args.telemetry, "operator", &args.identity);
    let _telemetry = telemetry.context("could not set up logs and metrics")?;
    block_on(async { operator::run(args).await.context("the operator stopped") })
}

/// Prints what Kubernetes must know of our kinds.
pub(crate) fn crds() -> Result<(), Failure> {
    for (_, definition) in api_crd::definitions() {
        println!("---\n{}", api_crd::yaml(&definition).context("a definition can't be printed")?);
    }
    Ok(())
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

/// Runs a command that works on disks: on this one thread, where the disks' driver lives too.
pub(crate) fn block_on_local<F: Future<Output = Result<(), Failure>>>(command: F) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("could not start the runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, command)
}

/// Holds /dev/fuse open for an agent. No runtime, no thread, no flags parser.
pub(crate) fn fuse_holder(words: Vec<OsString>) -> ExitCode {
    nodeagent_frontend::run_holder(words)
}
