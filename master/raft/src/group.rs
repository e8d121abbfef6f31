//! One member of the group, as the server uses it.

use crate::error::{GroupError, OpenError};
use crate::identity::{self, Identity};
use crate::log_store::LogStore;
use crate::machine::{Machine, Observer, Replica};
use crate::members::Member;
use crate::network::Peers;
use crate::snapshot::SnapshotStore;
use crate::types::{Proposal, Raft, TypeConfig};
use api_types::ClusterId;
use master_state::{Command, Event, Outcome, State};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{
    ChangeMembershipError, ClientWriteError, ForwardToLeader, InitializeError, LinearizableReadError, RaftError,
};
use openraft::metrics::RaftServerMetrics;
use openraft::{BasicNode, Config, ReadPolicy, ServerState, SnapshotPolicy};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The pace of heartbeats and elections. A leader that died is replaced after `election_max` and a random time between
/// `election_min` and `election_max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// The shortest time to an election.
    pub election_min: Duration,
    /// The longest time to an election, and how long a leader is believed in.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(900),
        }
    }
}

/// What a member needs to know to start.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Its id, above zero.
    pub id: u64,
    /// Its directory.
    pub data_dir: PathBuf,
    /// Its pace.
    pub timing: Timing,
    /// After how many commands a snapshot is made.
    pub snapshot_after: u64,
    /// How many commands before the snapshot are kept for members that are a little behind.
    pub log_kept: u64,
}

impl GroupConfig {
    /// The usual configuration.
    #[must_use]
    pub fn new(id: u64, data_dir: &Path) -> Self {
        GroupConfig { id, data_dir: data_dir.into(), timing: Timing::default(), snapshot_after: 5000, log_kept: 1000 }
    }

    fn raft(&self) -> Result<Config, OpenError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            cluster_name: "basalt-masters".into(),
            heartbeat_interval: ms(self.timing.heartbeat),
            election_timeout_min: ms(self.timing.election_min),
            election_timeout_max: ms(self.timing.election_max),
            install_snapshot_timeout: 120_000,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_after),
            max_in_snapshot_log_to_keep: self.log_kept,
            purge_batch_size: self.log_kept.clamp(1, 256),
            enable_pre_vote: Some(true),
            ..Config::default()
        };
        config.validate().map_err(|error| OpenError::Config(error.to_string()))
    }
}

/// How sure a read is to see everything that was answered before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consistency {
    /// A majority confirms the leader for this very read.
    Quorum,
    /// The leader trusts the heartbeats of a moment ago: as sure as clocks run alike.
    Lease,
}

/// What a member knows of its group.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Who answers.
    pub id: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// The present term.
    pub term: u64,
    /// Everybody.
    pub members: Vec<Member>,
    /// Last entry of the log here.
    pub last_index: u64,
    /// First entry of the log here.
    pub first_index: u64,
    /// Bytes of the log here.
    pub log_bytes: u64,
    /// Last entry applied here.
    pub applied_index: u64,
    /// Last entry in the snapshot here.
    pub snapshot_index: u64,
}

/// One member. Cheap to clone; clones are the same member.
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) raft: Raft,
    pub(crate) id: u64,
    pub(crate) identity: Arc<Mutex<Identity>>,
    replica: Arc<RwLock<Replica>>,
    log: LogStore,
    pristine: bool,
    pub(crate) timing: Timing,
    /// Ends the thread that openraft runs on when it goes.
    _stop: oneshot::Sender<()>,
}

