//! What a StorageCluster becomes: the objects as they are applied, made without asking anybody.

mod csi;
mod storage;

use api_crd::StorageCluster;
use serde_json::{Value, json};

/// Port that masters are reached at.
pub const MASTER_PORT: u16 = 7300;
/// Role that the chart makes for CSI controllers.
pub const CSI_ROLE: &str = "basalt-csi-controller";

/// What the objects are made from.
pub struct Plan<'a> {
    /// Name of the StorageCluster, first word of every object's.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its unique id, so that Kubernetes removes the objects with it.
    pub uid: &'a str,
    /// The StorageCluster.
    pub cluster: &'a StorageCluster,
    /// Image of the operator, for clusters that name none.
    pub image: &'a str,
    /// Domain of the Kubernetes cluster.
    pub domain: &'a str,
}

impl Plan<'_> {
    /// `host:port` of each master, the first with number 1.
    pub fn masters(&self) -> Vec<String> {
        (1..=self.cluster.spec.masters.replicas).map(|number| self.master(&format!("{}-master-{number}", self.name))).collect()
    }

    fn master(&self, pod: &str) -> String {
        format!("{pod}.{}-masters.{}.svc.{}:{MASTER_PORT}", self.name, self.namespace, self.domain)
    }

    /// Every object, in the order they are applied. Agents and what needs them come once the masters have told which
    /// `cluster` they are, and that is on record.
    pub fn objects(&self, cluster: Option<&str>) -> Vec<Value> {
        let mut objects = vec![self.account("master"), self.masters_service(), self.masters_budget()];
        objects.push(self.masters_set(cluster.is_some()));
        if let Some(cluster) = cluster {
            objects.extend([self.account("agent"), self.keepers(), self.agents(cluster)]);
            objects.extend([self.account("csi-node"), self.csi_nodes()]);
            objects.extend([self.account("csi-controller"), self.csi_binding(), self.csi_controller()]);
        }
        objects
    }

    /// Name of the one object that belongs to no namespace, and so is not removed with the StorageCluster.
    pub fn binding_name(&self) -> String {
        format!("basalt-{}-{}-csi-controller", self.namespace, self.name)
    }

    fn metadata(&self, part: &str) -> Value {
        json!({
            "name": format!("{}-{part}", self.name),
            "namespace": self.namespace,
            "labels": self.labels(part),
            "ownerReferences": [{
                "apiVersion": "basalt.storage/v1alpha1",
                "kind": "StorageCluster",
                "name": self.name,
                "uid": self.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        })
    }

    fn labels(&self, part: &str) -> Value {
        json!({
            "app.kubernetes.io/name": "basalt",
            "app.kubernetes.io/component": part,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "basalt-operator",
        })
    }

    fn selector(&self, part: &str) -> Value {
        json!({ "app.kubernetes.io/component": part, "app.kubernetes.io/instance": self.name })
    }

    /// An account of its own for each part. Only the CSI controller talks to the API server, only it gets a token.
    fn account(&self, part: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": self.metadata(part),
            "automountServiceAccountToken": part == "csi-controller",
        })
    }

    fn daemon_set(&self, part: &str, strategy: &str, pod: Value) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": self.metadata(part),
            "spec": {
                "selector": { "matchLabels": self.selector(part) },
                "updateStrategy": { "type": strategy },
                "template": { "metadata": { "labels": self.labels(part) }, "spec": pod },
            },
        })
    }

    /// A container of Basalt's own image.
    fn container(&self, name: &str, args: Vec<String>) -> Value {
        json!({
            "name": name,
            "image": self.cluster.spec.image.as_deref().unwrap_or(self.image),
            "imagePullPolicy": self.cluster.spec.image_pull_policy.as_str(),
            "args": args,
        })
    }
}

/// An object with more fields.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}

/// A variable out of the pod's own description.
fn variable(name: &str, field: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } })
}

/// A folder of the node.
fn folder(name: &str, path: &str, kind: &str) -> Value {
    json!({ "name": name, "hostPath": { "path": path, "type": kind } })
}

#[cfg(test)]
mod tests;
