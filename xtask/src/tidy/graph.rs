//! Who may use whom. The picture is in ARCHITECTURE.md.

use super::Finding;
use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeSet;
use std::path::Path;

const API: [&str; 3] = ["api-types", "api-wire", "api-telemetry"];

/// What each room may use. A room that isn't here may use nothing.
const ALLOWED: [(&str, &[&str]); 20] = [
    ("api-types", &[]),
    ("api-wire", &["api-types"]),
    ("api-telemetry", &["api-types"]),
    ("api-crd", &[]),
    ("client-stream", &["api-types"]),
    ("client-volume", &["api-types", "client-stream"]),
    ("nodeagent-reactor", &["api-types"]),
    ("nodeagent-device", &["api-types", "nodeagent-reactor"]),
    ("nodeagent-engine", &["api-types", "nodeagent-reactor", "nodeagent-device"]),
    ("nodeagent-frontend", &["api-types", "nodeagent-reactor", "client-volume"]),
    (
        "nodeagent-agent",
        &[
            "api-types",
            "api-wire",
            "api-telemetry",
            "client-stream",
            "client-volume",
            "nodeagent-reactor",
            "nodeagent-device",
            "nodeagent-engine",
            "nodeagent-frontend",
        ],
    ),
    ("master-state", &["api-types"]),
    ("master-raft", &["api-types", "api-wire", "api-telemetry", "master-state"]),
    ("master-server", &["api-types", "api-wire", "api-telemetry", "master-state", "master-raft"]),
    ("csi", &API),
    ("operator", &["api-wire", "api-telemetry", "api-crd"]),
    // The one binary: it starts every process, and formats devices.
    (
        "cli",
        &[
            "api-types",
            "api-wire",
            "api-telemetry",
            "api-crd",
            "csi",
            "operator",
            "master-server",
            "nodeagent-agent",
            "nodeagent-frontend",
            "nodeagent-engine",
            "nodeagent-device",
            "nodeagent-reactor",
        ],
    ),
    (
        "sim",
        &[
            "api-types",
            "client-stream",
            "client-volume",
            "nodeagent-reactor",
            "nodeagent-device",
            "nodeagent-engine",
            "master-state",
            "master-raft",
        ],
    ),
    ("e2e", &["api-types", "api-wire", "client-stream", "client-volume", "nodeagent-device", "nodeagent-engine"]),
    ("xtask", &[]),
];

/// Used by nobody, tests included.
const LAST: [&str; 3] = ["sim", "e2e", "xtask"];

pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec().context("reading the crate graph")?;
    let rooms: BTreeSet<_> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let manifest = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path).to_string();
        for dependency in package.dependencies.iter().filter(|dependency| rooms.contains(&dependency.name)) {
            if let Some(what) = objection(package.name.as_ref(), &dependency.name, dependency.kind) {
                findings.push(Finding { path: manifest.clone(), line: 1, what });
            }
        }
    }
    Ok(findings)
}

/// Why one room may not use another.
fn objection(user: &str, used: &str, kind: DependencyKind) -> Option<String> {
    if LAST.contains(&used) {
        return Some(format!("nobody uses {used}"));
    }
    // Tests may look across: a conformance suite needs the other side.
    if kind == DependencyKind::Development {
        return None;
    }
    let allowed = ALLOWED.iter().find(|(room, _)| *room == user).map_or(&[][..], |(_, allowed)| allowed);
    let also = || if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
    (!allowed.contains(&used)).then(|| format!("{user} may not use {used}, only {}: see ARCHITECTURE.md", also()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_circle() {
        for (room, uses) in ALLOWED {
            for used in uses {
                let back = ALLOWED.iter().find(|(name, _)| name == used).map_or(&[][..], |(_, uses)| uses);
                assert!(!back.contains(&room), "{room} and {used} use each other");
                assert!(!LAST.contains(used));
            }
        }
    }

    #[test]
    fn a_forbidden_use_is_told() {
        assert!(objection("client-stream", "nodeagent-engine", DependencyKind::Normal).is_some());
        assert!(objection("client-stream", "nodeagent-engine", DependencyKind::Development).is_none());
        assert!(objection("client-stream", "sim", DependencyKind::Development).is_some());
        assert!(objection("nodeagent-agent", "client-volume", DependencyKind::Normal).is_none());
        assert!(objection("a-new-room", "api-types", DependencyKind::Normal).is_some());
    }
}
