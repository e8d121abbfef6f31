//! Every time, size and share that bounds a volume.

use std::time::Duration;

/// Bounds of a [`Volume`](crate::Volume). The defaults suit volumes up to a few TiB on flash.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    // Writing.
    /// Units under way at once. A write that finds all of them under way waits and shares the next unit with its
    /// neighbours; one that finds a free place is sent at once, alone.
    pub in_flight_units_max: usize,
    /// Most bytes of writes that wait for a place. Requests beyond wait at the door.
    pub queued_bytes_max: u64,
    /// How long a write waits for reclaim to free space in a full pool before it is answered with `NoSpace`.
    pub no_space_patience: Duration,
    /// The wait before writes are tried again in a full pool.
    pub no_space_retry: Duration,

    // The map.
    /// Most bytes of map leaves kept in memory. Leaves changed since the last checkpoint stay beyond it.
    pub leaf_bytes_max: u64,

    // Checkpoints.
    /// Log bytes after which a checkpoint is written: what a crash open has to replay.
    pub checkpoint_log_bytes: u64,
    /// How long changes may stay without a checkpoint.
    pub checkpoint_every: Duration,
    /// The wait before a checkpoint that failed is tried again.
    pub checkpoint_retry: Duration,

    // Reclaim.
    /// Share of the used bytes that may be garbage while the pool has plenty of space.
    pub garbage_share_plenty: f64,
    /// Share of the used bytes that may be garbage while the space of the pool isn't known, or is neither short nor
    /// plenty.
    pub garbage_share_max: f64,
    /// Free share of the pool from which on there is plenty.
    pub pool_free_plenty: f64,
    /// Free share of the pool below which reclaim takes all there is, at full speed.
    pub pool_free_short: f64,
    /// Share by which the garbage may exceed its limit before reclaim runs at full speed and foreground writes are
    /// slowed down.
    pub garbage_share_slack: f64,
    /// The longest that a foreground write is delayed so that reclaim keeps up.
    pub write_delay_max: Duration,
    /// Units of survivors under way at once.
    pub reclaim_units_max: usize,
    /// How often reclaim looks whether there is work while the volume is written.
    pub reclaim_every: Duration,

    // Reading.
    /// Reads of chunks that one request may have under way at once.
    pub read_parallel_max: usize,
    /// Longest run of bytes that no one asked for and that is read to join two runs that were asked for.
    pub read_gap_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            in_flight_units_max: 4,
            queued_bytes_max: 16 << 20,
            no_space_patience: Duration::from_secs(20),
            no_space_retry: Duration::from_millis(50),
            leaf_bytes_max: 64 << 20,
            checkpoint_log_bytes: 256 << 20,
            checkpoint_every: Duration::from_secs(30),
            checkpoint_retry: Duration::from_millis(500),
            garbage_share_plenty: 0.5,
            garbage_share_max: 0.25,
            pool_free_plenty: 0.5,
            pool_free_short: 0.1,
            garbage_share_slack: 0.15,
            write_delay_max: Duration::from_millis(20),
            reclaim_units_max: 4,
            reclaim_every: Duration::from_millis(200),
            read_parallel_max: 32,
            read_gap_max: 4096,
        }
    }
}

/// Space of the pool a volume lives in, as the masters report it. A hint that sets the pace of reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSpace {
    /// Bytes of user data it can still take.
    pub available_bytes: u64,
    /// Bytes of user data it could take in all.
    pub capacity_bytes: u64,
}

impl PoolSpace {
    /// Free share, 0 to 1.
    #[must_use]
    pub fn free_share(self) -> f64 {
        if self.capacity_bytes == 0 { 0.0 } else { self.available_bytes as f64 / self.capacity_bytes as f64 }
    }
}
