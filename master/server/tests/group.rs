//! Several real masters in one process, over loopback, each with a directory and a runtime of its own, so that one can
//! be killed without a goodbye. Nothing here waits for a time: every wait is for a condition, bounded by a deadline far
//! beyond what a slow machine needs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use api_types::NodeName;
use api_types::master::{DeviceAddress, DeviceReport, Error, Grant, NodeReport, SealChunk};
use api_types::unit::Alignment;
use api_types::{DeviceId, LifetimeClass};
use api_wire::master_client::{ConnectionOptions, CreateVolume, MasterConnection};
use api_wire::proto::master::Status;
use master_raft::OpenError;
use master_server::{Master, MasterConfig, RunError};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const DEADLINE: Duration = Duration::from_secs(60);

struct Process {
    directory: TempDir,
    address: SocketAddr,
    running: Option<(Runtime, Master)>,
}

struct Cluster {
    processes: BTreeMap<u64, Process>,
    initial: BTreeMap<u64, String>,
    snapshot_after: u64,
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, found).await {
        Ok(found) => found,
        Err(_) => panic!("never happened: {what}"),
    }
}

impl Cluster {
    /// A new group of `count` masters.
    async fn start(count: u64, snapshot_after: u64) -> Cluster {
        let mut cluster = Cluster { processes: BTreeMap::new(), initial: BTreeMap::new(), snapshot_after };
        for id in 1..=count {
            cluster.prepare(id);
            cluster.initial.insert(id, cluster.processes[&id].address.to_string());
        }
        for id in 1..=count {
            cluster.run(id).await;
        }
        cluster
    }

    /// A place for a master: a directory and a port that stay its own.
    fn prepare(&mut self, id: u64) {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        self.processes.insert(id, Process { directory: tempfile::tempdir().unwrap(), address, running: None });
    }

    async fn try_run(&mut self, id: u64) -> Result<(), RunError> {
        let initial = self.initial.contains_key(&id).then(|| self.initial.clone());
        let process = self.processes.get_mut(&id).unwrap();
        let mut config = MasterConfig::new(id, process.directory.path());
        config.initial = initial;
        config.group.snapshot_after = self.snapshot_after;
        config.group.log_kept = (self.snapshot_after / 10).min(config.group.log_kept);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = process.address;
        let started = runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })?;
            Master::start(config, listener).await
        });
        match started.await.unwrap() {
            Ok(master) => process.running = Some((runtime, master)),
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Starts a master. One that was killed a moment ago may still hold its directory or its port.
    async fn run(&mut self, id: u64) {
        until("a master starts", async || match self.try_run(id).await {
            Ok(()) => Some(()),
            Err(RunError::Open(OpenError::Locked(_)) | RunError::Listen { .. }) => None,
            Err(error) => panic!("master {id}: {error}"),
        })
        .await;
    }

    /// As kill -9: all its tasks end where they are.
    fn kill(&mut self, id: u64) {
        let (runtime, master) = self.processes.get_mut(&id).unwrap().running.take().unwrap();
        runtime.shutdown_background();
        drop(master);
    }

    fn client(&self) -> MasterConnection {
        let endpoints = self.processes.values().map(|process| process.address.to_string()).collect();
        let options = ConnectionOptions { call_limit: DEADLINE, ..ConnectionOptions::default() };
        MasterConnection::connect(endpoints, options).unwrap()
    }

    fn leader(&self) -> Option<u64> {
        let leads = |process: &Process| process.running.as_ref().is_some_and(|(_, master)| master.group().is_leader());
        self.processes.iter().find(|(_, process)| leads(process)).map(|(id, _)| *id)
    }

    fn master(&self, id: u64) -> &Master {
        &self.processes[&id].running.as_ref().unwrap().1
    }

    async fn caught_up(&self, id: u64, volumes: u64) {
        let group = self.master(id).group();
        until("a member has everything", async || (group.read(|state| state.volume_count()) == volumes).then_some(())).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            if let Some((runtime, master)) = process.running.take() {
                runtime.shutdown_background();
                drop(master);
            }
        }
    }
}

