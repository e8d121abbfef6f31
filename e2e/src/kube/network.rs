//! The lab's network: namespaces joined by a bridge. Nothing of it is in the machine's own namespace.

use crate::run_program;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Address of the API, the name server and the bridge.
pub(crate) const HUB: &str = "10.200.0.1";
/// Range of services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// Range of all pods.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// Address of the node with this number, from 1.
pub(crate) fn address(number: usize) -> String {
    format!("10.200.0.{}", 10 + number)
}

/// Pods of the node with this number.
pub(crate) fn pods(number: usize) -> String {
    format!("10.244.{number}.0/24")
}

/// A named network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace(pub(crate) String);

impl Namespace {
    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// A command that runs in it.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }

    fn ip(&self, args: &str) -> Result<()> {
        let words: Vec<&str> = ["-n", &self.0].into_iter().chain(args.split_whitespace()).collect();
        run_program("ip", &words).map(drop)
    }

    fn sysctl(&self, setting: &str) -> Result<()> {
        run_program("ip", &["netns", "exec", &self.0, "sysctl", "-q", "-w", setting]).map(drop)
    }

    fn make(&self) -> Result<()> {
        run_program("ip", &["netns", "add", &self.0])?;
        self.ip("link set lo up")?;
        self.sysctl("net.ipv4.ip_forward=1")
    }

    /// Makes the namespace of the control plane, with the bridge.
    pub(crate) fn make_hub(&self) -> Result<()> {
        self.make()?;
        self.ip("link add br0 type bridge")?;
        self.ip(&format!("addr add {HUB}/24 dev br0"))?;
        self.ip("link set br0 up")
    }

    /// Makes a node's namespace and joins it to the hub.
    pub(crate) fn make_node(&self, hub: &Namespace, number: usize, nodes: usize) -> Result<()> {
        self.make()?;
        let port = format!("node{number}");
        hub.ip(&format!("link add {port} type veth peer name eth0 netns {}", self.0))?;
        hub.ip(&format!("link set {port} master br0 up"))?;
        self.ip(&format!("addr add {}/24 dev eth0", address(number)))?;
        self.ip("link set eth0 up")?;
        self.ip(&format!("route add default via {HUB}"))?;
        hub.ip(&format!("route replace {} via {}", pods(number), address(number)))?;
        for other in (1..=nodes).filter(|other| *other != number) {
            self.ip(&format!("route add {} via {}", pods(other), address(other)))?;
        }
        Ok(())
    }

    /// Cuts a node off from all others, or joins it again.
    pub(crate) fn set_port(&self, number: usize, up: bool) -> Result<()> {
        self.ip(&format!("link set node{number} {}", if up { "up" } else { "down" }))
    }

    /// Takes it away, with every link that ends in it.
    pub(crate) fn remove(&self) -> Result<()> {
        if self.path().exists() {
            run_program("ip", &["netns", "del", &self.0])?;
        }
        Ok(())
    }

    /// Moves the calling thread, and every thread and program that it starts from now on, into it.
    pub(crate) fn enter(&self) -> Result<()> {
        let file = File::open(self.path()).with_context(|| format!("the network of the lab {} is gone", self.0))?;
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).context("could not enter the lab's network")
    }
}
