//! Basalt on a lab, by the plain manifests of `e2e/kube/manifests`.

use super::api::Api;
use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::DaemonSet;
use serde::Deserialize;

/// Its namespace.
pub const NAMESPACE: &str = "basalt";

const MASTERS: &str = include_str!("../../kube/manifests/masters.yaml");
const AGENTS: &str = include_str!("../../kube/manifests/agents.yaml");
const CSI: &str = include_str!("../../kube/manifests/csi.yaml");

/// What `basalt status` says of the cluster.
#[derive(Deserialize)]
struct Status {
    cluster: String,
    leader: Option<u64>,
    volumes: Vec<serde::de::IgnoredAny>,
}

fn status(api: &Api) -> Result<Status> {
    let text = command(api, "basalt -o json status --masters 127.0.0.1:7300")?;
    serde_json::from_str(&text).context("the answer of `basalt status`")
}

/// Installs it, unless it is there, and waits until all of it is ready.
pub fn install(api: &Api) -> Result<()> {
    let daemon_sets = api.namespaced::<DaemonSet>(NAMESPACE);
    if api.run(daemon_sets.get_opt("csi-node"))?.is_none() {
        api.apply(MASTERS)?;
        api.wait_ready(NAMESPACE, "app=basalt-master", 3)?;
        api.apply(&AGENTS.replace("CLUSTER", &status(api)?.cluster))?;
        api.apply(CSI)?;
    }
    api.wait_ready(NAMESPACE, "app=basalt-agent", 3)?;
    api.wait_ready(NAMESPACE, "app=basalt-csi-node", 3)?;
    api.wait_ready(NAMESPACE, "app=basalt-csi-controller", 1)
}

/// Runs a command of Basalt's in a master that answers.
pub fn command(api: &Api, script: &str) -> Result<String> {
    let mut last = None;
    for master in ["master-1", "master-2", "master-3"] {
        match api.shell(NAMESPACE, master, script) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("there are no masters")?)
}

/// Pod of the leading master.
pub fn leader(api: &Api) -> Result<String> {
    Ok(format!("master-{}", status(api)?.leader.context("no master leads")?))
}

/// How many volumes the masters know.
pub fn volumes(api: &Api) -> Result<usize> {
    Ok(status(api)?.volumes.len())
}
