//! `basalt status`: masters, nodes, devices, chunks and volumes on one page.

use crate::connect::Connection;
use crate::failure::Failure;
use crate::output::{Format, print, table};
use crate::size;
use api_types::master::{PoolRecord, VolumeRecord};
use api_types::{ClusterId, DeviceId};
use api_wire::master_client::MasterConnection;
use api_wire::proto::master as pb;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How often a live view is drawn.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Flags of `basalt status`.
#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connection: Connection,
    /// Draw it anew every second until interrupted.
    #[arg(long, short)]
    watch: bool,
}

/// The page, and its JSON.
#[derive(Serialize, Debug)]
pub(crate) struct Status {
    cluster: String,
    leader: Option<u64>,
    term: u64,
    members: Vec<Member>,
    pub(crate) nodes: Vec<Node>,
    chunks: Chunks,
    health: Health,
    pools: Vec<Pool>,
    volumes: Vec<crate::volume::Volume>,
}

#[derive(Serialize, Debug)]
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) voter: bool,
    pub(crate) leader: bool,
    /// Log entries it is behind the leader; `None`: not heard of.
    pub(crate) lag: Option<u64>,
}

#[derive(Serialize, Debug)]
pub(crate) struct Node {
    pub(crate) node: String,
    pub(crate) liveness: String,
    pub(crate) silent_ms: u64,
    pub(crate) maintenance: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) devices: Vec<Device>,
}

#[derive(Serialize, Debug)]
pub(crate) struct Device {
    pub(crate) device: String,
    pub(crate) endpoint: String,
    pub(crate) media: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) healthy: bool,
    pub(crate) liveness: String,
    pub(crate) chunks: u64,
    pub(crate) repairs: u64,
    pub(crate) deletes: u64,
    pub(crate) open: u64,
    pub(crate) evacuating: bool,
}

#[derive(Serialize, Debug, Default)]
struct Chunks {
    total: u64,
    open: u64,
    under_replicated: u64,
    in_repair: u64,
    lost: u64,
    moving: u64,
}

/// What decides whether the cluster is well enough to be changed.
#[derive(Serialize, Debug, Default)]
struct Health {
    masters: u64,
    masters_heard: u64,
    masters_needed: u64,
    nodes: u64,
    nodes_up: u64,
    nodes_in_maintenance: u64,
    devices: u64,
    devices_up: u64,
    volumes: u64,
    volumes_attached: u64,
}

#[derive(Serialize, Debug)]
struct Pool {
    name: String,
    copies: u8,
    capacity_bytes: u64,
    available_bytes: u64,
}

