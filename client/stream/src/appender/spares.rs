//! Chunks granted ahead, and the asking for more.

use crate::Config;
use api_types::DeviceId;
use api_types::master::ChunkRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How good a chunk the writer insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// The open chunk still commits: only leave it for one whose devices are all well.
    Well,
    /// The open chunk doesn't commit: any that can commit will do.
    Usable,
    /// There is none.
    Any,
}

/// Devices that new chunks had better not be on.
#[derive(Debug, Default)]
pub(super) struct Shunned {
    /// What the client's blacklists say.
    listed: BTreeSet<DeviceId>,
    /// What this writer found by itself, and until when it holds.
    own: BTreeMap<DeviceId, Duration>,
}

/// How long a device that was full, slow or broken is not asked for new chunks.
const SHUN_TIME: Duration = Duration::from_secs(5);

impl Shunned {
    pub(super) fn set_listed(&mut self, listed: BTreeSet<DeviceId>) {
        self.listed = listed;
    }

    pub(super) fn add(&mut self, device: DeviceId, now: Duration) {
        self.own.insert(device, now + SHUN_TIME);
    }

    pub(super) fn forget_old(&mut self, now: Duration) {
        self.own.retain(|_, until| *until > now);
    }

    pub(super) fn has(&self, device: DeviceId) -> bool {
        self.listed.contains(&device) || self.own.contains_key(&device)
    }

    pub(super) fn all(&self) -> Vec<DeviceId> {
        let all: BTreeSet<DeviceId> = self.listed.iter().chain(self.own.keys()).copied().collect();
        all.into_iter().collect()
    }

    pub(super) fn next_change(&self) -> Option<Duration> {
        self.own.values().copied().min()
    }

    fn count(&self, record: &ChunkRecord) -> usize {
        record.copies.iter().filter(|copy| self.has(copy.device)).count()
    }
}

/// See the module. In stream order; each is used in that order, and one that is skipped is never used.
#[derive(Debug, Default)]
pub(super) struct Spares {
    granted: VecDeque<ChunkRecord>,
    pub(super) asked: bool,
    /// The next grant isn't asked for before this.
    after: Duration,
    wait: Duration,
    /// A spare on better devices isn't asked for before this.
    better_after: Duration,
}

/// The wait before the masters are asked once more for a spare on better devices.
const BETTER_WAIT: Duration = Duration::from_secs(1);

impl Spares {
    /// Takes the first spare that satisfies `need`. The second part are those before it, which are skipped for ever.
    pub(super) fn take(&mut self, need: Need, min_copy: u8, shunned: &Shunned) -> Option<(ChunkRecord, Vec<ChunkRecord>)> {
        let well = self.granted.iter().position(|record| shunned.count(record) == 0);
        let usable =
            || self.granted.iter().position(|record| record.copies.len() >= shunned.count(record) + usize::from(min_copy));
        let at = match need {
            Need::Well => well,
            Need::Usable => well.or_else(usable),
            Need::Any => well.or_else(usable).or(if self.granted.is_empty() { None } else { Some(0) }),
        }?;
        let skipped = self.granted.drain(..at).collect();
        let taken = self.granted.pop_front()?;
        Some((taken, skipped))
    }

    pub(super) fn take_all(&mut self) -> Vec<ChunkRecord> {
        self.granted.drain(..).collect()
    }

    /// How many chunks to ask for now; `better` when a spare on other devices is wanted.
    pub(super) fn count_to_ask(&self, better: bool, config: &Config, now: Duration) -> u32 {
        if self.asked || now < self.after {
            return 0;
        }
        let target = config.spares.clamp(1, 16) as usize;
        let missing = target.saturating_sub(self.granted.len());
        let better = better && now >= self.better_after && self.granted.len() < 2 * target;
        missing.max(usize::from(better)) as u32
    }

    pub(super) fn note_asked(&mut self, better: bool, now: Duration) {
        self.asked = true;
        if better {
            self.better_after = now + BETTER_WAIT;
        }
    }

    /// Chunks came. They are after all that came before in the stream.
    pub(super) fn add(&mut self, mut records: Vec<ChunkRecord>) {
        self.asked = false;
        self.wait = Duration::ZERO;
        records.sort_by_key(|record| record.index);
        self.granted.extend(records);
    }

    /// None came.
    pub(super) fn refused(&mut self, config: &Config, now: Duration) {
        self.asked = false;
        self.wait = (self.wait * 2).clamp(config.retry_wait, config.retry_wait_max);
        self.after = now + self.wait;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted.is_empty()
    }

    /// When asking for more becomes allowed.
    pub(super) fn deadline(&self, better: bool, config: &Config) -> Option<Duration> {
        if self.asked {
            return None;
        }
        let target = config.spares.clamp(1, 16) as usize;
        if self.granted.len() < target {
            return Some(self.after);
        }
        (better && self.granted.len() < 2 * target).then(|| self.after.max(self.better_after))
    }
}
