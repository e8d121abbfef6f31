//! The data chunks of a volume: how much of each is alive, which one is worth emptying, which ones may go.

use crate::map::Location;
use crate::root::{Log, LogPosition};
use crate::{Config, PoolSpace};
use api_types::ChunkId;
use api_types::limits::{BLOCK_BYTES, UNIT_BYTES_MAX};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is known of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    pub(crate) log: Log,
    /// Place in its stream.
    pub(crate) index: u64,
    /// Bytes written.
    pub(crate) length: u32,
    /// Blocks that the map refers to.
    pub(crate) live: u32,
    /// No unit will be appended any more.
    pub(crate) sealed: bool,
    /// Bytes that the volume had appended in all when the chunk got its last unit: its age.
    touched: u64,
    /// Emptying it failed; it isn't tried again before the volume has appended so much.
    not_before: u64,
}

impl Usage {
    fn live_bytes(&self) -> u64 {
        u64::from(self.live) * u64::from(BLOCK_BYTES)
    }

    fn dead_bytes(&self) -> u64 {
        u64::from(self.length).saturating_sub(self.live_bytes())
    }

    /// Emptying it frees something. Whoever is short of space counts a chunk that another unit would have fitted in: it
    /// takes a place and could share one. A fuller one is as full as it gets, and moving it would go on for ever.
    fn is_worth(&self, aim: Aim, chunk_bytes: u32) -> bool {
        let dead_is_over = |share: u64| self.dead_bytes() > u64::from(self.length) / share;
        match aim {
            Aim::Best => dead_is_over(8),
            Aim::Cheapest => dead_is_over(16) || self.length.saturating_add(UNIT_BYTES_MAX) <= chunk_bytes,
            Aim::Merge => self.length < chunk_bytes / 4,
        }
    }

    fn is_dead(&self, hot: LogPosition, cold: LogPosition) -> bool {
        let applied = if self.log == Log::Hot { hot } else { cold };
        let behind = self.index < applied.index || (self.index == applied.index && self.length <= applied.end);
        self.live == 0 && self.sealed && behind
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Chunks {
    chunks: BTreeMap<ChunkId, Usage>,
    used_bytes: u64,
    live_blocks: u64,
    appended: u64,
}

impl Chunks {
    /// Learns of a chunk that holds `length` bytes: an append, a seal, or recovery.
    pub(crate) fn grow(&mut self, log: Log, chunk: ChunkId, index: u64, length: u32) {
        let usage = self.chunks.entry(chunk).or_insert(Usage {
            log,
            index,
            length: 0,
            live: 0,
            sealed: false,
            touched: self.appended,
            not_before: 0,
        });
        let more = length.saturating_sub(usage.length);
        usage.length += more;
        self.used_bytes += u64::from(more);
        self.appended += u64::from(more);
        usage.touched = self.appended;
    }

    /// The chunk takes no appends any more.
    pub(crate) fn seal(&mut self, chunk: ChunkId) {
        if let Some(usage) = self.chunks.get_mut(&chunk) {
            usage.sealed = true;
        }
    }

    /// The map refers to one more block of the chunk.
    pub(crate) fn refer(&mut self, location: &Location) {
        if let Some(usage) = self.chunks.get_mut(&location.chunk) {
            usage.live += 1;
            self.live_blocks += 1;
        }
    }

    /// The map refers to one block less.
    pub(crate) fn forget(&mut self, location: &Location) {
        if let Some(usage) = self.chunks.get_mut(&location.chunk)
            && usage.live > 0
        {
            usage.live -= 1;
            self.live_blocks -= 1;
        }
    }

    /// Sets the count that a checkpoint holds. `false`: no such chunk.
    pub(crate) fn set_live(&mut self, chunk: ChunkId, live: u32) -> bool {
        let Some(usage) = self.chunks.get_mut(&chunk) else { return false };
        self.live_blocks = self.live_blocks - u64::from(usage.live) + u64::from(live);
        usage.live = live;
        true
    }

    /// The chunk is gone.
    pub(crate) fn remove(&mut self, chunk: ChunkId) {
        if let Some(usage) = self.chunks.remove(&chunk) {
            self.used_bytes -= u64::from(usage.length);
            self.live_blocks -= u64::from(usage.live);
        }
    }

    /// Emptying it failed: leave it alone until the volume has appended `bytes` more.
    pub(crate) fn skip(&mut self, chunk: ChunkId, bytes: u64) {
        if let Some(usage) = self.chunks.get_mut(&chunk) {
            usage.not_before = self.appended + bytes;
        }
    }

    /// Forgets what [`Chunks::skip`] said: nothing better is left.
    pub(crate) fn unskip(&mut self) {
        for usage in self.chunks.values_mut() {
            usage.not_before = 0;
        }
    }

    pub(crate) fn get(&self, chunk: ChunkId) -> Option<&Usage> {
        self.chunks.get(&chunk)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChunkId, &Usage)> {
        self.chunks.iter().map(|(chunk, usage)| (*chunk, usage))
    }

    pub(crate) fn len(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_blocks * u64::from(BLOCK_BYTES)
    }

    pub(crate) fn dead_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.live_bytes())
    }

