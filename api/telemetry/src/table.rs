//! Every metric there is. To add one, add it here: nothing else can make a metric, and what isn't here can't be on a
//! dashboard. Names end in their unit (`_bytes`, `_seconds`), counters in `_total`; labels are bounded.

use crate::metric::{Counter, Family, Gauge, Kind, Label, Metric, Unit, Values};
use std::marker::PhantomData;

macro_rules! metrics {
    ($($ident:ident: $handle:ty, $kind:ident, $unit:ident, $name:literal, [$($label:expr),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $ident: Family<$handle> = Family {
                metric: Metric { name: $name, kind: Kind::$kind, unit: Unit::$unit, help: $help, labels: &[$($label),*] },
                handles: PhantomData,
            };
        )*
        /// All of them, in the order in which they are exposed.
        pub static ALL: &[&Metric] = &[$(&$ident.metric),*];
    };
}

/// Has no handles: made of [`crate::Recorder`]s, or read from the system when it is asked for.
#[derive(Debug)]
pub struct Computed;

const fn fixed(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values: Values::Fixed(values) }
}

const DEVICE: Label = Label { name: "device", values: Values::AtMost(64) };
const VOLUME: Label = Label { name: "volume", values: Values::AtMost(512) };
const FRAME: Label = fixed("op", &["append", "read", "seal", "delete", "stat", "scrub", "probe", "list"]);
/// How a request to a chunk store is answered, in the order in which the data plane numbers it.
pub const ANSWERS: [&str; 13] = [
    "ok",
    "unknown",
    "sealed",
    "wrong_offset",
    "fenced",
    "full",
    "conflict",
    "corrupt",
    "invalid",
    "busy",
    "deadline",
    "io",
    "unreachable",
];
const ANSWER: Label = fixed("result", &ANSWERS);
const END: Label = fixed("reason", &["closed", "broken", "garbage", "stalled", "idle", "refused"]);
const BLOCK_OP: Label = fixed("op", &["read", "write", "flush", "discard", "write_zeroes"]);
const MOVED: Label = fixed("direction", &["read", "written"]);
const RESULT: Label = fixed("result", &["ok", "error"]);
const LOG: Label = fixed("log", &["hot", "cold", "index"]);
const LIST: Label = fixed("list", &["certain", "probabilistic"]);
const QUANTILE: Label = fixed("quantile", &["0.5", "0.99", "0.999", "1"]);
const MASTER_CALL: Label = Label { name: "call", values: Values::AtMost(48) };
const CSI_CALL: Label = Label { name: "call", values: Values::AtMost(48) };
const CODE: Label = Label { name: "code", values: Values::AtMost(20) };
const OPERATION: Label = Label { name: "op", values: Values::AtMost(32) };
const STAGE: Label = Label { name: "stage", values: Values::AtMost(8) };
const LIVENESS: Label = fixed("state", &["up", "suspect", "lost"]);
const ORDER: Label = fixed("order", &["delete", "repair"]);

