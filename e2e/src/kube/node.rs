//! One node: namespaces of this kernel with a containerd and a kubelet in them. Ended like a machine that lost its power.

use super::cgroup::Groups;
use super::control_plane::proxy_config;
use super::network::{self, Namespace};
use super::pki::Pki;
use super::process::Daemons;
use super::programs::Programs;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image of the container that holds a pod's network.
pub(crate) const PAUSE_IMAGE: &str = "registry.local/pause:1";

/// What the node's first process runs.
const INIT: &str = include_str!("../../kube/node-init.sh");

/// See the module.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) name: String,
    /// From 1.
    pub(crate) number: usize,
    /// How many nodes the lab has.
    pub(crate) nodes: usize,
    /// Its folder in the lab.
    pub(crate) dir: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) network: Namespace,
    pub(crate) hub: Namespace,
    pub(crate) programs: Programs,
    pub(crate) pki: Pki,
    pub(crate) daemons: Daemons,
}

impl Node {
    /// Its name, as Kubernetes has it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder, in which `basalt` is what the node sees as /var/lib/basalt.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn daemon(&self) -> String {
        format!("node-{}", self.name)
    }

    fn groups(&self) -> Groups {
        Groups::named(&self.network.0)
    }

    /// Starts it, unless it runs. What it had on its disk is still there.
    pub fn start(&self) -> Result<()> {
        if self.daemons.find(&self.daemon()).is_some() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.dir)?;
        self.write_configs()?;
        // Of an earlier life.
        self.clear()?;
        self.network.make_node(&self.hub, self.number, self.nodes)?;
        let groups = self.groups().make()?;
        // The shell enters the groups before the new control-group namespace is made, which takes them as its root.
        let mut script = String::new();
        for group in groups {
            script += &format!("echo $$ > {}/cgroup.procs\n", group.display());
        }
        script += &format!(
            "exec nsenter --net=/run/netns/{} unshare --mount --uts --ipc --cgroup --pid --fork --kill-child --propagation private \
             sh {}\n",
            self.network.0,
            self.dir.join("init.sh").display()
        );
        let mut command = Command::new("sh");
        command.args(["-e", "-c", &script]);
        command.env("NODE", &self.name).env("HOME_DIR", &self.dir).env("ADDRESS", network::address(self.number));
        command.env("BIN", self.programs.bin()).env("DEBIAN", self.programs.debian()).env("IMAGES", &self.images);
        self.daemons.start(&self.daemon(), command).map(drop)
    }

    /// Takes its power: everything on it is gone at once, its disk stays.
    pub fn kill(&self) -> Result<()> {
        self.daemons.stop(&self.daemon(), Signal::SIGKILL)?;
        self.clear()
    }

    fn clear(&self) -> Result<()> {
        self.network.remove()?;
        self.groups().remove()
    }

    /// Takes its network cable out, or puts it in again.
    pub fn set_connected(&self, connected: bool) -> Result<()> {
        self.hub.set_port(self.number, connected)
    }

    /// An error with the end of its log when it doesn't run.
    pub(crate) fn must_run(&self) -> Result<()> {
        self.daemons.must_run(&self.daemon())
    }

    /// A command that runs on the node, as root outside of all pods.
    pub fn command(&self, program: &str) -> Result<Command> {
        let outer = self.daemons.find(&self.daemon()).with_context(|| format!("node {} doesn't run", self.name))?;
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", outer.pid))?;
        let first = children.split_whitespace().next().with_context(|| format!("node {} has no first process", self.name))?;
        let mut command = Command::new("nsenter");
        command.args(["--target", first, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--", program]);
        Ok(command)
    }

    /// Loads the images of the lab into the running node, over those of the same names.
    pub fn load_images(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.images)?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "tar") {
                let mut command = self.command(&self.programs.debian().join("usr/bin/ctr").display().to_string())?;
                command.args(["-n", "k8s.io", "images", "import"]).arg(entry.path());
                crate::run(command)?;
            }
        }
        Ok(())
    }

    fn write_configs(&self) -> Result<()> {
        let write = |name: &str, text: &str| std::fs::write(self.dir.join(name), text);
        write("init.sh", INIT)?;
        write("cni.conflist", &cni_config(self.number))?;
        write("containerd.toml", &containerd_config(&self.programs))?;
        write("kubelet.yaml", &self.kubelet_config())?;
        write("kube-proxy.yaml", &proxy_config(&self.pki.file("proxy.kubeconfig"), &self.name, network::PODS))?;
        std::fs::copy(self.pki.file(&format!("node-{}.kubeconfig", self.name)), self.dir.join("kubelet.kubeconfig"))?;
        Ok(())
    }

    fn kubelet_config(&self) -> String {
        serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.pki.file("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            // Where this kernel has the old hierarchies only.
            "failCgroupV1": false,
            "failSwapOn": false,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [network::HUB],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "makeIPTablesUtilChains": false,
            // Images come from files: one that was collected could not be had again.
            "imageGCHighThresholdPercent": 100,
            // The disk is the whole machine's: how full it is says nothing about the node.
            "evictionHard": {
                "memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%",
            },
            "nodeStatusUpdateFrequency": "5s",
            "volumeStatsAggPeriod": "10s",
        })
        .to_string()
    }
}

fn cni_config(number: usize) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods",
            "isGateway": true,
            "ipMasq": false,
            "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": network::pods(number)}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }],
    })
    .to_string()
}

fn containerd_config(programs: &Programs) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Lowering it needs a right that namespaces don't give.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{debian}/usr/lib/cni"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{debian}/usr/sbin/runc"
  SystemdCgroup = false
"#,
        debian = programs.debian().display()
    )
}
