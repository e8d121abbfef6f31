//! StorageCluster: the masters, agents and CSI plugins of one Basalt.

#![allow(unreachable_pub, reason = "kube's derive makes a copy of each type inside a function")]

use crate::StorageClusterStatus;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Replicated block storage: masters, an agent a node, and the CSI driver.
#[derive(CustomResource, Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "basalt.storage",
    version = "v1alpha1",
    kind = "StorageCluster",
    plural = "storageclusters",
    shortname = "bsc",
    category = "basalt",
    namespaced,
    doc = "A Basalt: masters, an agent on every chosen node, and the CSI driver that makes volumes of their disks.",
    status = "StorageClusterStatus",
    derive = "PartialEq",
    validation = Rule::new("size(self.metadata.name) <= 40")
        .message("the name must have at most 40 characters: choose a shorter metadata.name"),
    printcolumn(json_path = ".status.conditions[?(@.type==\"Available\")].status", name = "Available", type_ = "string"),
    printcolumn(json_path = ".status.conditions[?(@.type==\"Degraded\")].status", name = "Degraded", type_ = "string"),
    printcolumn(json_path = ".status.masters", name = "Masters", type_ = "integer"),
    printcolumn(json_path = ".status.agentsUp", name = "Agents", type_ = "integer"),
    printcolumn(json_path = ".status.volumes", name = "Volumes", type_ = "integer"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageClusterSpec {
    /// Image that holds the program `basalt`. Default: the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When nodes fetch the images.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// The masters.
    #[serde(default)]
    pub masters: Masters,
    /// The agents, which own the disks.
    pub agents: Agents,
    /// The CSI driver.
    pub csi: Csi,
}

/// When nodes fetch an image.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When it isn't there.
    #[default]
    IfNotPresent,
    /// Never: it has to be there.
    Never,
}

impl PullPolicy {
    /// As pods write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The masters: a Raft group that knows where everything is. No data of volumes passes them.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Masters {
    /// How many, each on a node of its own: 1 (no redundancy), 3 or 5. Can't be changed.
    #[serde(default = "three")]
    #[x_kube(
        validation = Rule::new("self in [1, 3, 5]").message("replicas must be 1, 3 or 5: an even number survives no more failures"),
        validation = Rule::new("self == oldSelf").message("masters.replicas can't be changed: set it back")
    )]
    pub replicas: i32,
    /// Folder of the node that keeps a master's log and snapshots. Can't be changed.
    #[serde(default = "master_path")]
    #[schemars(regex(pattern = r"^/[A-Za-z0-9._/-]+$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("masters.dataPath can't be changed: set it back"))]
    pub data_path: String,
    /// Labels of the nodes that masters run on. A master's data stays on its node: label as many nodes as there are
    /// masters. Default: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Seconds of silence after which the copies of a node are made again elsewhere.
    #[serde(default = "minute")]
    #[schemars(range(min = 10, max = 86_400))]
    pub lost_after_seconds: i64,
}

impl Default for Masters {
    fn default() -> Self {
        Self { replicas: three(), data_path: master_path(), node_selector: BTreeMap::new(), lost_after_seconds: minute() }
    }
}

/// The agents: one on each chosen node, with the same devices on each.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Agents {
    /// Labels of the nodes that get an agent. Default: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Devices of each of these nodes. One that holds anything is never formatted: the agent's pod says what it holds.
    #[schemars(length(min = 1, max = 16))]
    pub devices: Vec<Device>,
}

/// A block device, or a file used as one.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.path.startsWith('/dev/') || self.path.startsWith('/var/lib/basalt/')")
        .message("path must be a block device below /dev or a file below /var/lib/basalt: correct the path"),
    validation = Rule::new("self.path.startsWith('/dev/') != has(self.fileSize)")
        .message("fileSize belongs to files and only to them: give it for a path below /var/lib/basalt, leave it out below /dev"),
    validation = Rule::new("!self.path.contains('/../')").message("path must not contain /../: write it out")
)]
pub struct Device {
    /// A block device below /dev, best by a name that stays (/dev/disk/by-id/…), or a file below /var/lib/basalt.
    #[schemars(length(max = 256), regex(pattern = r"^/[A-Za-z0-9._:/-]+$"))]
    pub path: String,
    /// Size of the file, such as 20Gi; it is made and written through once. Only for files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^[1-9][0-9]*(Mi|Gi|Ti)$"))]
    pub file_size: Option<String>,
}

/// The CSI driver: a controller with Kubernetes' sidecars, and a plugin on each node.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Csi {
    /// The sidecars.
    pub sidecars: Sidecars,
    /// Folder of kubelet on the nodes.
    #[serde(default = "kubelet_path")]
    #[schemars(regex(pattern = r"^/[A-Za-z0-9._/-]+$"))]
    pub kubelet_path: String,
}

/// Kubernetes' CSI sidecars.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sidecars {
    /// csi-provisioner: makes and deletes volumes for claims.
    pub provisioner: Sidecar,
    /// csi-attacher: says which node may use a volume.
    pub attacher: Sidecar,
    /// csi-resizer: grows volumes.
    pub resizer: Sidecar,
}

/// One sidecar.
#[derive(Deserialize, Serialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sidecar {
    /// Its image.
    pub image: String,
    /// The program in the image. Default: what the image starts by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

fn three() -> i32 {
    3
}

fn minute() -> i64 {
    60
}

fn master_path() -> String {
    "/var/lib/basalt/master".to_owned()
}

fn kubelet_path() -> String {
    "/var/lib/kubelet".to_owned()
}