metrics! {
    // Processes.
    BUILD_INFO: Gauge, Gauge, One, "basalt_build_info", [
        Label { name: "component", values: Values::AtMost(8) }, Label { name: "version", values: Values::AtMost(4) }
    ], "Always 1; the labels say what runs here.";
    PROCESS_RESIDENT_BYTES: Computed, Gauge, Bytes, "basalt_process_resident_bytes", [], "Memory of the process that is in use.";
    PROCESS_CPU_SECONDS_TOTAL: Computed, Counter, Seconds, "basalt_process_cpu_seconds_total", [], "Processor time spent.";
    PROCESS_OPEN_FILES: Computed, Gauge, One, "basalt_process_open_files", [], "Open file descriptors.";
    LOG_LINES_TOTAL: Counter, Counter, One, "basalt_log_lines_total", [fixed("level", &["error", "warn"])],
        "Warnings and errors logged.";
    BUFFERS_MAPPED_BYTES: Gauge, Gauge, Bytes, "basalt_buffers_mapped_bytes", [], "Memory mapped by the pool of I/O buffers.";
    BUFFERS_USED_BYTES: Gauge, Gauge, Bytes, "basalt_buffers_used_bytes", [], "I/O buffers that are out, by their class.";

    // Latency: every operation and stage.
    OPERATION_SECONDS: Computed, Histogram, Seconds, "basalt_operation_seconds", [OPERATION, STAGE],
        "Time that operations and their stages took.";
    OPERATION_LAST_SECONDS: Computed, Gauge, Seconds, "basalt_operation_last_seconds", [OPERATION, STAGE, QUANTILE],
        "Quantiles of the last second in which the operation ran; quantile 1 is the slowest.";

    // Data plane.
    RPC_SERVED_TOTAL: Counter, Counter, One, "basalt_rpc_served_total", [FRAME, ANSWER], "Requests answered to other agents.";
    RPC_RECEIVED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_rpc_received_bytes_total", [FRAME],
        "Payload received with requests.";
    RPC_SENT_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_rpc_sent_bytes_total", [FRAME], "Payload sent with answers.";
    RPC_CONNECTIONS: Gauge, Gauge, One, "basalt_rpc_connections", [], "Data connections being served.";
    RPC_CLOSED_TOTAL: Counter, Counter, One, "basalt_rpc_closed_total", [END], "Data connections that ended, by reason.";
    RPC_CALLED_TOTAL: Counter, Counter, One, "basalt_rpc_called_total", [FRAME, ANSWER],
        "Requests sent to chunk stores, those of the same core included.";
    RPC_CONNECTED_TOTAL: Counter, Counter, One, "basalt_rpc_connected_total", [], "Data connections made.";
    RPC_LOST_TOTAL: Counter, Counter, One, "basalt_rpc_lost_total", [], "Data connections lost, or never made.";

    // Data cores.
    CORE_POLLS_TOTAL: Counter, Counter, One, "basalt_core_polls_total", [], "Steps of timed tasks on the data cores.";
    CORE_OVERRUNS_TOTAL: Counter, Counter, One, "basalt_core_overruns_total", [],
        "Steps that held a data core for longer than its quantum.";
    CORE_STALLS_TOTAL: Counter, Counter, One, "basalt_core_stalls_total", [],
        "Times that a task was seen to hold a data core for more than a second.";

    // Devices and chunk stores.
    DEVICE_CAPACITY_BYTES: Gauge, Gauge, Bytes, "basalt_device_capacity_bytes", [DEVICE], "Bytes that chunks may take in all.";
    DEVICE_FREE_BYTES: Gauge, Gauge, Bytes, "basalt_device_free_bytes", [DEVICE], "Bytes not taken by any chunk.";
    DEVICE_CHUNKS: Gauge, Gauge, One, "basalt_device_chunks", [DEVICE], "Chunks on the device.";
    DEVICE_QUEUED: Gauge, Gauge, One, "basalt_device_queued", [DEVICE], "Requests at the device or waiting for it.";
    DEVICE_MOVED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_device_moved_bytes_total", [DEVICE, MOVED],
        "Bytes read from and written to the device, formats and all.";
    DEVICE_ERRORS_TOTAL: Counter, Counter, One, "basalt_device_errors_total", [DEVICE], "Requests that the device failed.";
    ENGINE_CORRUPT_TOTAL: Counter, Counter, One, "basalt_engine_corrupt_total", [DEVICE], "Units found that don't verify.";
    ENGINE_SCRUBBED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_engine_scrubbed_bytes_total", [DEVICE],
        "Bytes read and verified by scrubbing.";

    // Streams.
    STREAM_SEALS_TOTAL: Counter, Counter, One, "basalt_stream_seals_total", [], "Chunks sealed by their writer.";
    STREAM_LEFT_TOTAL: Counter, Counter, One, "basalt_stream_left_total", [], "Chunks left before they were full.";
    STREAM_COPIES_GIVEN_UP_TOTAL: Counter, Counter, One, "basalt_stream_copies_given_up_total", [],
        "Copies that a writer no longer pursues: they are repaired.";
    STREAM_CHASED_BYTES: Gauge, Gauge, Bytes, "basalt_stream_chased_bytes", [], "Committed bytes that a slow copy still lacks.";
    STREAM_BACKUP_READS_TOTAL: Counter, Counter, One, "basalt_stream_backup_reads_total", [],
        "Reads that asked a second copy because the first was slow.";
    STREAM_BAD_COPIES_TOTAL: Counter, Counter, One, "basalt_stream_bad_copies_total", [],
        "Copies reported because they failed their reader.";
    STREAM_AVOIDED_DEVICES: Gauge, Gauge, One, "basalt_stream_avoided_devices", [LIST], "Devices on a blacklist.";

    // Volumes and front ends.
    VOLUME_SIZE_BYTES: Gauge, Gauge, Bytes, "basalt_volume_size_bytes", [VOLUME], "Size of an attached volume.";
    VOLUME_MOVED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_volume_moved_bytes_total", [VOLUME, MOVED],
        "Bytes that users read and wrote.";
    VOLUME_APPENDED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_volume_appended_bytes_total", [VOLUME, LOG],
        "Bytes appended to the volume's streams, one copy counted; over bytes written it is the write amplification.";
    VOLUME_LIVE_BYTES: Gauge, Gauge, Bytes, "basalt_volume_live_bytes", [VOLUME], "Bytes of blocks that the map points to.";
    VOLUME_LOG_BYTES: Gauge, Gauge, Bytes, "basalt_volume_log_bytes", [VOLUME], "Bytes of all chunks, one copy counted.";
    FRONTEND_REQUESTS_TOTAL: Counter, Counter, One, "basalt_frontend_requests_total", [BLOCK_OP, RESULT],
        "Requests from the kernel's block layer.";

    // Masters and those who ask them.
    MASTER_LEADS: Gauge, Gauge, One, "basalt_master_leads", [], "1 on the master that leads.";
    MASTER_TERM: Gauge, Gauge, One, "basalt_master_term", [], "The newest Raft term seen.";
    MASTER_APPLIED_INDEX: Gauge, Gauge, One, "basalt_master_applied_index", [], "Last log entry applied to the state.";
    MASTER_LOG_BYTES: Gauge, Gauge, Bytes, "basalt_master_log_bytes", [], "Size of the Raft log on disk.";
    MASTER_CALLS_TOTAL: Counter, Counter, One, "basalt_master_calls_total", [MASTER_CALL, CODE], "Calls answered by this master.";
    MASTER_NODES: Gauge, Gauge, One, "basalt_master_nodes", [LIVENESS], "Nodes, as the leader sees them.";
    MASTER_SHORT_CHUNKS: Gauge, Gauge, One, "basalt_master_short_chunks", [], "Sealed chunks with fewer whole copies than wanted.";
    MASTER_ORDERS: Gauge, Gauge, One, "basalt_master_orders", [ORDER], "Orders to agents that aren't reported done.";
    MASTER_POOL_FREE_BYTES: Gauge, Gauge, Bytes, "basalt_master_pool_free_bytes",
        [Label { name: "pool", values: Values::AtMost(32) }], "User data the pool can still take.";
    AGENT_ORDERS_TOTAL: Counter, Counter, One, "basalt_agent_orders_total", [ORDER, RESULT], "Orders carried out.";
    AGENT_REPAIRED_BYTES_TOTAL: Counter, Counter, Bytes, "basalt_agent_repaired_bytes_total", [], "Bytes copied by repair.";
    CSI_CALLS_TOTAL: Counter, Counter, One, "basalt_csi_calls_total", [CSI_CALL, CODE], "CSI calls answered.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_say_what_they_count() {
        for metric in ALL {
            let name = metric.name;
            assert!(name.starts_with("basalt_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}: counters end in _total");
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(stem.ends_with("_bytes"), metric.unit == Unit::Bytes, "{name}: the unit ends the name");
            assert_eq!(stem.ends_with("_seconds"), metric.unit == Unit::Seconds, "{name}: the unit ends the name");
            assert!(metric.help.ends_with('.') && metric.help.len() > 10, "{name}: help is a sentence");
        }
    }

    #[test]
    fn names_are_there_once_and_labels_are_bounded() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            let series: usize = metric
                .labels
                .iter()
                .map(|label| match label.values {
                    Values::Fixed(values) => values.len() + 1,
                    Values::AtMost(limit) => limit + 1,
                })
                .product();
            assert!(series <= 5000, "{} may have {series} series", metric.name);
        }
    }
}
