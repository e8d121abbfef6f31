//! What a development cluster looks like in its directory, and the two files that describe it.
//!
//! ```text
//! cluster.json           what was asked for, and which processes run
//! basalt.json            how the other commands find the cluster
//! masters/1 2 3          Raft log and snapshots of each
//! agents/node-a/         device-0.img, run/ (sockets, attachments)
//! csi/                   csi.sock, staging and publish folders
//! logs/                  one log a process
//! mnt/NAME               the volume, mounted
//! ```

use super::process::Running;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The longest path a unix socket may have (unix(7): 108 bytes with the ending zero).
const SOCKET_PATH_MAX: usize = 107;

/// What was asked for when the cluster was made. Fixed from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) masters: u8,
    pub(crate) agents: u8,
    pub(crate) device_bytes: u64,
    pub(crate) base_port: u16,
}

/// `cluster.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) plan: Plan,
    /// As the masters drew it when they came up first.
    pub(crate) cluster: Option<String>,
    pub(crate) processes: BTreeMap<String, Running>,
    /// Volumes mounted through CSI: name to volume handle.
    pub(crate) mounted: BTreeMap<String, String>,
}

/// Paths and addresses that follow from directory and plan.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) dir: PathBuf,
}

/// One agent's name and addresses.
#[derive(Clone, Debug)]
pub(crate) struct AgentSite {
    pub(crate) node: String,
    pub(crate) device: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) listen: String,
    pub(crate) metrics: String,
}

/// One master's number and addresses.
#[derive(Clone, Debug)]
pub(crate) struct MasterSite {
    pub(crate) id: u64,
    pub(crate) listen: String,
    pub(crate) metrics: String,
    pub(crate) data_dir: PathBuf,
}

impl Layout {
    /// The layout of `dir`, which is made when it isn't there.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("could not make the directory {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("could not resolve {}", dir.display()))?;
        let layout = Layout { dir };
        let longest = layout.dir.join("agents/node-a/run/attach.sock");
        if longest.as_os_str().len() > SOCKET_PATH_MAX {
            bail!("the path {} is too long for a unix socket: choose a shorter --dir", longest.display());
        }
        for part in ["masters", "agents", "csi", "logs", "mnt"] {
            std::fs::create_dir_all(layout.dir.join(part))
                .with_context(|| format!("could not make {part} in {}", layout.dir.display()))?;
        }
        Ok(layout)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    pub(crate) fn csi_socket(&self) -> PathBuf {
        self.dir.join("csi/csi.sock")
    }

    pub(crate) fn staging(&self, volume: &str) -> PathBuf {
        self.dir.join("csi/staging").join(volume)
    }

    pub(crate) fn mount(&self, volume: &str) -> PathBuf {
        self.dir.join("mnt").join(volume)
    }

    fn cluster_file(&self) -> PathBuf {
        self.dir.join("cluster.json")
    }

    pub(crate) fn masters(&self, plan: &Plan) -> Vec<MasterSite> {
        (0..plan.masters)
            .map(|number| MasterSite {
                id: u64::from(number) + 1,
                listen: local(plan.base_port + u16::from(number)),
                metrics: local(plan.base_port + 50 + u16::from(number)),
                data_dir: self.dir.join(format!("masters/{}", number + 1)),
            })
            .collect()
    }

    pub(crate) fn agents(&self, plan: &Plan) -> Vec<AgentSite> {
        (0..plan.agents)
            .map(|number| {
                let node = format!("node-{}", char::from(b'a' + number));
                let home = self.dir.join("agents").join(&node);
                AgentSite {
                    device: home.join("device-0.img"),
                    run_dir: home.join("run"),
                    socket: home.join("run/attach.sock"),
                    listen: local(plan.base_port + 100 + u16::from(number)),
                    metrics: local(plan.base_port + 150 + u16::from(number)),
                    node,
                }
            })
            .collect()
    }

    /// The cluster that is here, if there is one.
    pub(crate) fn load(&self) -> Result<Option<Cluster>> {
        let path = self.cluster_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
        };
        let cluster = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: mend it, or remove the directory to start anew", path.display()))?;
        Ok(Some(cluster))
    }

    /// Remembers the cluster: written aside and renamed, so that a crash leaves the old or the new file.
    pub(crate) fn save(&self, cluster: &Cluster) -> Result<()> {
        write_whole(&self.cluster_file(), &serde_json::to_vec_pretty(cluster)?)?;
        let plan = &cluster.plan;
        let agents: Vec<_> =
            self.agents(plan).into_iter().map(|agent| serde_json::json!({"node": agent.node, "socket": agent.socket})).collect();
        let found = serde_json::json!({
            "masters": self.masters(plan).into_iter().map(|master| master.listen).collect::<Vec<_>>(),
            "cluster": cluster.cluster,
            "agents": agents,
            "csi": self.csi_socket(),
        });
        write_whole(&self.dir.join("basalt.json"), &serde_json::to_vec_pretty(&found)?)
    }
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = path.with_extension("json.new");
    std::fs::write(&aside, bytes).with_context(|| format!("could not write {}", aside.display()))?;
    std::fs::rename(&aside, path).with_context(|| format!("could not put {} in place", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { masters: 3, agents: 4, device_bytes: 1 << 30, base_port: 17_100 }
    }

    #[test]
    fn a_saved_cluster_loads_again() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert!(layout.load().unwrap().is_none());
        let program =
            super::super::process::Program { name: "master-1".into(), args: vec!["master".into()], log: "m.log".into() };
        let processes = BTreeMap::from([("master-1".to_owned(), Running { pid: 1, start_ticks: 2, program })]);
        layout.save(&Cluster { plan: plan(), cluster: None, processes: processes.clone(), mounted: BTreeMap::new() }).unwrap();
        let loaded = layout.load().unwrap().unwrap();
        assert_eq!((loaded.plan, loaded.processes), (plan(), processes));
        assert!(dir.path().join("basalt.json").exists());
    }

    #[test]
    fn no_two_listeners_share_an_address() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let mut all: Vec<String> = layout.masters(&plan()).into_iter().flat_map(|m| [m.listen, m.metrics]).collect();
        all.extend(layout.agents(&plan()).into_iter().flat_map(|a| [a.listen, a.metrics]));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_directory_too_deep_for_a_socket_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Layout::new(&dir.path().join("x".repeat(100))).unwrap_err();
        assert!(error.to_string().contains("choose a shorter --dir"), "{error}");
    }
}
