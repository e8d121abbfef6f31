//! The CSI driver: one controller with Kubernetes' sidecars, and a plugin a node.

use super::{CSI_ROLE, Plan, folder, variable, with};
use api_crd::Sidecar;
use serde_json::{Value, json};

const SOCKET: &str = "/csi/csi.sock";

impl Plan<'_> {
    pub(super) fn csi_binding(&self) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": self.binding_name(), "labels": self.labels("csi-controller") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CSI_ROLE },
            "subjects": [{
                "kind": "ServiceAccount",
                "name": format!("{}-csi-controller", self.name),
                "namespace": self.namespace,
            }],
        })
    }

    pub(super) fn csi_controller(&self) -> Value {
        let sidecars = &self.cluster.spec.csi.sidecars;
        let args = vec![
            "csi".to_owned(),
            "--mode=controller".to_owned(),
            format!("--endpoint=unix://{SOCKET}"),
            format!("--masters={}", self.masters().join(",")),
            "--metrics-listen=0.0.0.0:7690".to_owned(),
        ];
        let socket = json!({ "volumeMounts": [{ "name": "socket", "mountPath": "/csi" }] });
        let provisioner = ["--feature-gates=Topology=true", "--default-fstype=ext4", "--timeout=30s"];
        let containers = json!([
            with(self.container("csi", args), socket),
            self.sidecar("provisioner", &sidecars.provisioner, &provisioner),
            self.sidecar("attacher", &sidecars.attacher, &["--timeout=30s"]),
            self.sidecar("resizer", &sidecars.resizer, &["--timeout=30s"]),
        ]);
        let pod = json!({
            "serviceAccountName": format!("{}-csi-controller", self.name),
            "priorityClassName": "system-cluster-critical",
            "terminationGracePeriodSeconds": 5,
            "containers": containers,
            "volumes": [{ "name": "socket", "emptyDir": {} }],
        });
        let deployment = json!({
            "replicas": 1,
            // The sidecars elect no leader: never two of them.
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": self.selector("csi-controller") },
            "template": { "metadata": { "labels": self.labels("csi-controller") }, "spec": pod },
        });
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": self.metadata("csi-controller"), "spec": deployment })
    }

    fn sidecar(&self, name: &str, sidecar: &Sidecar, more: &[&str]) -> Value {
        let mut args = vec![format!("--csi-address={SOCKET}")];
        args.extend(more.iter().map(|&word| word.to_owned()));
        let container = json!({
            "name": name,
            "image": sidecar.image,
            "imagePullPolicy": self.cluster.spec.image_pull_policy.as_str(),
            "args": args,
            "volumeMounts": [{ "name": "socket", "mountPath": "/csi" }],
        });
        match &sidecar.command {
            Some(command) => with(container, json!({ "command": [command] })),
            None => container,
        }
    }

    pub(super) fn csi_nodes(&self) -> Value {
        let kubelet = &self.cluster.spec.csi.kubelet_path;
        let args = vec![
            "csi".to_owned(),
            "--mode=node".to_owned(),
            "--node-name=$(NODE)".to_owned(),
            format!("--endpoint=unix://{kubelet}/plugins/csi.basalt.storage/csi.sock"),
            format!("--kubelet-registry={kubelet}/plugins_registry"),
            "--agent-socket=/run/basalt/attach.sock".to_owned(),
            "--state-dir=/var/lib/basalt/csi".to_owned(),
            "--metrics-listen=0.0.0.0:7691".to_owned(),
        ];
        let container = with(
            self.container("csi", args),
            json!({
                "env": [variable("NODE", "spec.nodeName")],
                "securityContext": { "privileged": true },
                "volumeMounts": [
                    { "name": "kubelet", "mountPath": kubelet, "mountPropagation": "Bidirectional" },
                    { "name": "run", "mountPath": "/run/basalt", "mountPropagation": "HostToContainer" },
                    { "name": "state", "mountPath": "/var/lib/basalt" },
                    { "name": "dev", "mountPath": "/dev" },
                ],
            }),
        );
        let pod = json!({
            "serviceAccountName": format!("{}-csi-node", self.name),
            "automountServiceAccountToken": false,
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": self.cluster.spec.agents.node_selector,
            "containers": [container],
            "volumes": [
                folder("kubelet", kubelet, "Directory"),
                folder("run", "/run/basalt", "DirectoryOrCreate"),
                folder("state", "/var/lib/basalt", "DirectoryOrCreate"),
                folder("dev", "/dev", "Directory"),
            ],
        });
        self.daemon_set("csi-node", "RollingUpdate", pod)
    }
}
