//! One running master: its member of the group, its door, and its work as a leader. Lives on the runtime it was started
//! on; the tests start several in one process.

use crate::leader::{self, Leader};
use crate::run::RunError;
use crate::service::Service;
use api_telemetry::{CallMeter, Operation, table};
use api_types::ClusterId;
use api_wire::proto::master::master_server::MasterServer;
use master_raft::{Group, GroupConfig, RaftService};
use master_state::{Body, LivenessConfig, NewPool};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

/// How often an idle peer is pinged, and how long its answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long each part of a clean end may take. Longer calls are cut off; their clients ask another master.
const END_LIMIT: Duration = Duration::from_secs(3);

/// What a master needs to know to start.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Of its member of the group.
    pub group: GroupConfig,
    /// The members of a new group. Only looked at while the data directory is empty. `None`: wait to be added.
    pub initial: Option<BTreeMap<u64, String>>,
    /// After how much silence a node is given up.
    pub liveness: LivenessConfig,
    /// Pools that a new cluster starts with.
    pub pools: Vec<NewPool>,
}

impl MasterConfig {
    /// The usual configuration.
    #[must_use]
    pub fn new(id: u64, data_dir: &Path) -> Self {
        MasterConfig {
            group: GroupConfig::new(id, data_dir),
            initial: None,
            liveness: LivenessConfig::default(),
            pools: Vec::new(),
        }
    }
}

/// See the module. Dropping it without [`Master::stop`] leaves its tasks to the end of the runtime.
pub struct Master {
    group: Group,
    stop: watch::Sender<bool>,
    leading: JoinHandle<()>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Master {
    /// Opens the data directory and serves on a listener. Answers once both are there; a leader may take longer.
    pub async fn start(config: MasterConfig, listener: TcpListener) -> Result<Master, RunError> {
        let group = Group::open(config.group, |event| tracing::debug!(?event, "applied")).await?;
        let leader = Arc::new(Leader::new(config.liveness));
        let (stop, stopped) = watch::channel(false);
        let first = Body::Bootstrap { cluster: ClusterId(rand::random::<u128>() | 1), pools: config.pools };
        let leading = tokio::spawn(leader::run(group.clone(), Arc::clone(&leader), first, stopped.clone()));
        let serving = tokio::spawn(listen(listener, group.clone(), leader, stopped));
        if let Some(members) = config.initial.filter(|_| group.was_pristine()) {
            // The service must answer already: the others may ask at once.
            group.initialize(&members).await?;
        }
        Ok(Master { group, stop, leading, serving })
    }

    /// Its member of the group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns when the master can't go on, with the reason. May be dropped and called again.
    pub async fn ended(&mut self) -> RunError {
        let mut changes = self.group.watch();
        loop {
            tokio::select! {
                biased;
                result = &mut self.serving => {
                    let why = || RunError::Broken("the server ended".into());
                    return result.ok().and_then(Result::err).map_or_else(why, RunError::Server);
                }
                goes_on = changes.changed() => {
                    if let Some(what) = self.group.broken() {
                        return RunError::Broken(what);
                    }
                    if !goes_on {
                        return RunError::Broken("the member of the group ended".into());
                    }
                }
            }
        }
    }

    /// Gives the lead away, then ends. What was answered is on a majority of disks already.
    pub async fn stop(self) {
        // While this member still answers.
        self.group.hand_over(END_LIMIT).await;
        self.stop.send_replace(true);
        self.group.shutdown().await;
        let ended = async { (self.leading.await.is_ok(), self.serving.await.is_ok()) };
        if tokio::time::timeout(END_LIMIT, ended).await.is_err() {
            tracing::warn!("some calls did not end in time");
        }
    }
}

async fn listen(
    listener: TcpListener,
    group: Group,
    leader: Arc<Leader>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let stopped = async move {
        // An error is the end of the sender, and so of the master.
        let _ = stop.changed().await;
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let calls = CallMeter::new(&table::MASTER_CALLS_TOTAL, Operation::MasterServe);
    tonic::transport::Server::builder()
        .layer(calls)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(RaftService::server(group.clone()))
        .add_service(MasterServer::new(Service { group, leader }))
        .serve_with_incoming_shutdown(incoming, stopped)
        .await
}
