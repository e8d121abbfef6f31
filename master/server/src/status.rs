//! The state of group and cluster for people.

use crate::leader::Leader;
use api_types::master::Error;
use api_wire::convert::{not_leader, to_status};
use api_wire::proto::master as pb;
use master_raft::{Group, GroupError, Member};
use master_state::{DeviceView, NodeView, Presence, State};
use tonic::Status;

pub(crate) fn member(member: Member) -> pb::Member {
    pb::Member { id: member.id, address: member.address, voter: member.voter }
}

/// The gRPC code of what the group refused or could not do.
pub(crate) fn group_failed(error: &GroupError) -> Status {
    match error {
        GroupError::NotLeader { leader } => not_leader(leader.as_deref()),
        GroupError::Unavailable(_) | GroupError::Fatal(_) => to_status(&Error::Unavailable(error.to_string())),
        GroupError::Refused(text) => to_status(&Error::Conflict(text.clone())),
    }
}

pub(crate) fn status(group: &Group, leader: &Leader) -> pb::Status {
    let of_group = group.status();
    let leads = group.is_leader();
    let voters = of_group.members.iter().filter(|member| member.voter);
    let masters = voters.clone().count() as u64;
    let masters_heard = if leads { voters.filter(|member| member.heard).count() as u64 } else { 0 };
    let members = of_group
        .members
        .into_iter()
        .map(|view| pb::MemberProgress { leader: view.leader, matched_index: view.matched_index, member: Some(member(view)) })
        .collect();
    group.read(|state| pb::Status {
        cluster: state.cluster().map(|cluster| cluster.0.to_be_bytes().to_vec()).unwrap_or_default(),
        member: of_group.id,
        leader: of_group.leader,
        term: of_group.term,
        members,
        nodes: state.nodes().into_iter().map(|view| node(view, leader, leads)).collect(),
        chunks: Some(counts(state.chunk_counts())),
        volumes: state.volume_count(),
        log_bytes: of_group.log_bytes,
        log_first_index: of_group.first_index,
        log_last_index: of_group.last_index,
        applied_index: of_group.applied_index,
        snapshot_index: of_group.snapshot_index,
        health: Some(pb::Health { masters, masters_heard, masters_needed: masters / 2 + 1, ..health(state) }),
    })
}

/// All of it but the masters.
fn health(state: &State) -> pb::Health {
    let (chunks, nodes, volumes) = (state.chunk_counts(), state.nodes(), state.volumes());
    let is_up = |device: &&DeviceView| device.state.healthy && device.state.presence == Presence::Up;
    let devices = || nodes.iter().flat_map(|node| &node.devices);
    pb::Health {
        under_replicated: chunks.under_replicated,
        lost: chunks.lost,
        moving: chunks.moving,
        nodes: nodes.len() as u64,
        nodes_up: nodes.iter().filter(|node| node.presence == Presence::Up).count() as u64,
        nodes_in_maintenance: nodes.iter().filter(|node| node.maintenance).count() as u64,
        devices: devices().count() as u64,
        devices_up: devices().filter(is_up).count() as u64,
        volumes: volumes.len() as u64,
        volumes_attached: volumes.iter().filter(|volume| volume.attached.is_some()).count() as u64,
        ..pb::Health::default()
    }
}

fn counts(counts: master_state::ChunkCounts) -> pb::ChunkCounts {
    pb::ChunkCounts {
        total: counts.total,
        open: counts.open,
        under_replicated: counts.under_replicated,
        in_repair: counts.in_repair,
        lost: counts.lost,
        moving: counts.moving,
    }
}

fn node(view: NodeView, leader: &Leader, leads: bool) -> pb::NodeStatus {
    pb::NodeStatus {
        silent_ms: if leads { leader.silence_ms(&view.node) } else { 0 },
        node: view.node.0,
        labels: view.labels.into_iter().collect(),
        liveness: view.presence.as_str().to_owned(),
        maintenance: view.maintenance,
        devices: view.devices.into_iter().map(device).collect(),
    }
}

fn device(view: DeviceView) -> pb::DeviceStatus {
    pb::DeviceStatus {
        address: Some(view.address.into()),
        capacity_bytes: view.capacity_bytes,
        free_bytes: view.available_bytes,
        alignment_shift: u32::from(view.alignment.shift()),
        healthy: view.state.healthy,
        liveness: view.state.presence.as_str().to_owned(),
        chunks: view.chunks,
        deletes: view.deletes,
        repairs: view.repairs,
        open: view.open,
        evacuating: view.evacuating,
    }
}
