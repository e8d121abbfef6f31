//! Flags of the agent, and what they mean once checked.

use api_types::{ClusterId, NodeName};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Flags of `basalt agent`.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentArgs {
    /// Name of this node, as Kubernetes has it.
    #[arg(long, env = "BASALT_NODE_NAME")]
    pub node_name: String,
    /// The cluster that the devices were formatted for (a UUID; `basalt status` shows it).
    #[arg(long, env = "BASALT_CLUSTER")]
    pub cluster: ClusterId,
    /// Masters, as host:port.
    #[arg(long, env = "BASALT_MASTERS", value_delimiter = ',', required = true)]
    pub masters: Vec<String>,
    /// A formatted block device or file. May be given several times; `basalt device format` makes one.
    #[arg(long = "device", required = true)]
    pub devices: Vec<PathBuf>,
    /// Address for data from other agents. Core N listens on the port plus N.
    #[arg(long, default_value = "0.0.0.0:7401")]
    pub listen: SocketAddr,
    /// Host that other agents reach this one at. Default: the address of --listen.
    #[arg(long)]
    pub advertise_host: Option<String>,
    /// Data cores: one thread each, with its own devices, connections and volumes.
    #[arg(long, default_value_t = 1)]
    pub cores: u16,
    /// Where sockets and the list of attachments are kept. Must survive a restart of the agent, not of the node.
    #[arg(long, default_value = "/run/basalt")]
    pub run_dir: PathBuf,
    /// Socket of `basalt fuse-keeper`, which then starts the processes that keep mounted volumes through an end of this
    /// agent. Needed where such processes would die with it: in a container. Default: the agent starts them.
    #[arg(long, env = "BASALT_FUSE_KEEPER")]
    pub fuse_keeper: Option<PathBuf>,
    /// Socket for the CSI node service and for `basalt volume attach`. Default: attach.sock in the run directory.
    #[arg(long)]
    pub attach_socket: Option<PathBuf>,
    /// Failure-domain label, as key=value. May be given several times.
    #[arg(long = "label", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Let a test slow or break a device while it runs, through the debug endpoint.
    #[arg(long, default_value_t = false)]
    pub allow_faults: bool,
    /// Logs, metrics and traces.
    #[command(flatten)]
    pub telemetry: api_telemetry::TelemetryArgs,
}

/// What the flags mean.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) node: NodeName,
    pub(crate) cluster: ClusterId,
    pub(crate) masters: Vec<String>,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise_host: String,
    pub(crate) cores: u16,
    pub(crate) run_dir: PathBuf,
    pub(crate) attach_socket: PathBuf,
    pub(crate) fuse_keeper: Option<PathBuf>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) allow_faults: bool,
}

/// A flag that can't be used; the text names it and the fix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Empty or not a name of Kubernetes.
    #[error("--node-name `{0}` must be a lower-case DNS name of 1 to 253 characters")]
    NodeName(String),
    /// Others can't reach it.
    #[error("--listen {0} names no address that others can reach: give --advertise-host")]
    Advertise(SocketAddr),
    /// Out of range.
    #[error("--cores {0} must be 1 to 64")]
    Cores(u16),
    /// Given twice.
    #[error("--device {} is given twice", .0.display())]
    DeviceTwice(PathBuf),
    /// No room for the other cores' ports.
    #[error("--listen port {port} leaves no room for {cores} cores: choose a lower one")]
    Port {
        /// The port.
        port: u16,
        /// How many are needed.
        cores: u16,
    },
}

impl AgentArgs {
    /// Checks the flags against each other.
    pub fn validate(&self) -> Result<Config, ConfigError> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if self.node_name.is_empty() || self.node_name.len() > 253 || !self.node_name.chars().all(is_name) {
            return Err(ConfigError::NodeName(self.node_name.clone()));
        }
        if !(1..=64).contains(&self.cores) {
            return Err(ConfigError::Cores(self.cores));
        }
        if self.listen.port().checked_add(self.cores - 1).is_none() {
            return Err(ConfigError::Port { port: self.listen.port(), cores: self.cores });
        }
        for (index, device) in self.devices.iter().enumerate() {
            if self.devices[..index].contains(device) {
                return Err(ConfigError::DeviceTwice(device.clone()));
            }
        }
        let advertise_host = match &self.advertise_host {
            Some(host) => host.clone(),
            None if self.listen.ip().is_unspecified() => return Err(ConfigError::Advertise(self.listen)),
            None => self.listen.ip().to_string(),
        };
        Ok(Config {
            node: NodeName(self.node_name.clone()),
            cluster: self.cluster,
            masters: self.masters.clone(),
            devices: self.devices.clone(),
            listen: self.listen,
            advertise_host,
            cores: self.cores,
            run_dir: self.run_dir.clone(),
            fuse_keeper: self.fuse_keeper.clone(),
            attach_socket: self.attach_socket.clone().unwrap_or_else(|| self.run_dir.join("attach.sock")),
            labels: self.labels.iter().cloned().collect(),
            allow_faults: self.allow_faults,
        })
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not key=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        agent: AgentArgs,
    }

    fn parse(extra: &[&str]) -> Result<Config, ConfigError> {
        let cluster = "00000000-0000-0000-0000-000000000001";
        let base = ["basalt", "--node-name", "node-a", "--cluster", cluster, "--masters", "127.0.0.1:1,127.0.0.1:2"];
        Line::try_parse_from(base.iter().chain(extra)).unwrap().agent.validate()
    }

    #[test]
    fn defaults_follow_from_the_flags_given() {
        let config = parse(&["--device", "/d", "--listen", "127.0.0.1:7401", "--label", "zone=z1"]).unwrap();
        assert_eq!(config.advertise_host, "127.0.0.1");
        assert_eq!(config.attach_socket, PathBuf::from("/run/basalt/attach.sock"));
        assert_eq!(config.masters.len(), 2);
        assert_eq!(config.labels["zone"], "z1");
    }

    #[test]
    fn each_broken_relation_has_its_own_error() {
        let any: SocketAddr = "0.0.0.0:7401".parse().unwrap();
        assert_eq!(parse(&["--device", "/d"]).unwrap_err(), ConfigError::Advertise(any));
        let local = ["--listen", "127.0.0.1:65535"];
        assert_eq!(
            parse(&[&local[..], &["--device", "/d", "--cores", "2"]].concat()).unwrap_err(),
            ConfigError::Port { port: 65535, cores: 2 }
        );
        assert_eq!(
            parse(&[&local[..], &["--device", "/d", "--device", "/d"]].concat()).unwrap_err(),
            ConfigError::DeviceTwice("/d".into())
        );
    }
}