impl Group {
    /// Opens a member's directory and starts it. `observer` hears of everything that happens, on openraft's thread: it
    /// must be quick.
    pub async fn open(config: GroupConfig, observer: impl Fn(&Event) + Send + Sync + 'static) -> Result<Group, OpenError> {
        if config.id == 0 {
            return Err(OpenError::Config("id: must be above zero".into()));
        }
        let raft_config = config.raft()?;
        let directory = config.data_dir.clone();
        let (lock, known) = identity::claim(&directory, config.id)?;
        let log = LogStore::open(&directory, lock)?;
        let pristine = log.pristine();
        let identity = Arc::new(Mutex::new(known));
        let replica = Arc::new(RwLock::new(Replica::default()));
        let observer = remember_cluster(&directory, identity.clone(), Arc::new(observer));
        let machine = Machine::open(SnapshotStore::new(&directory), replica.clone(), observer)?;
        let peers = Peers::new(identity.clone());
        let (id, store) = (config.id, log.clone());
        let start = async move { Raft::new(id, Arc::new(raft_config), peers, store, machine).await };
        let (raft, stop) = on_own_thread(start).await.map_err(OpenError::Config)?;
        let raft = raft.map_err(|error| OpenError::damaged(&directory, error.to_string()))?;
        let timing = config.timing;
        let inner = Inner { raft, id, identity, replica, log, pristine, timing, _stop: stop };
        Ok(Group { inner: Arc::new(inner) })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// This member's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The cluster this member belongs to, as far as it has heard.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.identity.lock().cluster
    }

    /// Whether the directory was empty when the member started.
    #[must_use]
    pub fn was_pristine(&self) -> bool {
        self.inner.pristine
    }

    /// The pace it was started with.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.inner.timing
    }

    /// Makes a new group of these members, this one among them. Once a group exists nothing happens.
    pub async fn initialize(&self, members: &BTreeMap<u64, String>) -> Result<(), GroupError> {
        let nodes: BTreeMap<u64, BasicNode> = members.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        match self.inner.raft.initialize(nodes).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => {
                Err(GroupError::Refused(format!("peers: member {} is not among them", self.inner.id)))
            }
            Err(RaftError::Fatal(error)) => Err(GroupError::Fatal(error.to_string())),
        }
    }

    /// Puts a command in the log and answers once it is applied.
    pub async fn propose(&self, command: Command) -> Result<Outcome, GroupError> {
        let answer = self.inner.raft.client_write(Proposal(command)).await;
        answer.map(|answer| answer.data).map_err(write_error)
    }

    /// Waits until [`Self::read`] sees everything that was answered before this call.
    pub async fn read_barrier(&self, consistency: Consistency) -> Result<(), GroupError> {
        let policy = match consistency {
            Consistency::Quorum => ReadPolicy::ReadIndex,
            Consistency::Lease => ReadPolicy::LeaseRead,
        };
        match self.inner.raft.ensure_linearizable(policy).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => Err(not_leader(&forward)),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(error))) => {
                Err(GroupError::Unavailable(error.to_string()))
            }
            Err(RaftError::Fatal(error)) => Err(GroupError::Fatal(error.to_string())),
        }
    }

    /// Looks at the state as it is here. Hold it shortly: nothing is applied meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.replica.read().state)
    }

    /// Whether this member leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.inner.raft.server_metrics().borrow_watched().state == ServerState::Leader
    }

    /// The leader's address, as far as this member knows.
    #[must_use]
    pub fn leader_address(&self) -> Option<String> {
        let metrics = self.inner.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.current_leader.and_then(|id| metrics.membership_config.get_node(&id).map(|node| node.addr.clone()))
    }

    /// Whether a leader is known.
    #[must_use]
    pub fn knows_leader(&self) -> bool {
        self.inner.raft.server_metrics().borrow_watched().current_leader.is_some()
    }

    /// Why this member has stopped for good; `None` while it works.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        self.inner.raft.metrics().borrow_watched().running_state.as_ref().err().map(ToString::to_string)
    }

    /// Returns once the leader, the term or the members changed since the last call on this watch.
    #[must_use]
    pub fn watch(&self) -> GroupWatch {
        GroupWatch { receiver: self.inner.raft.server_metrics() }
    }

    /// What this member knows of the group.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        let size = self.inner.log.size();
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        GroupStatus {
            id: self.inner.id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            members: self.members(),
            last_index: size.last_index,
            first_index: size.first_index,
            log_bytes: size.bytes,
            applied_index: metrics.last_applied.map_or(0, |id| id.index),
            snapshot_index: metrics.snapshot.map_or(0, |id| id.index),
        }
    }

    /// Gives the lead to the member that is furthest, when this one leads and there is another. Waits for it, for
    /// `limit` at most.
    pub async fn hand_over(&self, limit: Duration) {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return;
        }
        let voters: Vec<u64> = metrics.membership_config.membership().voter_ids().collect();
        let heir = metrics
            .replication
            .iter()
            .flatten()
            .filter(|(id, _)| **id != self.inner.id && voters.contains(id))
            .max_by_key(|(_, matched)| matched.map(|id| id.index))
            .map(|(id, _)| *id);
        let Some(heir) = heir else { return };
        if self.inner.raft.trigger().transfer_leader(heir).await.is_err() {
            return;
        }
        let mut watch = self.watch();
        let gone = async {
            while self.inner.raft.server_metrics().borrow_watched().current_leader.is_none_or(|leader| leader == self.inner.id) {
                if !watch.changed().await {
                    return;
                }
            }
        };
        if tokio::time::timeout(limit, gone).await.is_err() {
            tracing::warn!(heir, "the lead was not taken over in time");
        }
    }

    /// Makes a snapshot now.
    pub async fn snapshot(&self) -> Result<(), GroupError> {
        self.inner.raft.trigger().snapshot().await.map_err(|error| GroupError::Fatal(error.to_string()))
    }

    /// Stops taking part. What was answered is on disk already.
    pub async fn shutdown(&self) {
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "openraft did not stop cleanly");
        }
    }
}

