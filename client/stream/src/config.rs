//! Every time, size and count that bounds a stream client.

use api_types::NodeName;
use std::time::Duration;

/// Bounds of a [`Client`](crate::Client). The defaults suit devices and networks that answer within a few
/// milliseconds; all of them may be changed before the client is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node the client runs on: copies on its devices are read first. `None`: no copy is nearer than another.
    pub node: Option<NodeName>,

    // Appending.
    /// Most bytes sent and not yet committed, per writer. At least one unit is always let through.
    pub in_flight_bytes_max: u32,
    /// Most units sent and not yet committed, per writer.
    pub in_flight_units_max: u32,
    /// Most units sent to one copy and not yet answered by it. It bounds how fast a slow copy can be pursued: this many
    /// units in the time it takes for one.
    pub copy_units_max: u32,
    /// Most bytes that wait in a writer's queue before they are sent; appends beyond are refused as `Unavailable`.
    pub queued_bytes_max: u64,
    /// Most bytes held for copies that are behind, per writer, all chunks together. Beyond, the copy that is furthest
    /// behind is given up (and repaired by the masters after the seal).
    pub chase_bytes_max: u64,
    /// How long a copy that is behind is pursued before its rest is judged by `chase_rest_max`.
    pub chase_time: Duration,
    /// The rest, in bytes, up to which pursuing goes on after `chase_time`; above, the chunk is sealed where it is
    /// committed and the writer goes on in another.
    pub chase_rest_max: u32,
    /// How long a small rest is pursued in all before its copy is given up.
    pub chase_give_up: Duration,
    /// How long a unit may stay uncommitted before the writer leaves the chunk for another.
    pub commit_timeout: Duration,
    /// How long one append may be under way to one device before the request is counted as lost.
    pub append_timeout: Duration,
    /// The wait before an append, seal or grant that failed is sent again; doubles up to `retry_wait_max`.
    pub retry_wait: Duration,
    /// See `retry_wait`.
    pub retry_wait_max: Duration,
    /// How long nothing at all may be committed, with appends waiting, before they fail as `Unavailable`.
    pub append_give_up: Duration,
    /// Chunks kept granted ahead of the open one, per writer; at most 16.
    pub spares: u32,
    /// Chunks that may be closing (being drained, sealed and recorded) before the writer waits for one to finish.
    pub closing_max: u32,
    /// How long the copies of a chunk that was left are drained and sealed before it is recorded at the masters as it
    /// stands.
    pub seal_limit: Duration,

    // Recovery.
    /// How long one seal request may take.
    pub seal_timeout: Duration,
    /// How long recovery waits for the rest of the copies once enough have answered.
    pub recover_linger: Duration,
    /// How long recovery tries to get enough answers before it says `Unavailable`.
    pub recover_limit: Duration,

    // Reading.
    /// How long one read of one copy may take.
    pub read_timeout: Duration,
    /// How long a read tries all copies, and fresh locations, before it says `Unavailable`.
    pub read_limit: Duration,
    /// The shortest wait before a second copy is asked.
    pub backup_delay_min: Duration,
    /// The longest wait before a second copy is asked; also the wait while nothing is known of a device's latency.
    pub backup_delay_max: Duration,
    /// Backup reads allowed for each hundred reads.
    pub backup_percent_max: u32,

    // Knowing who is well and what is where.
    /// Most devices on the two blacklists together.
    pub blacklist_max: usize,
    /// The time between two probes of a listed device.
    pub probe_every: Duration,
    /// How long one probe may take.
    pub probe_timeout: Duration,
    /// How long a device must answer its probes before it is trusted again.
    pub probe_grace: Duration,
    /// Most chunk locations remembered.
    pub locations_max: usize,
    /// Most chunks asked for in one look-up.
    pub locate_batch_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            node: None,
            in_flight_bytes_max: 16 << 20,
            in_flight_units_max: 512,
            copy_units_max: 2048,
            queued_bytes_max: 64 << 20,
            chase_bytes_max: 32 << 20,
            chase_time: Duration::from_secs(2),
            chase_rest_max: 1 << 20,
            chase_give_up: Duration::from_secs(10),
            commit_timeout: Duration::from_millis(700),
            append_timeout: Duration::from_secs(3),
            retry_wait: Duration::from_millis(10),
            retry_wait_max: Duration::from_millis(500),
            append_give_up: Duration::from_secs(60),
            spares: 2,
            closing_max: 8,
            seal_limit: Duration::from_secs(5),
            seal_timeout: Duration::from_secs(1),
            recover_linger: Duration::from_millis(200),
            recover_limit: Duration::from_secs(30),
            read_timeout: Duration::from_secs(3),
            read_limit: Duration::from_secs(30),
            backup_delay_min: Duration::from_millis(1),
            backup_delay_max: Duration::from_millis(50),
            backup_percent_max: 5,
            blacklist_max: 64,
            probe_every: Duration::from_secs(1),
            probe_timeout: Duration::from_millis(500),
            probe_grace: Duration::from_secs(3),
            locations_max: 65_536,
            locate_batch_max: 256,
        }
    }
}
