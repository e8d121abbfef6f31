//! Who beats. Kept by the leader alone, outside the log: only what changes becomes a command.

use crate::command::Body;
use crate::nodes::Presence;
use crate::state::State;
use api_types::master::NodeReport;
use api_types::{DeviceId, NodeName};
use std::collections::BTreeMap;
use std::time::Duration;

/// After how much silence what is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessConfig {
    /// No new chunks from here on.
    pub suspect_after: Duration,
    /// Copies are made again elsewhere from here on.
    pub lost_after: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        LivenessConfig { suspect_after: Duration::from_secs(5), lost_after: Duration::from_secs(60) }
    }
}

/// When each node and each device was heard last. A new leader starts one afresh, and so gives everybody the whole
/// time again.
#[derive(Debug)]
pub struct Liveness {
    config: LivenessConfig,
    started: Duration,
    nodes: BTreeMap<NodeName, Duration>,
    devices: BTreeMap<DeviceId, Duration>,
}

impl Liveness {
    /// Nobody was heard yet; `now` is monotonic.
    #[must_use]
    pub fn new(config: LivenessConfig, now: Duration) -> Self {
        Liveness { config, started: now, nodes: BTreeMap::new(), devices: BTreeMap::new() }
    }

    /// A node beats, or registers. A device that it doesn't name any more isn't heard.
    pub fn beat(&mut self, report: &NodeReport, now: Duration) {
        self.nodes.insert(report.node.clone(), now);
        for device in &report.devices {
            self.devices.insert(device.address.device, now);
        }
    }

    /// How long a node has been silent for this leader.
    #[must_use]
    pub fn silence(&self, node: &NodeName, now: Duration) -> Duration {
        now.saturating_sub(self.nodes.get(node).copied().unwrap_or(self.started))
    }

    /// What silence changed; `None` when nothing did. Forgets whom the state doesn't know.
    pub fn transitions(&mut self, state: &State, now: Duration) -> Option<Body> {
        self.nodes.retain(|name, _| state.nodes.contains_key(name));
        self.devices.retain(|id, _| state.devices.contains_key(id));
        let nodes: Vec<_> = state
            .nodes
            .iter()
            .map(|(name, node)| (name, node.presence, self.judge(node.presence, self.nodes.get(name), now)))
            .filter(|(_, before, after)| before != after)
            .map(|(name, _, after)| (name.clone(), after))
            .collect();
        let devices: Vec<_> = state
            .devices
            .iter()
            .map(|(id, device)| (*id, device.presence, self.judge(device.presence, self.devices.get(id), now)))
            .filter(|(_, before, after)| before != after)
            .map(|(id, _, after)| (id, after))
            .collect();
        (!nodes.is_empty() || !devices.is_empty()).then_some(Body::SetPresence { nodes, devices })
    }

    fn judge(&self, before: Presence, heard: Option<&Duration>, now: Duration) -> Presence {
        let silence = now.saturating_sub(heard.copied().unwrap_or(self.started));
        if silence >= self.config.lost_after {
            Presence::Lost
        } else if silence >= self.config.suspect_after {
            before.max(Presence::Suspect)
        } else if heard.is_some() {
            Presence::Up
        } else {
            before
        }
    }
}
