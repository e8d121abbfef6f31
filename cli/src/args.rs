//! What may be written on the command line.

use crate::cluster::{MasterCommand, NodeCommand};
use crate::dev::DevArgs;
use crate::device::DeviceCommand;
use crate::output::Format;
use crate::status::StatusArgs;
use crate::volume::VolumeCommand;
use clap::{Parser, Subcommand};

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  the command line is wrong
  3  no such thing
  4  it conflicts with what is there, or is in use
  5  masters or agent can't be reached just now: try again
  6  not enough space or not enough devices";

/// Block storage for databases on Kubernetes: masters, agents, CSI driver and the commands for people.
#[derive(Parser, Debug)]
#[command(name = "basalt", version, after_help = AFTER_HELP, max_term_width = 110)]
pub(crate) struct Cli {
    /// How results are printed.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show masters, nodes, devices, volumes and the state of all chunks.
    Status(StatusArgs),
    /// Make, look at, attach, trace and delete volumes.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// List the nodes, take one out for a while, forget one that is gone for good.
    #[command(subcommand)]
    Node(NodeCommand),
    /// List devices, look at one, make one ours, empty one and remove it.
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Run a master; or list, add and remove masters.
    #[command(subcommand)]
    Master(MasterCommand),
    /// Run a node agent.
    Agent(nodeagent_agent::AgentArgs),
    /// Keep mounted volumes alive through ends of the node agent, where those end all that it started: in a container.
    FuseKeeper(FuseKeeperArgs),
    /// Run the CSI driver.
    Csi(csi::CsiArgs),
    /// Run the operator: makes a Basalt out of each StorageCluster of a namespace.
    Operator(operator::OperatorArgs),
    /// Print the definitions of our kinds for Kubernetes, as YAML.
    Crds,
    /// Start a cluster of separate processes in a directory of this machine, for trying it out.
    Dev(DevArgs),
}

/// Flags of `basalt fuse-keeper`.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct FuseKeeperArgs {
    /// The agent's run directory. The socket is keeper.sock in it.
    #[arg(long, default_value = "/run/basalt")]
    pub(crate) run_dir: std::path::PathBuf,
    /// Only say whether a keeper answers there, for a probe.
    #[arg(long)]
    pub(crate) check: bool,
    /// Logs and metrics.
    #[command(flatten)]
    pub(crate) telemetry: api_telemetry::TelemetryArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
