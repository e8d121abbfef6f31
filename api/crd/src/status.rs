//! What the operator says of a StorageCluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was last seen of the cluster.
#[derive(Deserialize, Serialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageClusterStatus {
    /// The generation of the spec that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Id of the cluster, drawn by its masters at their first start (a UUID).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Masters that take part in the Raft group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masters: Option<i64>,
    /// Nodes whose agent is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents_up: Option<i64>,
    /// Volumes that the masters know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<i64>,
    /// Chunks with fewer copies than they should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_replicated_chunks: Option<i64>,
    /// Available: volumes can be made and used. Progressing: something that the spec asks for is not done as yet.
    /// Degraded: something that should be up is not, or copies are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