fn volume(name: &str) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        size_bytes: 1 << 30,
        pool: String::new(),
        qos: Default::default(),
        parameters: Default::default(),
    }
}

async fn node(client: &MasterConnection, n: u64) -> NodeReport {
    let node = NodeName(format!("node-{n}"));
    let address =
        DeviceAddress { device: DeviceId(n), node: node.clone(), endpoint: format!("127.0.0.1:{n}"), media: "memory".into() };
    let device =
        DeviceReport { address, capacity_bytes: 8 << 30, free_bytes: 8 << 30, alignment: Alignment::B4096, healthy: true };
    NodeReport {
        node,
        cluster: client.cluster().await.unwrap(),
        labels: BTreeMap::new(),
        devices: vec![device],
        volumes: Vec::new(),
        done: Vec::new(),
    }
}

fn voters(status: &Status) -> Vec<u64> {
    let mut ids: Vec<u64> =
        status.members.iter().filter_map(|progress| progress.member.as_ref()).filter(|m| m.voter).map(|m| m.id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_killed_leader_is_replaced_and_comes_back() {
    let mut cluster = Cluster::start(3, 5000).await;
    let client = cluster.client();
    let name = client.cluster().await.unwrap();
    client.create_volume(volume("a")).await.unwrap();

    let old = until("somebody leads", async || cluster.leader()).await;
    cluster.kill(old);
    let b = client.create_volume(volume("b")).await.unwrap();
    assert_eq!(client.create_volume(volume("b")).await.unwrap(), b, "the same again is the same volume");
    assert_eq!(client.cluster().await.unwrap(), name, "the cluster keeps its name");

    cluster.run(old).await;
    cluster.caught_up(old, 2).await;
    assert_eq!(client.volumes().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn all_killed_at_once_come_back_with_everything() {
    let mut cluster = Cluster::start(3, 5000).await;
    let client = cluster.client();
    for n in 0..5 {
        client.create_volume(volume(&format!("v{n}"))).await.unwrap();
    }
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.run(id).await;
    }
    assert_eq!(client.volumes().await.unwrap().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn members_come_by_snapshot_and_go() {
    let mut cluster = Cluster::start(3, 20).await;
    let client = cluster.client();
    for n in 0..50 {
        client.create_volume(volume(&format!("v{n}"))).await.unwrap();
    }
    let leader = until("somebody leads", async || cluster.leader()).await;
    until("the log was cut", async || (cluster.master(leader).group().status().first_index > 10).then_some(())).await;

    // 3 → 4: the new one can't have the first entries any more, it gets a snapshot.
    cluster.prepare(4);
    cluster.run(4).await;
    let address = cluster.processes[&4].address.to_string();
    client.add_member(4, &address).await.unwrap();
    assert_eq!(voters(&client.status().await.unwrap()), [1, 2, 3, 4]);
    cluster.caught_up(4, 50).await;
    assert!(cluster.master(4).group().status().snapshot_index > 0);

    // 4 → 3: the leader itself goes, and gives the lead away before.
    let leader = until("somebody leads", async || cluster.leader()).await;
    client.remove_member(leader).await.unwrap();
    let left = voters(&client.status().await.unwrap());
    assert_eq!(left.len(), 3);
    assert!(!left.contains(&leader));
    cluster.kill(leader);
    client.create_volume(volume("after")).await.unwrap();
    assert_eq!(client.volumes().await.unwrap().len(), 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_dead_member_is_replaced() {
    let mut cluster = Cluster::start(3, 5000).await;
    let client = cluster.client();
    client.create_volume(volume("a")).await.unwrap();
    let leader = until("somebody leads", async || cluster.leader()).await;
    let dead = (1..=3).find(|id| *id != leader).unwrap();
    let alive = (1..=3).find(|id| *id != leader && *id != dead).unwrap();
    cluster.kill(dead);
    until("the leader misses it", async || {
        let members = cluster.master(leader).group().members();
        members.iter().any(|member| member.id == dead && !member.heard).then_some(())
    })
    .await;
    let refused = client.remove_member(alive).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "one of two would be no majority: {refused:?}");

    cluster.prepare(4);
    cluster.run(4).await;
    let address = cluster.processes[&4].address.to_string();
    client.add_member(4, &address).await.unwrap();
    client.remove_member(dead).await.unwrap();
    let mut expected = vec![leader, alive, 4];
    expected.sort_unstable();
    assert_eq!(voters(&client.status().await.unwrap()), expected);
    cluster.caught_up(4, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_member_of_another_cluster_is_refused() {
    let ours = Cluster::start(1, 5000).await;
    let theirs = Cluster::start(1, 5000).await;
    let (client, other) = (ours.client(), theirs.client());
    assert_ne!(client.cluster().await.unwrap(), other.cluster().await.unwrap());
    let address = theirs.processes[&1].address.to_string();
    assert!(matches!(client.add_member(2, &address).await, Err(Error::Conflict(_))), "another number listens there");

    let mut stranger = Cluster { processes: BTreeMap::new(), initial: BTreeMap::new(), snapshot_after: 5000 };
    stranger.prepare(2);
    stranger.initial.insert(2, stranger.processes[&2].address.to_string());
    stranger.run(2).await;
    stranger.client().cluster().await.unwrap();
    let refused = client.add_member(2, &stranger.processes[&2].address.to_string()).await;
    assert!(matches!(&refused, Err(Error::Conflict(text)) if text.contains("another cluster")), "{refused:?}");
    assert_eq!(voters(&client.status().await.unwrap()), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_volume_lives_through_the_calls_of_its_writer() {
    let cluster = Cluster::start(3, 5000).await;
    let client = cluster.client();
    for n in 1..=4 {
        let report = node(&client, n).await;
        client.register_node(report.clone()).await.unwrap();
        client.heartbeat(report).await.unwrap();
    }
    let made = client.create_volume(volume("a")).await.unwrap();
    let lease = client.open_volume(made.volume, NodeName("node-1".into())).await.unwrap();
    let epoch = lease.volume.epoch;
    let grant = Grant {
        stream: made.streams.hot,
        epoch,
        count: 2,
        capacity: lease.chunk_bytes,
        class: LifetimeClass::Short,
        avoid: Vec::new(),
    };
    let chunks = client.grant(grant.clone()).await.unwrap();
    assert_eq!(chunks.iter().map(|chunk| chunk.copies.len()).collect::<Vec<_>>(), [3, 3]);
    let whole = chunks[0].copies.iter().map(|copy| copy.device).collect();
    let seal = SealChunk { chunk: chunks[0].shape.chunk, epoch, length: 8192, whole };
    assert_eq!(client.seal(seal.clone()).await, Ok(8192));
    assert_eq!(client.seal(SealChunk { length: 4096, ..seal }).await, Ok(8192), "the first length stays");
    assert_eq!(client.stream(made.streams.hot).await.unwrap().chunks.len(), 2);

    let second = client.open_volume(made.volume, NodeName("node-2".into())).await.unwrap();
    let fenced = client.grant(grant).await;
    assert_eq!(fenced, Err(Error::Fenced { epoch: second.volume.epoch }));
    assert!(matches!(client.delete_volume(made.volume, false).await, Err(Error::Conflict(_))));
    client.delete_volume(made.volume, true).await.unwrap();
    let orders = client.heartbeat(node(&client, 1).await).await.unwrap();
    let orders_of_all: usize = {
        let mut count = orders.orders.len();
        for n in 2..=4 {
            count += client.heartbeat(node(&client, n).await).await.unwrap().orders.len();
        }
        count
    };
    assert_eq!(orders_of_all, 6, "every copy of both chunks is to be deleted");
}