    /// Share of the used bytes that nothing refers to.
    pub(crate) fn garbage_share(&self) -> f64 {
        if self.used_bytes == 0 { 0.0 } else { self.dead_bytes() as f64 / self.used_bytes as f64 }
    }

    /// The chunk that is best emptied next, of those worth it.
    pub(crate) fn victim(&self, aim: Aim, chunk_bytes: u32) -> Option<ChunkId> {
        let score = |usage: &Usage| {
            let live = usage.live_bytes() as f64 / f64::from(usage.length.max(1));
            let age = 1.0 + (self.appended - usage.touched) as f64;
            if aim == Aim::Best { (1.0 - live) * age / (1.0 + live) } else { -(usage.live_bytes() as f64) }
        };
        let worth = |usage: &&Usage| usage.sealed && usage.live > 0 && usage.not_before <= self.appended;
        let worth = |usage: &&Usage| worth(usage) && usage.is_worth(aim, chunk_bytes);
        let candidates = self.chunks.iter().filter(|(_, usage)| worth(usage));
        candidates.max_by(|a, b| score(a.1).total_cmp(&score(b.1)).then(b.0.cmp(a.0))).map(|(chunk, _)| *chunk)
    }

    /// Sealed chunks that are far from full: openings and failures leave them behind.
    fn short(&self, chunk_bytes: u32) -> usize {
        self.chunks.values().filter(|usage| usage.sealed && usage.is_worth(Aim::Merge, chunk_bytes)).count()
    }

    /// Chunks that nothing in the map of now refers to and that lie wholly before these places of the logs: once a
    /// checkpoint of now is durable, neither the map nor a replay needs them.
    pub(crate) fn dead(&self, hot: LogPosition, cold: LogPosition) -> Vec<(Log, ChunkId)> {
        let dead = self.chunks.iter().filter(|(_, usage)| usage.is_dead(hot, cold));
        dead.map(|(chunk, usage)| (usage.log, *chunk)).collect()
    }

    /// Bytes in those chunks: what the next checkpoint frees.
    pub(crate) fn empty_bytes(&self, hot: LogPosition, cold: LogPosition) -> u64 {
        // A chunk that holds nothing takes space as well.
        self.chunks.values().filter(|usage| usage.is_dead(hot, cold)).map(|usage| u64::from(usage.length.max(1))).sum()
    }
}

/// Which chunk reclaim takes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// The best ratio of what it frees, and how long that is likely to last, to what it costs.
    Best,
    /// Least live: space is needed now.
    Cheapest,
    /// Chunks that hold hardly anything: there are too many of them.
    Merge,
}

/// How hard reclaim works, and at what.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Pace {
    /// 0: not at all; 1: at full speed.
    pub(crate) urgency: f64,
    pub(crate) aim: Aim,
}

/// Short chunks that don't matter.
const SHORT_CHUNKS_MAX: usize = 16;
/// Urgency of work that has time.
const URGENCY_MIN: f64 = 0.05;

/// How hard reclaim is to work. `starved`: a write found no space.
pub(crate) fn pace(chunks: &Chunks, chunk_bytes: u32, space: Option<PoolSpace>, starved: bool, config: &Config) -> Pace {
    let free = space.map(PoolSpace::free_share);
    if starved || free.is_some_and(|free| free < config.pool_free_short) {
        return Pace { urgency: 1.0, aim: Aim::Cheapest };
    }
    let limit = if free.is_some_and(|free| free >= config.pool_free_plenty) {
        config.garbage_share_plenty
    } else {
        config.garbage_share_max
    };
    let excess = chunks.garbage_share() - limit;
    // Open chunks and the youngest ones are never worth moving: a small volume would copy itself round and round.
    if excess > 0.0 && chunks.dead_bytes() >= 3 * u64::from(chunk_bytes) {
        let urgency = (excess / config.garbage_share_slack.max(f64::EPSILON)).clamp(URGENCY_MIN, 1.0);
        return Pace { urgency, aim: Aim::Best };
    }
    let urgency = if chunks.short(chunk_bytes) > SHORT_CHUNKS_MAX { URGENCY_MIN } else { 0.0 };
    Pace { urgency, aim: Aim::Merge }
}

/// How long a foreground write is held back so that reclaim keeps up: nothing until reclaim is at full speed, then more
/// the further the garbage is beyond what reclaim was to hold it at. Asked for every write, so it looks at sums only.
pub(crate) fn write_delay(chunks: &Chunks, chunk_bytes: u32, space: Option<PoolSpace>, config: &Config) -> Duration {
    let excess = chunks.garbage_share() - config.garbage_share_max - config.garbage_share_slack;
    let plenty = space.is_some_and(|space| space.free_share() >= config.pool_free_plenty);
    if excess <= 0.0 || plenty || chunks.dead_bytes() < 3 * u64::from(chunk_bytes) {
        return Duration::ZERO;
    }
    config.write_delay_max.mul_f64((excess / config.garbage_share_slack.max(f64::EPSILON)).min(1.0))
}

#[cfg(test)]
mod tests;
