//! Which devices to stay away from. Two lists: *certain* (nothing answers there, or the device failed) and *probable*
//! (answers come late or got lost). Pure: the client probes while something is listed, and tells the answers.

use api_types::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How sure it is that a device can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// It may be slow, or an answer was lost.
    Probable,
    /// It isn't there, or failed.
    Certain,
}

#[derive(Debug)]
struct Entry {
    doubt: Doubt,
    since: Duration,
    /// It has answered every probe since then.
    well_since: Option<Duration>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Blacklist {
    entries: BTreeMap<DeviceId, Entry>,
    max: usize,
    grace: Duration,
    version: u64,
}

impl Blacklist {
    pub(crate) fn new(max: usize, grace: Duration) -> Self {
        Blacklist { entries: BTreeMap::new(), max, grace, version: 0 }
    }

    /// Lists a device. When the lists are full, the oldest probable entry makes room; if all are certain, the new one
    /// isn't listed, as staying away from even more devices would leave too few.
    pub(crate) fn add(&mut self, device: DeviceId, doubt: Doubt, now: Duration) {
        if let Some(entry) = self.entries.get_mut(&device) {
            entry.doubt = entry.doubt.max(doubt);
            entry.well_since = None;
            return;
        }
        if self.entries.len() >= self.max {
            let probable = self.entries.iter().filter(|(_, entry)| entry.doubt == Doubt::Probable);
            let Some(oldest) = probable.min_by_key(|(_, entry)| entry.since).map(|(device, _)| *device) else { return };
            self.entries.remove(&oldest);
        }
        self.entries.insert(device, Entry { doubt, since: now, well_since: None });
        self.version += 1;
    }

    /// A probe ended. A device is trusted again once it has answered all its probes for the time of grace; one that was
    /// certain to be away becomes probable with the first answer.
    pub(crate) fn probed(&mut self, device: DeviceId, well: bool, now: Duration) {
        let Some(entry) = self.entries.get_mut(&device) else { return };
        if !well {
            entry.well_since = None;
            return;
        }
        entry.doubt = Doubt::Probable;
        let since = *entry.well_since.get_or_insert(now);
        if now >= since + self.grace {
            self.entries.remove(&device);
            self.version += 1;
        }
    }

    pub(crate) fn doubt(&self, device: DeviceId) -> Option<Doubt> {
        self.entries.get(&device).map(|entry| entry.doubt)
    }

    pub(crate) fn listed(&self) -> BTreeSet<DeviceId> {
        self.entries.keys().copied().collect()
    }

    /// How many are listed for this reason.
    pub(crate) fn count(&self, doubt: Doubt) -> u64 {
        self.entries.values().filter(|entry| entry.doubt == doubt).count() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Changes whenever a device is listed or trusted again.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceId = DeviceId(1);
    const B: DeviceId = DeviceId(2);
    const C: DeviceId = DeviceId(3);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_device_is_trusted_again_after_the_grace_only() {
        let mut list = Blacklist::new(2, seconds(3));
        list.add(A, Doubt::Certain, seconds(0));
        list.probed(A, true, seconds(1));
        assert_eq!(list.doubt(A), Some(Doubt::Probable));
        list.probed(A, true, seconds(3));
        assert_eq!(list.doubt(A), Some(Doubt::Probable));
        list.probed(A, true, seconds(4));
        assert_eq!(list.doubt(A), None);
    }

    #[test]
    fn a_failed_probe_starts_the_grace_over() {
        let mut list = Blacklist::new(2, seconds(3));
        list.add(A, Doubt::Certain, seconds(0));
        list.probed(A, true, seconds(1));
        list.probed(A, false, seconds(2));
        list.probed(A, true, seconds(4));
        list.probed(A, true, seconds(6));
        assert!(list.doubt(A).is_some());
        list.probed(A, true, seconds(7));
        assert!(list.doubt(A).is_none());
    }

    #[test]
    fn a_full_list_forgets_the_oldest_doubt_and_never_a_certainty() {
        let mut list = Blacklist::new(2, seconds(3));
        list.add(A, Doubt::Certain, seconds(0));
        list.add(B, Doubt::Probable, seconds(1));
        list.add(C, Doubt::Certain, seconds(2));
        assert_eq!(list.listed(), BTreeSet::from([A, C]));
        list.add(B, Doubt::Certain, seconds(3));
        assert_eq!(list.listed(), BTreeSet::from([A, C]));
    }

    #[test]
    fn the_version_tells_every_change_of_the_set() {
        let mut list = Blacklist::new(2, seconds(0));
        list.add(A, Doubt::Probable, seconds(0));
        let listed = list.version();
        list.add(A, Doubt::Certain, seconds(1));
        assert_eq!(list.version(), listed);
        list.probed(A, true, seconds(2));
        assert_ne!(list.version(), listed);
    }
}