/// See [`Group::watch`].
pub struct GroupWatch {
    receiver: openraft::type_config::alias::WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
}

impl GroupWatch {
    /// `false`: the member has stopped.
    pub async fn changed(&mut self) -> bool {
        self.receiver.changed().await.is_ok()
    }
}

pub(crate) fn not_leader(forward: &ForwardToLeader<TypeConfig>) -> GroupError {
    GroupError::NotLeader { leader: forward.leader_node.as_ref().map(|node| node.addr.clone()) }
}

pub(crate) fn write_error(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> GroupError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => not_leader(&forward),
        // It was in the log of a leader that lost its place; the retry with the same request id settles it.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(forward)) => not_leader(&forward),
        // The change before this one isn't through yet, or this leader is too new: try again.
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            error @ (ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_)),
        )) => GroupError::Unavailable(error.to_string()),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => GroupError::Refused(error.to_string()),
        RaftError::APIError(error) => GroupError::Refused(error.to_string()),
        RaftError::Fatal(error) => GroupError::Fatal(error.to_string()),
    }
}

/// Writes the cluster's name into the directory when it is heard of for the first time.
fn remember_cluster(directory: &Path, identity: Arc<Mutex<Identity>>, next: Observer) -> Observer {
    let directory = directory.to_owned();
    Arc::new(move |event| {
        if let Event::Bootstrapped(cluster) = event {
            let mut identity = identity.lock();
            identity.cluster = Some(*cluster);
            if let Err(error) = identity::save(&directory, *identity) {
                tracing::error!(%error, "the cluster's name could not be written");
            }
        }
        next(event);
    })
}

/// Runs a future, and everything it spawns, on a runtime with a thread of its own. The runtime ends, with all its
/// tasks, when the sender goes.
async fn on_own_thread<T: Send + 'static>(
    start: impl Future<Output = T> + Send + 'static,
) -> Result<(T, oneshot::Sender<()>), String> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, receiver) = oneshot::channel();
    let body = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = sender.send(Err(error.to_string()));
                return;
            }
        };
        runtime.block_on(async {
            let _ = sender.send(Ok(start.await));
            let _ = stopped.await;
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
    };
    std::thread::Builder::new().name("raft".into()).spawn(body).map_err(|error| error.to_string())?;
    let started = receiver.await.map_err(|_| "the thread of openraft has stopped".to_owned())??;
    Ok((started, stop))
}
