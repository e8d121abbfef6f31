//! The streams of one core's client, and the buffers that all of a core share.

use super::{Following, gauge};
use api_telemetry::{Gauge, table};
use client_stream::ClientStats;
use nodeagent_reactor::PoolInfo;

/// See the module.
pub(crate) struct StreamMeters {
    seals: Following,
    left: Following,
    given_up: Following,
    backup_reads: Following,
    bad_copies: Following,
    chased: Gauge,
    certain: Gauge,
    probabilistic: Gauge,
    mapped: Gauge,
    used: Gauge,
}

impl StreamMeters {
    pub(crate) fn new() -> Self {
        StreamMeters {
            seals: Following::new(table::STREAM_SEALS_TOTAL.with(&[])),
            left: Following::new(table::STREAM_LEFT_TOTAL.with(&[])),
            given_up: Following::new(table::STREAM_COPIES_GIVEN_UP_TOTAL.with(&[])),
            backup_reads: Following::new(table::STREAM_BACKUP_READS_TOTAL.with(&[])),
            bad_copies: Following::new(table::STREAM_BAD_COPIES_TOTAL.with(&[])),
            chased: table::STREAM_CHASED_BYTES.with(&[]),
            certain: table::STREAM_AVOIDED_DEVICES.with(&["certain"]),
            probabilistic: table::STREAM_AVOIDED_DEVICES.with(&["probabilistic"]),
            mapped: table::BUFFERS_MAPPED_BYTES.with(&[]),
            used: table::BUFFERS_USED_BYTES.with(&[]),
        }
    }

    /// Takes over what the client counted and what the pool holds.
    pub(crate) fn refresh(&self, stats: &ClientStats, pool: &PoolInfo) {
        self.seals.follow(stats.writers.seals);
        self.left.follow(stats.writers.moves);
        self.given_up.follow(stats.writers.copies_given_up);
        self.backup_reads.follow(stats.backup_reads);
        self.bad_copies.follow(stats.bad_copies);
        self.chased.set(gauge(stats.writers.chased_bytes));
        self.certain.set(gauge(stats.avoided_certain));
        self.probabilistic.set(gauge(stats.avoided_probable));
        self.mapped.set(gauge(pool.mapped_bytes as u64));
        self.used.set(gauge(pool.used_bytes as u64));
    }
}
