//! The process, from flags to a clean end.

use crate::args::{ArgsError, MasterArgs};
use crate::leader::{self, Leader};
use crate::service::Service;
use api_types::ClusterId;
use api_wire::proto::master::master_server::MasterServer;
use master_raft::{Group, GroupConfig, GroupError, OpenError, RaftService};
use master_state::{Body, LivenessConfig};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;

/// How often an idle peer is pinged, and how long its answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
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

async fn serve(args: MasterArgs, telemetry: &api_telemetry::Telemetry) -> Result<(), RunError> {
    args.address()?;
    let initial = args.first_members()?;
    let ready = telemetry.check("leader");
    // Before the log is opened: whoever finds the port taken has not touched anything.
    let listener = TcpListener::bind(args.listen).await.map_err(|source| RunError::Listen { address: args.listen, source })?;
    let group = Group::open(GroupConfig::new(args.id, &args.data_dir), |event| tracing::debug!(?event, "applied")).await?;
    let liveness = LivenessConfig { lost_after: Duration::from_secs(args.lost_after), ..LivenessConfig::default() };
    let leader = Arc::new(Leader::new(liveness));
    let (stop_out, stop) = watch::channel(false);
    let first = Body::Bootstrap { cluster: ClusterId(rand::random::<u128>() | 1), pools: Vec::new() };
    let leading = tokio::spawn(leader::run(group.clone(), Arc::clone(&leader), first, stop.clone()));
    tokio::spawn(watch_leader(group.clone(), ready, stop.clone()));
    let ended = tokio::spawn(listen(listener, group.clone(), leader, stop));
    if let Some(members) = initial.filter(|_| group.was_pristine()) {
        // The service must answer already: the others may ask at once.
        group.initialize(&members).await?;
    }
    tracing::info!(id = args.id, address = %args.listen, "the master serves");
    let failed = wait_for_end(ended).await?;
    tracing::info!("stopping");
    // The lead is handed over while this member still answers.
    group.hand_over(END_LIMIT).await;
    stop_out.send_replace(true);
    group.shutdown().await;
    if tokio::time::timeout(END_LIMIT, leading).await.is_err() {
        tracing::warn!("the leader's task did not end in time");
    }
    failed.map_or(Ok(()), Err)
}

/// Waits for a signal, or for the server to end by itself.
async fn wait_for_end(mut ended: tokio::task::JoinHandle<Result<(), RunError>>) -> Result<Option<RunError>, RunError> {
    let wait = |kind| signal(kind).map_err(|source| RunError::Io { what: "could not wait for signals", source });
    let (mut terminate, mut interrupt) = (wait(SignalKind::terminate())?, wait(SignalKind::interrupt())?);
    Ok(tokio::select! {
        biased;
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        result = &mut ended => result.ok().and_then(Result::err),
    })
}

async fn listen(
    listener: TcpListener,
    group: Group,
    leader: Arc<Leader>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RunError> {
    let stopped = async move {
        // An error is the end of the sender, and so of the process.
        let _ = stop.changed().await;
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(RaftService::server(group.clone()))
        .add_service(MasterServer::new(Service { group, leader }))
        .serve_with_incoming_shutdown(incoming, stopped)
        .await
        .map_err(RunError::Server)
}

/// A master is ready while it knows a leader.
async fn watch_leader(group: Group, ready: api_telemetry::Check, mut stop: watch::Receiver<bool>) {
    let mut changes = group.watch();
    loop {
        if group.knows_leader() {
            ready.met();
        } else {
            ready.failed("no master leads at the moment");
        }
        tokio::select! {
            biased;
            _ = stop.changed() => return,
            goes_on = changes.changed() => if !goes_on { return },
        }
    }
}
