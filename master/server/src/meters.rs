//! What a master tells about itself and, while it leads, about the cluster.

use api_telemetry::{Gauge, table};
use master_raft::{Group, GroupStatus};
use master_state::{NodeView, State};
use parking_lot::Mutex;
use std::collections::BTreeMap;

const PRESENCES: [&str; 3] = ["up", "suspect", "lost"];

/// Refreshed when the group changes, and each second by the leader.
pub(crate) struct Meters {
    leads: Gauge,
    term: Gauge,
    applied: Gauge,
    log: Gauge,
    /// Shown by the leader alone: the others may be behind.
    cluster: Mutex<Option<ClusterMeters>>,
}

struct ClusterMeters {
    nodes: [Gauge; PRESENCES.len()],
    short: Gauge,
    repairs: Gauge,
    deletes: Gauge,
    pools: BTreeMap<String, Gauge>,
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Meters {
    pub(crate) fn new() -> Self {
        Meters {
            leads: table::MASTER_LEADS.with(&[]),
            term: table::MASTER_TERM.with(&[]),
            applied: table::MASTER_APPLIED_INDEX.with(&[]),
            log: table::MASTER_LOG_BYTES.with(&[]),
            cluster: Mutex::new(None),
        }
    }

    /// Takes over how the group is and, from its leader, how the cluster is.
    pub(crate) fn refresh(&self, group: &Group) {
        let leads = group.is_leader();
        let GroupStatus { term, applied_index, log_bytes, .. } = group.status();
        self.leads.set(leads.into());
        self.term.set(gauge(term));
        self.applied.set(gauge(applied_index));
        self.log.set(gauge(log_bytes));
        let mut cluster = self.cluster.lock();
        if leads {
            group.read(|state| cluster.get_or_insert_with(ClusterMeters::new).refresh(state));
        } else {
            *cluster = None;
        }
    }
}

impl ClusterMeters {
    fn new() -> Self {
        ClusterMeters {
            nodes: PRESENCES.map(|presence| table::MASTER_NODES.with(&[presence])),
            short: table::MASTER_SHORT_CHUNKS.with(&[]),
            repairs: table::MASTER_ORDERS.with(&["repair"]),
            deletes: table::MASTER_ORDERS.with(&["delete"]),
            pools: BTreeMap::new(),
        }
    }

    fn refresh(&mut self, state: &State) {
        let nodes = state.nodes();
        for (gauge, presence) in self.nodes.iter().zip(PRESENCES) {
            let count = nodes.iter().filter(|node| node.presence.as_str() == presence).count();
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let sum = |of: fn(&master_state::DeviceView) -> u64| {
            let devices = nodes.iter().flat_map(|node: &NodeView| node.devices.iter());
            gauge(devices.map(of).sum())
        };
        self.repairs.set(sum(|device| device.repairs));
        self.deletes.set(sum(|device| device.deletes));
        self.short.set(gauge(state.chunk_counts().under_replicated));
        let pools = state.pools();
        self.pools.retain(|name, _| pools.iter().any(|pool| pool.name == *name));
        for pool in pools {
            let free = self.pools.entry(pool.name.clone());
            free.or_insert_with(|| table::MASTER_POOL_FREE_BYTES.with(&[&pool.name])).set(gauge(pool.available_bytes));
        }
    }
}
