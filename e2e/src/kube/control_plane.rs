//! etcd, the API server and its controllers, in the hub's network.

use super::network::{HUB, Namespace, PODS, SERVICES};
use super::pki::Pki;
use super::process::Daemons;
use super::programs::Programs;
use anyhow::Result;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Port of the API.
const PORT: u16 = 6443;

/// In the order in which they start. The API server must end before etcd: it waits for it.
const NAMES: [&str; 6] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "hub-proxy", "dns"];

/// The API's address, as nodes and tests use it.
pub(crate) fn server() -> String {
    format!("https://{HUB}:{PORT}")
}

/// What else the API server's certificate must say.
pub(crate) const SERVER_NAMES: [&str; 7] = [
    HUB,
    "127.0.0.1",
    // The first address of the services' range.
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct ControlPlane {
    pub(crate) dir: PathBuf,
    pub(crate) network: Namespace,
    pub(crate) programs: Programs,
    pub(crate) pki: Pki,
    pub(crate) daemons: Daemons,
}

impl ControlPlane {
    /// Starts what doesn't run.
    pub(crate) fn start(&self) -> Result<()> {
        self.write_dns_config()?;
        std::fs::write(self.dir.join("hub-proxy.yaml"), proxy_config(&self.pki.file("proxy.kubeconfig"), "hub", PODS))?;
        for name in NAMES {
            self.start_one(name)?;
        }
        Ok(())
    }

    /// Starts one of them, unless it runs.
    pub(crate) fn start_one(&self, name: &str) -> Result<()> {
        if self.daemons.find(name).is_some() {
            return Ok(());
        }
        let command = match name {
            "etcd" => self.etcd(),
            "kube-apiserver" => self.api_server(),
            "kube-controller-manager" => self.controllers(),
            "kube-scheduler" => self.scheduler(),
            "dns" => self.with(&self.programs.built("dns"), &[format!("-conf={}", self.dir.join("dns.conf").display())]),
            _ => self
                .with(&self.programs.built("kube-proxy"), &[format!("--config={}", self.dir.join("hub-proxy.yaml").display())]),
        };
        self.daemons.start(name, command).map(drop)
    }

    pub(crate) fn stop(&self) -> Result<()> {
        NAMES.iter().rev().try_for_each(|name| self.daemons.stop(name, Signal::SIGTERM))
    }

    pub(crate) fn must_run(&self) -> Result<()> {
        NAMES.iter().try_for_each(|name| self.daemons.must_run(name))
    }

    fn with(&self, program: &Path, flags: &[String]) -> Command {
        let mut command = self.network.command(program);
        command.args(flags);
        command
    }

    fn key(&self, name: &str) -> String {
        self.pki.file(name).display().to_string()
    }

    fn etcd(&self) -> Command {
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let flags = [
            "--name=lab".to_owned(),
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=lab={peers}"),
            // A lab's objects need not outlive the machine.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        self.with(&self.programs.debian().join("usr/bin/etcd"), &flags)
    }

    fn api_server(&self) -> Command {
        let flags = [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--advertise-address={HUB}"),
            format!("--secure-port={PORT}"),
            format!("--tls-cert-file={}", self.key("apiserver.crt")),
            format!("--tls-private-key-file={}", self.key("apiserver.key")),
            format!("--client-ca-file={}", self.key("ca.crt")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", self.key("tokens.pub")),
            format!("--service-account-signing-key-file={}", self.key("tokens.key")),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--kubelet-client-certificate={}", self.key("to-kubelet.crt")),
            format!("--kubelet-client-key={}", self.key("to-kubelet.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
        ];
        self.with(&self.programs.built("kube-apiserver"), &flags)
    }

    fn controllers(&self) -> Command {
        let config = self.key("controllers.kubeconfig");
        let flags = [
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", self.key("tokens.key")),
            format!("--root-ca-file={}", self.key("ca.crt")),
            format!("--cluster-signing-cert-file={}", self.key("ca.crt")),
            format!("--cluster-signing-key-file={}", self.key("ca.key")),
            // The lab gives every node its pods itself.
            "--allocate-node-cidrs=false".to_owned(),
            // A node that lost its power is noticed soon: tests wait for it.
            "--node-monitor-grace-period=20s".to_owned(),
        ];
        self.with(&self.programs.built("kube-controller-manager"), &flags)
    }

    fn scheduler(&self) -> Command {
        let config = self.key("scheduler.kubeconfig");
        let flags = [
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        self.with(&self.programs.built("kube-scheduler"), &flags)
    }

    fn write_dns_config(&self) -> Result<()> {
        let config = format!(
            ".:53 {{\n  bind {HUB}\n  errors\n  cache 5\n  kubernetes cluster.local {{\n    kubeconfig {} lab\n    ttl 5\n  }}\n}}\n",
            self.key("dns.kubeconfig")
        );
        Ok(std::fs::write(self.dir.join("dns.conf"), config)?)
    }
}

/// Configuration of kube-proxy in the network of `name`.
pub(crate) fn proxy_config(kubeconfig: &Path, name: &str, pods: &str) -> String {
    serde_json::json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": name,
        "clusterCIDR": pods,
        "clientConnection": {"kubeconfig": kubeconfig},
        // Set for the whole machine, so not by one of its namespaces.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
    })
    .to_string()
}
