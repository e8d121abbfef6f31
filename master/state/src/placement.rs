//! Where a chunk's copies go: filters, then a score, one failure domain after the other.
//!
//! Filters decide what is possible: the device takes chunks, is in a failure domain without a copy, and keeps its reserve.
//! The score decides what is good: a large free share, few open chunks, the writer's own node, not on the client's avoid
//! list, and a little chance, so that equal devices share the load. Same state and same seed: same answer.

use crate::namespace::mix;
use crate::nodes::Device;
use crate::state::State;
use api_types::master::Error;
use api_types::{DeviceId, LifetimeClass, NodeName};
use std::collections::{BTreeMap, BTreeSet};

/// What a placement needs to know.
pub(crate) struct Wish<'a> {
    /// `node`, `device` or a label.
    pub(crate) failure_domain: &'a str,
    /// Domains that hold a copy already.
    pub(crate) taken: BTreeSet<String>,
    /// Devices that won't do.
    pub(crate) without: BTreeSet<DeviceId>,
    /// Devices better left alone.
    pub(crate) avoid: &'a [DeviceId],
    /// Where the writer is.
    pub(crate) near: Option<&'a NodeName>,
    /// Bytes each copy takes.
    pub(crate) bytes: u64,
    /// What is left on a device.
    pub(crate) reserve: Reserve,
    /// Chance.
    pub(crate) seed: u64,
}

/// How much of a device is kept back from whom. Users' writes stop first, then reclaim, which frees space, and last the
/// checkpoints that let reclaim delete what it freed: a full pool can always be emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reserve {
    /// Users' writes.
    Twice,
    /// Reclaim and repair.
    Once,
    /// Checkpoints.
    None,
}

impl Reserve {
    pub(crate) fn of(class: LifetimeClass) -> Self {
        match class {
            LifetimeClass::Short => Reserve::Twice,
            LifetimeClass::Long | LifetimeClass::Extreme => Reserve::Once,
            LifetimeClass::Medium => Reserve::None,
        }
    }

    /// In bytes: two chunks' worth or 1.5 % of the device, whichever is more, but never more than an eighth of it.
    pub(crate) fn bytes(self, device: &Device, chunk_bytes: u64) -> u64 {
        let once = (2 * chunk_bytes).max(device.capacity_bytes / 200 * 3).min(device.capacity_bytes / 8);
        match self {
            Reserve::Twice => 2 * once,
            Reserve::Once => once,
            Reserve::None => 0,
        }
    }
}

const AVOID_PENALTY: i64 = 1_000_000;
const NEAR_BONUS: i64 = 400;
const OPEN_PENALTY: i64 = 20;
const CHANCE: u64 = 100;

impl State {
    /// The failure domain of a device; `None` when its node lacks the label.
    pub(crate) fn domain_of(&self, failure_domain: &str, device: &Device) -> Option<String> {
        match failure_domain {
            "node" => Some(device.address.node.0.clone()),
            "device" => Some(device.address.device.to_string()),
            label => self.nodes.get(&device.address.node)?.labels.get(label).cloned(),
        }
    }

    /// Picks `count` devices in as many failure domains, or fewer, down to `at_least`; the best first.
    pub(crate) fn place(&self, wish: &Wish<'_>, count: usize, at_least: usize) -> Result<Vec<DeviceId>, Error> {
        let mut best: BTreeMap<String, (i64, DeviceId)> = BTreeMap::new();
        for (id, device) in &self.devices {
            let Some(domain) = self.domain_of(wish.failure_domain, device) else { continue };
            if !device.takes_chunks(&self.upkeep)
                || wish.taken.contains(&domain)
                || wish.without.contains(id)
                || !room(device, wish)
            {
                continue;
            }
            let rated = (score(*id, device, wish), *id);
            let entry = best.entry(domain).or_insert(rated);
            if rated.0 > entry.0 {
                *entry = rated;
            }
        }
        if best.len() < at_least {
            return Err(self.no_space(wish, best.len(), at_least));
        }
        let mut rated: Vec<(i64, DeviceId)> = best.into_values().collect();
        rated.sort_by_key(|(score, id)| (std::cmp::Reverse(*score), *id));
        Ok(rated.into_iter().take(count).map(|(_, id)| id).collect())
    }

    /// Says what is missing: devices, domains or bytes.
    fn no_space(&self, wish: &Wish<'_>, found: usize, needed: usize) -> Error {
        let up = self.devices.values().filter(|device| device.takes_chunks(&self.upkeep)).count();
        let roomy = self.devices.values().filter(|device| device.takes_chunks(&self.upkeep) && room(device, wish)).count();
        let domain = wish.failure_domain;
        Error::NoSpace(format!(
            "{needed} copies in separate failure domains (`{domain}`) are needed, {found} can be placed: {up} of {} devices are \
             up, {roomy} of them have {} bytes above their reserve",
            self.devices.len(),
            wish.bytes
        ))
    }
}

fn room(device: &Device, wish: &Wish<'_>) -> bool {
    device.available_bytes() >= wish.bytes.saturating_add(wish.reserve.bytes(device, wish.bytes))
}

fn score(id: DeviceId, device: &Device, wish: &Wish<'_>) -> i64 {
    let share = u128::from(device.available_bytes()) * 1000 / u128::from(device.capacity_bytes.max(1));
    let mut score = i64::try_from(share).unwrap_or(1000) - OPEN_PENALTY * i64::from(device.open);
    score += i64::try_from(mix(wish.seed ^ mix(id.0)) % CHANCE).unwrap_or(0);
    if wish.near == Some(&device.address.node) {
        score += NEAR_BONUS;
    }
    if wish.avoid.contains(&id) {
        score -= AVOID_PENALTY;
    }
    score
}
