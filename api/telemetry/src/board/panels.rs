//! The dashboard, in Grafana's JSON.

use super::Query;
use crate::latency::{Operation, Stage};
use crate::table;
use serde_json::{Value, json};

/// Width of the grid, and the size of a panel in it.
const GRID: usize = 24;
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

struct Panel {
    title: &'static str,
    /// One of Grafana's units.
    unit: &'static str,
    /// Expression and legend.
    lines: Vec<(Query, String)>,
}

fn panel(title: &'static str, unit: &'static str, lines: impl IntoIterator<Item = (Query, &'static str)>) -> Panel {
    Panel { title, unit, lines: lines.into_iter().map(|(query, legend)| (query, legend.to_owned())).collect() }
}

/// Median and tail of one stage.
fn latency(title: &'static str, operation: Operation, stage: Stage) -> Panel {
    let lines = [0.5, 0.99, 0.999].map(|quantile| {
        let legend = format!("p{}", quantile * 100.0);
        (Query::quantile(quantile, operation, stage, &[]), legend)
    });
    Panel { title, unit: "s", lines: lines.into() }
}

/// Where the median time of an operation goes.
fn stages(title: &'static str, operation: Operation) -> Panel {
    let lines = [Stage::Total, Stage::Queue, Stage::Stream]
        .map(|stage| (Query::quantile(0.99, operation, stage, &[]), format!("{} p99", stage.as_str())));
    Panel { title, unit: "s", lines: lines.into() }
}

fn rows() -> Vec<(&'static str, Vec<Panel>)> {
    vec![
        ("Volumes", volumes()),
        ("Where time goes", times()),
        ("Devices", devices()),
        ("Redundancy and streams", redundancy()),
        ("Masters and CSI", control()),
        ("Processes", processes()),
    ]
}

fn volumes() -> Vec<Panel> {
    let requests = &table::FRONTEND_REQUESTS_TOTAL.metric;
    let moved = &table::VOLUME_MOVED_BYTES_TOTAL.metric;
    let appended = Query::rate(&table::VOLUME_APPENDED_BYTES_TOTAL.metric, &["volume"]);
    let written = Query::rate_where(moved, "direction", false, "written", &["volume"]);
    vec![
        panel("Requests", "iops", [(Query::rate(requests, &["op"]), "{{op}}")]),
        panel("Requests that failed", "iops", [(Query::rate_where(requests, "result", true, "ok", &["op"]), "{{op}}")]),
        panel("Bytes", "Bps", [(Query::rate(moved, &["volume", "direction"]), "{{volume}} {{direction}}")]),
        latency("Write latency", Operation::Write, Stage::Total),
        latency("Read latency", Operation::Read, Stage::Total),
        panel("Write amplification, one copy counted", "none", [(appended.over(&written), "{{volume}}")]),
        panel("Live bytes", "bytes", [(Query::now(&table::VOLUME_LIVE_BYTES.metric, &["volume"]), "{{volume}}")]),
        panel("Log bytes", "bytes", [(Query::now(&table::VOLUME_LOG_BYTES.metric, &["volume"]), "{{volume}}")]),
        panel("Size", "bytes", [(Query::now(&table::VOLUME_SIZE_BYTES.metric, &["volume"]), "{{volume}}")]),
    ]
}

fn times() -> Vec<Panel> {
    vec![
        stages("Stages of a write", Operation::Write),
        stages("Stages of a read", Operation::Read),
        latency("Network of an append", Operation::StreamAppend, Stage::Network),
        latency("Append at its server", Operation::ServeAppend, Stage::Total),
        latency("Read at its server", Operation::ServeRead, Stage::Total),
        latency("Opening a volume", Operation::VolumeOpen, Stage::Total),
    ]
}

fn devices() -> Vec<Panel> {
    let free = Query::now(&table::DEVICE_FREE_BYTES.metric, &["device"]);
    let capacity = Query::now(&table::DEVICE_CAPACITY_BYTES.metric, &["device"]);
    let moved = Query::rate(&table::DEVICE_MOVED_BYTES_TOTAL.metric, &["device", "direction"]);
    vec![
        latency("Device write, until durable", Operation::DeviceWrite, Stage::Total),
        latency("Device read", Operation::DeviceRead, Stage::Total),
        latency("Journal commit", Operation::JournalCommit, Stage::Total),
        panel("Bytes", "Bps", [(moved, "{{device}} {{direction}}")]),
        panel("Queue", "none", [(Query::now(&table::DEVICE_QUEUED.metric, &["device"]), "{{device}}")]),
        panel("Errors", "iops", [(Query::rate(&table::DEVICE_ERRORS_TOTAL.metric, &["device"]), "{{device}}")]),
        panel("Free share", "percentunit", [(free.over(&capacity), "{{device}}")]),
        panel("Chunks", "none", [(Query::now(&table::DEVICE_CHUNKS.metric, &["device"]), "{{device}}")]),
        panel("Damaged chunks found", "none", [(Query::now(&table::ENGINE_CORRUPT_TOTAL.metric, &["device"]), "{{device}}")]),
    ]
}

fn redundancy() -> Vec<Panel> {
    let left = Query::rate(&table::STREAM_LEFT_TOTAL.metric, &[]);
    let seals = Query::rate(&table::STREAM_SEALS_TOTAL.metric, &[]);
    let avoided = Query::now(&table::STREAM_AVOIDED_DEVICES.metric, &["list"]);
    vec![
        panel("Chunks with too few copies", "none", [(Query::now(&table::MASTER_SHORT_CHUNKS.metric, &[]), "chunks")]),
        panel("Orders", "none", [(Query::now(&table::MASTER_ORDERS.metric, &["order"]), "{{order}}")]),
        panel("Repaired", "Bps", [(Query::rate(&table::AGENT_REPAIRED_BYTES_TOTAL.metric, &[]), "bytes")]),
        panel("Chunks sealed", "none", [(seals, "sealed"), (left, "left before they were full")]),
        panel(
            "Bytes that slow copies lack",
            "bytes",
            [(Query::now(&table::STREAM_CHASED_BYTES.metric, &["instance"]), "{{instance}}")],
        ),
        panel("Devices avoided", "none", [(avoided, "{{list}}")]),
        panel("Backup reads", "iops", [(Query::rate(&table::STREAM_BACKUP_READS_TOTAL.metric, &[]), "reads")]),
        panel("Bad copies found by readers", "none", [(Query::now(&table::STREAM_BAD_COPIES_TOTAL.metric, &[]), "copies")]),
        panel("Scrubbed", "Bps", [(Query::rate(&table::ENGINE_SCRUBBED_BYTES_TOTAL.metric, &[]), "bytes")]),
    ]
}

fn control() -> Vec<Panel> {
    let calls = &table::MASTER_CALLS_TOTAL.metric;
    vec![
        panel("Masters that lead", "none", [(Query::now(&table::MASTER_LEADS.metric, &["instance"]), "{{instance}}")]),
        panel("Nodes", "none", [(Query::now(&table::MASTER_NODES.metric, &["state"]), "{{state}}")]),
        panel("Free space of pools", "bytes", [(Query::now(&table::MASTER_POOL_FREE_BYTES.metric, &["pool"]), "{{pool}}")]),
        panel("Calls", "reqps", [(Query::rate(calls, &["call"]), "{{call}}")]),
        panel(
            "Calls that failed",
            "reqps",
            [(Query::rate_where(calls, "code", true, "OK", &["call", "code"]), "{{call}} {{code}}")],
        ),
        latency("Commit of a command", Operation::RaftCommit, Stage::Total),
        panel("CSI calls", "reqps", [(Query::rate(&table::CSI_CALLS_TOTAL.metric, &["call", "code"]), "{{call}} {{code}}")]),
        latency("CSI call", Operation::CsiCall, Stage::Total),
        latency("Attaching a volume", Operation::Attach, Stage::Total),
    ]
}

fn processes() -> Vec<Panel> {
    let of = |metric| Query::now(metric, &["instance"]);
    let cpu = Query::rate(&table::PROCESS_CPU_SECONDS_TOTAL.metric, &["instance"]);
    vec![
        panel("CPU", "percentunit", [(cpu, "{{instance}}")]),
        panel("Memory", "bytes", [(of(&table::PROCESS_RESIDENT_BYTES.metric), "{{instance}}")]),
        panel("I/O buffers in use", "bytes", [(of(&table::BUFFERS_USED_BYTES.metric), "{{instance}}")]),
        panel("Warnings and errors logged", "none", [(Query::rate(&table::LOG_LINES_TOTAL.metric, &["level"]), "{{level}}")]),
        panel(
            "Steps longer than the quantum",
            "none",
            [(Query::rate(&table::CORE_OVERRUNS_TOTAL.metric, &["instance"]), "{{instance}}")],
        ),
        panel("Open files", "none", [(of(&table::PROCESS_OPEN_FILES.metric), "{{instance}}")]),
    ]
}

/// The dashboard: a row for each part of the system.
#[must_use]
pub fn dashboard() -> Value {
    let (mut panels, mut top, mut id) = (Vec::new(), 0, 0);
    for (title, row) in rows() {
        id += 1;
        panels.push(json!({
            "id": id, "type": "row", "title": title, "collapsed": false,
            "gridPos": { "x": 0, "y": top, "w": GRID, "h": 1 },
        }));
        top += 1;
        let lines = row.len().div_ceil(GRID / WIDTH);
        for (index, panel) in row.iter().enumerate() {
            id += 1;
            let place = (index % (GRID / WIDTH) * WIDTH, top + index / (GRID / WIDTH) * HEIGHT);
            panels.push(panel_json(panel, id, place));
        }
        top += lines * HEIGHT;
    }
    json!({
        "uid": "basalt",
        "title": "Basalt",
        "tags": ["basalt", "storage"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [{
            "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source",
        }] },
        "panels": panels,
    })
}

fn panel_json(panel: &Panel, id: usize, (x, y): (usize, usize)) -> Value {
    let targets: Vec<Value> = panel
        .lines
        .iter()
        .zip('A'..='Z')
        .map(|((query, legend), name)| json!({ "refId": name, "expr": query.to_string(), "legendFormat": legend }))
        .collect();
    json!({
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": x, "y": y, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } },
        "targets": targets,
    })
}
