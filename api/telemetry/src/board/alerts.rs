//! Alert rules, in the JSON form of Prometheus' rule files. Each says what it means for the user and what to look at.

use super::Query;
use crate::latency::{Operation, Stage};
use crate::table;
use serde_json::{Value, json};

struct Alert {
    name: &'static str,
    when: Query,
    /// How long it must be so.
    lasting: &'static str,
    severity: &'static str,
    summary: &'static str,
    description: &'static str,
}

fn rules() -> Vec<Alert> {
    let mut all = redundancy();
    all.extend(capacity());
    all.extend(health());
    all
}

fn redundancy() -> Vec<Alert> {
    let short = Query::now(&table::MASTER_SHORT_CHUNKS.metric, &[]);
    vec![
        Alert {
            name: "BasaltRedundancyReduced",
            when: short.is(">", 0.0),
            lasting: "10m",
            severity: "warning",
            summary: "Some chunks have fewer copies than wanted",
            description: "{{ $value }} chunks are not whole on all their copies and repair has not caught up in ten minutes. \
                Another failure may make data unreadable. See `basalt status` for nodes and devices that are not up.",
        },
        Alert {
            name: "BasaltNodeLost",
            when: Query::now_where(&table::MASTER_NODES.metric, "state", "lost", &[]).is(">", 0.0),
            lasting: "1m",
            severity: "warning",
            summary: "A storage node has been silent for too long",
            description: "Its copies are made again elsewhere. Bring the node back, or forget it with `basalt node forget`.",
        },
        Alert {
            name: "BasaltBadCopies",
            when: Query::rate(&table::STREAM_BAD_COPIES_TOTAL.metric, &["instance"]).is(">", 0.0),
            lasting: "0m",
            severity: "warning",
            summary: "Readers found copies that do not verify",
            description: "Another copy was read and the bad one is being repaired. Look at the disks' own error counters.",
        },
        Alert {
            name: "BasaltScrubFoundDamage",
            when: Query::rate(&table::ENGINE_CORRUPT_TOTAL.metric, &["device"]).is(">", 0.0),
            lasting: "0m",
            severity: "warning",
            summary: "Device {{ $labels.device }} holds bytes that changed at rest",
            description: "Scrubbing found units that do not verify. They are repaired from other copies; a disk that goes on \
                doing this should be replaced.",
        },
    ]
}

fn capacity() -> Vec<Alert> {
    let free = Query::now(&table::DEVICE_FREE_BYTES.metric, &["device"]);
    let share = free.over(&Query::now(&table::DEVICE_CAPACITY_BYTES.metric, &["device"]));
    vec![
        Alert {
            name: "BasaltPoolFull",
            when: Query::now(&table::MASTER_POOL_FREE_BYTES.metric, &["pool"]).is("==", 0.0),
            lasting: "1m",
            severity: "critical",
            summary: "Pool {{ $labels.pool }} is full: writes will fail",
            description: "Add devices or nodes, or delete volumes. Discards and deletions still work, and writes go on as soon \
                as space is free.",
        },
        Alert {
            name: "BasaltDeviceNearlyFull",
            when: share.is("<", 0.1),
            lasting: "10m",
            severity: "warning",
            summary: "Device {{ $labels.device }} has less than 10 % left",
            description: "Reclaim works harder and slows writes down as space gets short. Add capacity before it runs out.",
        },
    ]
}

fn health() -> Vec<Alert> {
    let requests = &table::FRONTEND_REQUESTS_TOTAL.metric;
    vec![
        Alert {
            name: "BasaltNoLeader",
            when: Query::now(&table::MASTER_LEADS.metric, &[]).is("<", 1.0),
            lasting: "1m",
            severity: "critical",
            summary: "No master leads",
            description: "Attached volumes go on until the chunks granted to them are full; nothing can be attached, made or \
                repaired. A majority of the masters must run and reach each other.",
        },
        Alert {
            name: "BasaltRequestsFail",
            when: Query::rate_where(requests, "result", false, "error", &["instance"]).is(">", 0.0),
            lasting: "1m",
            severity: "critical",
            summary: "The agent {{ $labels.instance }} answers block requests with errors",
            description: "Filesystems on it may turn read-only. See the agent's log and `basalt status`.",
        },
        Alert {
            name: "BasaltDeviceErrors",
            when: Query::rate(&table::DEVICE_ERRORS_TOTAL.metric, &["device"]).is(">", 0.0),
            lasting: "0m",
            severity: "warning",
            summary: "Device {{ $labels.device }} fails requests",
            description: "After a number of errors it counts as failed, and its copies are made again elsewhere.",
        },
        Alert {
            name: "BasaltWritesSlow",
            when: Query::quantile(0.99, Operation::Write, Stage::Total, &["instance"]).is(">", 0.1),
            lasting: "5m",
            severity: "warning",
            summary: "One write in a hundred takes more than 100 ms on {{ $labels.instance }}",
            description: "Compare the stages of a write on the dashboard: queue, network, device. `basalt volume trace` shows \
                single operations with the device that each copy is on.",
        },
        Alert {
            name: "BasaltDevicesAvoided",
            when: Query::now(&table::STREAM_AVOIDED_DEVICES.metric, &["instance", "list"]).is(">", 0.0),
            lasting: "10m",
            severity: "warning",
            summary: "{{ $labels.instance }} stays away from {{ $value }} devices",
            description: "They did not answer, or too slowly, for ten minutes. New chunks are placed elsewhere.",
        },
        Alert {
            name: "BasaltCoreStalled",
            when: Query::rate(&table::CORE_STALLS_TOTAL.metric, &["instance"]).is(">", 0.0),
            lasting: "0m",
            severity: "warning",
            summary: "A data core of {{ $labels.instance }} was held for more than a second",
            description: "Everything that this core serves waited meanwhile. The agent's log names the task.",
        },
    ]
}

/// One group with all rules.
#[must_use]
pub fn alerts() -> Value {
    let rules: Vec<Value> = rules()
        .into_iter()
        .map(|alert| {
            json!({
                "alert": alert.name,
                "expr": alert.when.to_string(),
                "for": alert.lasting,
                "labels": { "severity": alert.severity },
                "annotations": { "summary": alert.summary, "description": alert.description },
            })
        })
        .collect();
    json!({ "groups": [{ "name": "basalt", "rules": rules }] })
}