/// Runs `basalt status`.
pub(crate) async fn run(args: StatusArgs, format: Format) -> Result<(), Failure> {
    let masters = args.connection.connect()?;
    if !args.watch {
        let status = fetch(&masters).await?;
        return Ok(print(format, &status, page)?);
    }
    loop {
        let drawn = match (fetch(&masters).await, format) {
            (Ok(status), Format::Table) => page(&status),
            (Ok(status), Format::Json) => serde_json::to_string(&status).map_err(anyhow::Error::from)?,
            // A live view outlives a leaderless moment.
            (Err(failure), Format::Table) => failure.text(),
            (Err(failure), Format::Json) => serde_json::json!({ "error": failure.text() }).to_string(),
        };
        let mut out = std::io::stdout().lock();
        let clear = if out.is_terminal() && format == Format::Table { "\x1b[H\x1b[2J" } else { "" };
        if writeln!(out, "{clear}{drawn}").and_then(|()| out.flush()).is_err() {
            // Whoever read it has gone.
            return Ok(());
        }
        drop(out);
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Asks the masters for all of it.
pub(crate) async fn fetch(masters: &MasterConnection) -> Result<Status, Failure> {
    let context = |failure: Failure| failure.context("could not ask the masters for their status");
    let status = masters.status().await.map_err(|error| context(error.into()))?;
    let volumes = masters.volumes().await.map_err(|error| context(error.into()))?;
    let pools = masters.pools().await.map_err(|error| context(error.into()))?;
    Ok(read(status, &volumes, &pools))
}

/// The masters alone.
pub(crate) async fn fetch_members(masters: &MasterConnection) -> Result<Vec<Member>, Failure> {
    let status = masters.status().await.map_err(|error| Failure::from(error).context("could not ask who the masters are"))?;
    let last = status.log_last_index;
    Ok(status.members.into_iter().map(|progress| read_member(progress, last)).collect())
}

fn read(status: pb::Status, volumes: &[VolumeRecord], pools: &[PoolRecord]) -> Status {
    let chunks = status.chunks.map(|counts| Chunks {
        total: counts.total,
        open: counts.open,
        under_replicated: counts.under_replicated,
        in_repair: counts.in_repair,
        lost: counts.lost,
        moving: counts.moving,
    });
    let health = status.health.map(read_health).unwrap_or_default();
    let last = status.log_last_index;
    Status {
        cluster: read_cluster(&status.cluster),
        leader: status.leader,
        term: status.term,
        members: status.members.into_iter().map(|progress| read_member(progress, last)).collect(),
        nodes: status.nodes.into_iter().map(read_node).collect(),
        chunks: chunks.unwrap_or_default(),
        health,
        pools: pools
            .iter()
            .map(|pool| Pool {
                name: pool.name.clone(),
                copies: pool.replication.max_copy,
                capacity_bytes: pool.capacity_bytes,
                available_bytes: pool.available_bytes,
            })
            .collect(),
        volumes: volumes.iter().map(Into::into).collect(),
    }
}

fn read_health(health: pb::Health) -> Health {
    Health {
        masters: health.masters,
        masters_heard: health.masters_heard,
        masters_needed: health.masters_needed,
        nodes: health.nodes,
        nodes_up: health.nodes_up,
        nodes_in_maintenance: health.nodes_in_maintenance,
        devices: health.devices,
        devices_up: health.devices_up,
        volumes: health.volumes,
        volumes_attached: health.volumes_attached,
    }
}

fn read_cluster(bytes: &[u8]) -> String {
    <[u8; 16]>::try_from(bytes).map_or_else(|_| "unknown".to_owned(), |bytes| ClusterId(u128::from_be_bytes(bytes)).to_string())
}

fn read_member(progress: pb::MemberProgress, last: u64) -> Member {
    let member = progress.member.unwrap_or_default();
    let lag = if progress.leader { Some(0) } else { progress.matched_index.map(|matched| last.saturating_sub(matched)) };
    Member { id: member.id, address: member.address, voter: member.voter, leader: progress.leader, lag }
}

fn read_node(node: pb::NodeStatus) -> Node {
    Node {
        node: node.node,
        liveness: node.liveness,
        silent_ms: node.silent_ms,
        maintenance: node.maintenance,
        labels: node.labels.into_iter().collect(),
        devices: node.devices.into_iter().map(read_device).collect(),
    }
}

fn read_device(device: pb::DeviceStatus) -> Device {
    let address = device.address.unwrap_or_default();
    Device {
        device: DeviceId(address.device).to_string(),
        endpoint: address.endpoint,
        media: address.media,
        capacity_bytes: device.capacity_bytes,
        free_bytes: device.free_bytes,
        healthy: device.healthy,
        liveness: device.liveness,
        chunks: device.chunks,
        repairs: device.repairs,
        deletes: device.deletes,
        open: device.open,
        evacuating: device.evacuating,
    }
}

fn page(status: &Status) -> String {
    let chunks = &status.chunks;
    let counts = format!(
        "chunks: {} in all, {} open, {} under-replicated, {} in repair, {} moving, {} lost",
        chunks.total, chunks.open, chunks.under_replicated, chunks.in_repair, chunks.moving, chunks.lost
    );
    let health = &status.health;
    let up = format!(
        "up: {} of {} masters ({} needed), {} of {} nodes ({} in maintenance), {} of {} devices; {} of {} volumes attached",
        health.masters_heard,
        health.masters,
        health.masters_needed,
        health.nodes_up,
        health.nodes,
        health.nodes_in_maintenance,
        health.devices_up,
        health.devices,
        health.volumes_attached,
        health.volumes
    );
    let leader = status.leader.map_or_else(|| "nobody".to_owned(), |leader| format!("master {leader}"));
    let pools = table(
        ["POOL", "COPIES", "CAPACITY", "AVAILABLE"],
        status.pools.iter().map(|pool| {
            [pool.name.clone(), pool.copies.to_string(), size::show(pool.capacity_bytes), size::show(pool.available_bytes)]
        }),
    );
    [
        format!("cluster {}, led by {leader} in term {}", status.cluster, status.term),
        members_table(&status.members),
        nodes_table(&status.nodes),
        devices_table(&status.nodes),
        pools,
        crate::volume::volumes_table(&status.volumes),
        counts,
        up,
    ]
    .join("\n\n")
}

pub(crate) fn members_table(members: &[Member]) -> String {
    let lag = |member: &Member| member.lag.map_or_else(|| "unknown".to_owned(), |lag| lag.to_string());
    let role = |member: &Member| match (member.leader, member.voter) {
        (true, _) => "leader",
        (false, true) => "follower",
        (false, false) => "learner",
    };
    table(
        ["MASTER", "ADDRESS", "ROLE", "BEHIND"],
        members.iter().map(|member| [member.id.to_string(), member.address.clone(), role(member).to_owned(), lag(member)]),
    )
}

pub(crate) fn nodes_table(nodes: &[Node]) -> String {
    table(
        ["NODE", "STATE", "DEVICES", "CAPACITY", "FREE", "LAST HEARD", "LABELS"],
        nodes.iter().map(|node| {
            let labels: Vec<_> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            [
                node.node.clone(),
                if node.maintenance { format!("{}, maintenance", node.liveness) } else { node.liveness.clone() },
                node.devices.len().to_string(),
                size::show(node.devices.iter().map(|device| device.capacity_bytes).sum()),
                size::show(node.devices.iter().map(|device| device.free_bytes).sum()),
                format!("{:.1} s ago", node.silent_ms as f64 / 1000.0),
                labels.join(","),
            ]
        }),
    )
}

fn device_state(device: &Device) -> String {
    let state = if device.healthy { device.liveness.as_str() } else { "failed" };
    if device.evacuating { format!("{state}, evacuating") } else { state.to_owned() }
}

pub(crate) fn devices_table(nodes: &[Node]) -> String {
    let rows = nodes.iter().flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    table(
        ["DEVICE", "NODE", "MEDIA", "STATE", "CAPACITY", "FREE", "CHUNKS", "TO REPAIR", "TO DELETE"],
        rows.map(|(node, device)| {
            [
                device.device.clone(),
                node.node.clone(),
                device.media.clone(),
                device_state(device),
                size::show(device.capacity_bytes),
                size::show(device.free_bytes),
                device.chunks.to_string(),
                device.repairs.to_string(),
                device.deletes.to_string(),
            ]
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Status {
        let member = |id, leader, matched_index| pb::MemberProgress {
            member: Some(pb::Member { id, address: format!("m{id}:1"), voter: true }),
            leader,
            matched_index,
        };
        let device = pb::DeviceStatus {
            address: Some(pb::DeviceAddress { device: 10, node: "a".into(), endpoint: "a:1".into(), media: "nvme".into() }),
            capacity_bytes: 1 << 40,
            free_bytes: 1 << 39,
            healthy: true,
            liveness: "up".into(),
            ..Default::default()
        };
        let node = pb::NodeStatus { node: "a".into(), liveness: "up".into(), devices: vec![device], ..Default::default() };
        let status = pb::Status {
            cluster: 7u128.to_be_bytes().to_vec(),
            leader: Some(1),
            members: vec![member(1, true, None), member(2, false, Some(90)), member(3, false, None)],
            nodes: vec![node],
            chunks: Some(pb::ChunkCounts { total: 4, under_replicated: 1, ..Default::default() }),
            log_last_index: 100,
            health: Some(pb::Health { masters: 3, masters_heard: 2, masters_needed: 2, ..Default::default() }),
            ..Default::default()
        };
        read(status, &[], &[])
    }

    #[test]
    fn lag_is_known_of_those_the_leader_hears() {
        let lags: Vec<_> = sample().members.iter().map(|member| member.lag).collect();
        assert_eq!(lags, [Some(0), Some(10), None]);
    }

    #[test]
    fn the_json_has_the_names_that_scripts_rely_on() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["leader"], 1);
        assert_eq!(json["nodes"][0]["node"], "a");
        assert_eq!(json["nodes"][0]["liveness"], "up");
        assert_eq!(json["chunks"]["under_replicated"], 1);
        assert_eq!(json["health"]["masters_heard"], 2);
        assert_eq!(json["cluster"], ClusterId(7).to_string());
    }

    #[test]
    fn the_page_names_everything() {
        let page = page(&sample());
        for part in ["led by master 1", "m2:1", "unknown", "d-a", "512 GiB", "1 under-replicated", "2 of 3 masters (2 needed)"] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }
}
