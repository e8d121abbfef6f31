//! The process, from flags to a clean end.

use crate::args::{ArgsError, MasterArgs};
use crate::master::{Master, MasterConfig};
use master_raft::{Group, GroupError, OpenError};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long the end of the server is waited for: longer calls are cut off, their clients ask another master.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Why a master didn't start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag can't be used.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// Log or snapshots can't be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The group could not be made.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Logs or metrics can't be set up.
    #[error(transparent)]
    Telemetry(#[from] api_telemetry::InitError),
    /// The address is taken, or not ours.
    #[error("could not listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("the server ended: {0}")]
    Server(#[source] tonic::transport::Error),
    /// The log or the disk under it failed: nothing can be promised any more.
    #[error("the master has stopped: {0}")]
    Broken(String),
}

/// Runs a master until SIGTERM or SIGINT. Builds its own runtime.
pub fn run(args: MasterArgs) -> Result<(), RunError> {
    // It has a thread and a runtime of its own, and so comes before ours.
    let telemetry = api_telemetry::init(&args.telemetry, "master", &format!("master-{}", args.id))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("master")
        .enable_all()
        .build()
        .map_err(|source| RunError::Io { what: "could not start the runtime", source })?;
    let result = runtime.block_on(serve(args, &telemetry));
    runtime.shutdown_timeout(END_LIMIT);
    result
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = api_telemetry::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn serve(args: MasterArgs, telemetry: &api_telemetry::Telemetry) -> Result<(), RunError> {
    args.address()?;
    let initial = args.first_members()?;
    let ready = telemetry.check("leader");
    // Before the log is opened: whoever finds the port taken has not touched anything.
    let listener = bind(args.listen).map_err(|source| RunError::Listen { address: args.listen, source })?;
    let mut config = MasterConfig::new(args.id, &args.data_dir);
    config.initial = initial;
    config.liveness.lost_after = Duration::from_secs(args.lost_after);
    let mut master = Master::start(config, listener).await?;
    let watching = tokio::spawn(watch_leader(master.group().clone(), ready));
    tracing::info!(id = args.id, address = %args.listen, "the master serves");
    let failed = wait_for_end(&mut master).await?;
    tracing::info!("stopping");
    master.stop().await;
    watching.abort();
    failed.map_or(Ok(()), Err)
}

/// Waits for a signal, or for the master to end by itself.
async fn wait_for_end(master: &mut Master) -> Result<Option<RunError>, RunError> {
    let wait = |kind| signal(kind).map_err(|source| RunError::Io { what: "could not wait for signals", source });
    let (mut terminate, mut interrupt) = (wait(SignalKind::terminate())?, wait(SignalKind::interrupt())?);
    Ok(tokio::select! {
        biased;
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        error = master.ended() => Some(error),
    })
}

/// A master is ready while it knows a leader.
async fn watch_leader(group: Group, ready: api_telemetry::Check) {
    let mut changes = group.watch();
    loop {
        if group.knows_leader() {
            ready.met();
        } else {
            ready.failed("no master leads at the moment");
        }
        if !changes.changed().await {
            return;
        }
    }
}
