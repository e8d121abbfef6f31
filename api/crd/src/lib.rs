//! What people write to Kubernetes to get a Basalt: the kinds of the group `basalt.storage/v1alpha1`.
//!
//! Contract: the types are the schema. Every field says what it means, every default is seen in what the API server
//! stores, and a rule that refuses an object names the fix. This crate never talks to anybody.

pub mod cluster;
pub mod status;

pub use cluster::{Agents, Csi, Device, Masters, PullPolicy, Sidecar, Sidecars, StorageCluster, StorageClusterSpec};
pub use status::StorageClusterStatus;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// Why the definitions can't be printed.
pub type PrintError = serde_saphyr::ser::Error;

/// The definitions of all kinds, each with the name of its file.
pub fn definitions() -> Vec<(String, CustomResourceDefinition)> {
    [StorageCluster::crd()].into_iter().map(|crd| (format!("{}.yaml", crd.spec.names.plural), crd)).collect()
}

/// One definition as YAML.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, PrintError> {
    serde_saphyr::to_string(definition)
}

#[cfg(test)]
mod tests;
