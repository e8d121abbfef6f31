//! A claim and the pod that uses it.

use super::{Api, images};
use anyhow::Result;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use std::time::Instant;

/// The namespace the tests' claims and pods are in.
pub const SPACE: &str = "default";

/// For figures that are printed; nothing is decided by them.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test measures real time")]
    Instant::now()
}

/// One claim, and at most one pod that uses it, both of this name.
pub struct Workload<'a> {
    api: &'a Api,
    name: String,
    block: std::cell::Cell<bool>,
}

impl<'a> Workload<'a> {
    /// A new one. What an interrupted run left under its name is removed.
    pub fn new(api: &'a Api, name: &str) -> Self {
        let workload = Workload { api, name: name.to_owned(), block: std::cell::Cell::new(false) };
        workload.remove().expect("the remains of an earlier run");
        workload
    }

    /// The pods of that namespace.
    pub fn pods(&self) -> kube::Api<Pod> {
        self.api.namespaced(SPACE)
    }

    /// The claims of that namespace.
    pub fn claims(&self) -> kube::Api<PersistentVolumeClaim> {
        self.api.namespaced(SPACE)
    }

    /// Claims a volume, as `Filesystem` or `Block`.
    pub fn claim(&self, size: &str, mode: &str) -> Result<()> {
        self.block.set(mode == "Block");
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.name},
            "spec": {
                "storageClassName": "basalt", "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
                "resources": {"requests": {"storage": size}},
            },
        });
        self.api.create(&self.claims(), claim)
    }

    /// Starts a pod with it on a node and waits until it runs. A filesystem is at /data, a device at /dev/volume.
    pub fn run_on(&self, node: &str) -> Result<()> {
        self.start_on(node, "exec sleep 100000")?;
        self.api.wait_pod(SPACE, &self.name)
    }

    /// Starts a pod that runs this script.
    pub fn start_on(&self, node: &str, script: &str) -> Result<()> {
        let mut container = json!({
            "name": "main", "image": images::TOOLBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-ec", script],
        });
        let (key, place): (&str, Value) = if self.block.get() {
            ("volumeDevices", json!([{"name": "volume", "devicePath": "/dev/volume"}]))
        } else {
            ("volumeMounts", json!([{"name": "volume", "mountPath": "/data"}]))
        };
        container[key] = place;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "terminationGracePeriodSeconds": 1,
                "restartPolicy": "Never",
                "containers": [container],
                "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": self.name}}],
            },
        });
        self.api.create(&self.pods(), pod)
    }

    /// Runs a script in the pod.
    pub fn shell(&self, script: &str) -> Result<String> {
        self.api.shell(SPACE, &self.name, script)
    }

    /// How the pod stands: Running, Succeeded, Failed.
    pub fn phase(&self) -> Result<String> {
        let pod = self.api.run(self.pods().get(&self.name))?;
        Ok(pod.status.and_then(|status| status.phase).unwrap_or_default())
    }

    /// The pod's output.
    pub fn log(&self) -> Result<String> {
        self.api.kubectl(&["logs", "-n", SPACE, &self.name])
    }

    /// Deletes the pod and waits until it is gone.
    pub fn stop(&self) -> Result<()> {
        self.api.delete(&self.pods(), &self.name)
    }

    /// Deletes pod and claim and waits until the volume is gone too.
    pub fn remove(&self) -> Result<()> {
        let claim = self.api.run(self.claims().get_opt(&self.name))?;
        self.stop()?;
        self.api.delete(&self.claims(), &self.name)?;
        let Some(volume) = claim.and_then(|claim| claim.spec).and_then(|spec| spec.volume_name) else { return Ok(()) };
        let volumes = self.api.cluster::<PersistentVolume>();
        self.api.wait(&format!("the end of {volume}"), || Ok(self.api.run(volumes.get_opt(&volume))?.is_none()))
    }
}
