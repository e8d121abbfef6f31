//! Masters, agents and the keepers beside them.

use super::{Plan, folder, variable, with};
use api_crd::Device;
use serde_json::{Value, json};

const STATE: &str = "/var/lib/basalt";
const RUN: &str = "/run/basalt";

impl Plan<'_> {
    pub(super) fn masters_service(&self) -> Value {
        let spec = json!({
            "clusterIP": "None",
            // They must find each other before they are ready.
            "publishNotReadyAddresses": true,
            "selector": self.selector("master"),
            "ports": [{ "name": "grpc", "port": super::MASTER_PORT }],
        });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": self.metadata("masters"), "spec": spec })
    }

    /// Evictions take one master at a time.
    pub(super) fn masters_budget(&self) -> Value {
        let spec = json!({ "maxUnavailable": 1, "selector": { "matchLabels": self.selector("master") } });
        json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": self.metadata("master"), "spec": spec })
    }

    /// Once the cluster is on record, the pods that come no longer name the first members: a master that finds its folder
    /// empty, on another node or after a loss, then waits to be added, and never votes without its memory.
    fn master_args(&self, recorded: bool) -> Vec<String> {
        let mut args = vec![
            "master".to_owned(),
            "run".to_owned(),
            "--id=$(NUMBER)".to_owned(),
            format!("--advertise={}", self.master("$(POD)")),
            "--data-dir=/data".to_owned(),
            format!("--lost-after={}", self.cluster.spec.masters.lost_after_seconds),
            "--metrics-listen=0.0.0.0:7390".to_owned(),
        ];
        if !recorded {
            let members: Vec<_> = (1..).zip(self.masters()).map(|(number, address)| format!("{number}={address}")).collect();
            args.push(format!("--initial={}", members.join(",")));
        }
        args
    }

    pub(super) fn masters_set(&self, recorded: bool) -> Value {
        let spec = &self.cluster.spec.masters;
        let number = variable("NUMBER", "metadata.labels['apps.kubernetes.io/pod-index']");
        let container = with(
            self.container("master", self.master_args(recorded)),
            json!({
                "env": [variable("POD", "metadata.name"), number],
                "readinessProbe": { "httpGet": { "path": "/readyz", "port": 7390 }, "periodSeconds": 2 },
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }),
        );
        let apart =
            json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": self.selector("master") } }]);
        let pod = json!({
            "serviceAccountName": format!("{}-master", self.name),
            "automountServiceAccountToken": false,
            "priorityClassName": "system-cluster-critical",
            "terminationGracePeriodSeconds": 10,
            "nodeSelector": spec.node_selector,
            "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": apart } },
            "containers": [container],
            "volumes": [folder("data", &spec.data_path, "DirectoryOrCreate")],
        });
        let set = json!({
            "serviceName": format!("{}-masters", self.name),
            "replicas": spec.replicas,
            // Numbers of masters start at 1.
            "ordinals": { "start": 1 },
            "podManagementPolicy": "Parallel",
            // A changed template must not take masters down by itself: not before somebody has looked at the quorum.
            "updateStrategy": { "type": "OnDelete" },
            "selector": { "matchLabels": self.selector("master") },
            "template": { "metadata": { "labels": self.labels("master") }, "spec": pod },
        });
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": self.metadata("master"), "spec": set })
    }

    /// Nobody restarts keepers with the agents: mounted volumes live in them.
    pub(super) fn keepers(&self) -> Value {
        let check = json!(["basalt", "fuse-keeper", format!("--run-dir={RUN}"), "--check"]);
        let container = with(
            self.container("keeper", vec!["fuse-keeper".to_owned(), format!("--run-dir={RUN}")]),
            json!({
                "readinessProbe": { "exec": { "command": check }, "periodSeconds": 5 },
                "securityContext": { "privileged": true },
                "volumeMounts": [
                    { "name": "run", "mountPath": RUN, "mountPropagation": "Bidirectional" },
                    { "name": "dev", "mountPath": "/dev" },
                ],
            }),
        );
        let pod = json!({
            "serviceAccountName": format!("{}-agent", self.name),
            "automountServiceAccountToken": false,
            "priorityClassName": "system-node-critical",
            "nodeSelector": self.cluster.spec.agents.node_selector,
            "containers": [container],
            "volumes": [folder("run", RUN, "DirectoryOrCreate"), folder("dev", "/dev", "Directory")],
        });
        self.daemon_set("keeper", "OnDelete", pod)
    }

    pub(super) fn agents(&self, cluster: &str) -> Value {
        let mounts = json!([
            { "name": "disks", "mountPath": STATE },
            { "name": "run", "mountPath": RUN, "mountPropagation": "Bidirectional" },
            { "name": "dev", "mountPath": "/dev" },
        ]);
        let format = with(
            self.container("format", Vec::new()),
            json!({
                "command": ["/bin/sh", "-ec", script(&self.cluster.spec.agents.devices, cluster)],
                "securityContext": { "privileged": true },
                "volumeMounts": mounts,
            }),
        );
        let agent = with(
            self.container("agent", self.agent_args(cluster)),
            json!({
                "env": [variable("NODE", "spec.nodeName"), variable("ADDRESS", "status.hostIP")],
                "readinessProbe": { "httpGet": { "path": "/readyz", "port": 7491 }, "periodSeconds": 2 },
                "securityContext": { "privileged": true },
                "volumeMounts": mounts,
            }),
        );
        let pod = json!({
            "serviceAccountName": format!("{}-agent", self.name),
            "automountServiceAccountToken": false,
            "priorityClassName": "system-node-critical",
            "hostNetwork": true,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "terminationGracePeriodSeconds": 10,
            "nodeSelector": self.cluster.spec.agents.node_selector,
            "initContainers": [format],
            "containers": [agent],
            "volumes": [
                folder("disks", STATE, "DirectoryOrCreate"),
                folder("run", RUN, "DirectoryOrCreate"),
                folder("dev", "/dev", "Directory"),
            ],
        });
        self.daemon_set("agent", "OnDelete", pod)
    }

    fn agent_args(&self, cluster: &str) -> Vec<String> {
        let mut args = vec![
            "agent".to_owned(),
            "--node-name=$(NODE)".to_owned(),
            format!("--cluster={cluster}"),
            format!("--masters={}", self.masters().join(",")),
            "--listen=0.0.0.0:7401".to_owned(),
            "--advertise-host=$(ADDRESS)".to_owned(),
            format!("--run-dir={RUN}"),
            format!("--fuse-keeper={RUN}/keeper.sock"),
            "--metrics-listen=0.0.0.0:7491".to_owned(),
        ];
        args.extend(self.cluster.spec.agents.devices.iter().map(|device| format!("--device={}", device.path)));
        args
    }
}

/// Makes each device ours, unless it is already. `basalt device format` refuses one that holds anything. A file gets its
/// name only when it is whole.
fn script(devices: &[Device], cluster: &str) -> String {
    let step = |device: &Device| {
        let path = quoted(&device.path);
        let format = format!("basalt device format --cluster {cluster}");
        match &device.file_size {
            None => format!("basalt -o json device inspect {path} | grep -q '\"cluster\": *\"{cluster}\"' || {format} {path}\n"),
            Some(size) => format!(
                "if [ ! -e {path} ]; then rm -f {path}.new; {format} --size {} {path}.new; mv {path}.new {path}; fi\n",
                quoted(size)
            ),
        }
    };
    devices.iter().map(step).collect()
}

/// As one word for a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
