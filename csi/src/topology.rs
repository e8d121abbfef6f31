//! From where volumes can be used: from every node that runs this driver, and from no other.

use crate::error::Error;
use crate::proto::{Topology, TopologyRequirement};
use std::collections::{BTreeMap, HashMap};

/// Prefix of every key.
const PREFIX: &str = "topology.basalt.storage/";

/// On every node that runs the driver.
const DRIVER_KEY: &str = "topology.basalt.storage/driver";
const DRIVER_VALUE: &str = "present";

/// Where a volume can be used.
pub(crate) fn anywhere() -> Topology {
    Topology { segments: HashMap::from([(DRIVER_KEY.to_owned(), DRIVER_VALUE.to_owned())]) }
}

/// What a node is: the driver's key, its name and its labels.
pub(crate) fn of_node(node: &str, labels: &BTreeMap<String, String>) -> Topology {
    let mut segments = anywhere().segments;
    segments.insert(format!("{PREFIX}node"), node.to_owned());
    segments.extend(labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())));
    Topology { segments }
}

/// Any node will do, so a requirement is met when one of its places can have the driver at all.
pub(crate) fn check(requirement: Option<&TopologyRequirement>) -> Result<(), Error> {
    let Some(requirement) = requirement else { return Ok(()) };
    let mut places = requirement.requisite.iter().chain(&requirement.preferred).peekable();
    if places.peek().is_none() {
        return Ok(());
    }
    let has_driver = |place: &Topology| place.segments.get(DRIVER_KEY).is_none_or(|value| value == DRIVER_VALUE);
    if places.any(has_driver) {
        return Ok(());
    }
    Err(Error::NoSpace("accessibility_requirements name no node that runs this driver".into()))
}
