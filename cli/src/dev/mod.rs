//! `basalt dev`: a whole cluster on this machine, as separate processes on file-backed devices in one directory, with a
//! volume claimed and mounted through the CSI sockets.
//!
//! Every step looks first whether it is done already, so that the command can be interrupted and run again, and takes
//! up a cluster of which some processes have ended.

mod claim;
mod layout;
mod process;
mod prove;
mod steps;

use anyhow::{Context, Result, bail};
use layout::{Cluster, Layout, Plan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use steps::Steps;

/// How much of a tree is copied to show that the volume keeps it.
const TREE_BYTES: u64 = 512 << 20;

/// Flags of `basalt dev`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    command: Option<DevCommand>,
    #[command(flatten)]
    up: UpArgs,
}

#[derive(Debug, clap::Subcommand)]
enum DevCommand {
    /// Unmount everything and stop every process of the cluster. The data stays.
    Down(DownArgs),
}

#[derive(Debug, clap::Args)]
struct UpArgs {
    /// Directory of the cluster.
    #[arg(long, default_value = "basalt-dev")]
    dir: PathBuf,
    /// Masters to start: 1, 3 or 5.
    #[arg(long, default_value_t = 3)]
    masters: u8,
    /// Agents to start, each with one device: 3 to 26.
    #[arg(long, default_value_t = 4)]
    agents: u8,
    /// Size of each agent's device. They are files, written through once.
    #[arg(long, default_value = "5Gi", value_parser = api_types::size::parse)]
    device_size: u64,
    /// First of the 200 loopback ports that the cluster uses.
    #[arg(long, default_value_t = 17_100)]
    base_port: u16,
    /// Name of the volume to claim and mount.
    #[arg(long, default_value = "dev")]
    volume: String,
    /// Its size.
    #[arg(long, default_value = "4Gi", value_parser = api_types::size::parse)]
    size: u64,
    /// Its filesystem: ext4 or xfs.
    #[arg(long, default_value = "ext4")]
    fs: String,
    /// Start the cluster only: claim no volume.
    #[arg(long)]
    no_volume: bool,
    /// Don't copy and compare a tree of files.
    #[arg(long)]
    no_tree: bool,
    /// The tree to copy. Default: one that is there, 512 MiB of it.
    #[arg(long)]
    tree: Option<PathBuf>,
    /// More flags for every agent, such as --allow-faults.
    #[arg(long = "agent-flag", allow_hyphen_values = true, hide = true)]
    agent_flags: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct DownArgs {
    /// Directory of the cluster.
    #[arg(long, default_value = "basalt-dev")]
    dir: PathBuf,
    /// Delete the directory and all data in it.
    #[arg(long)]
    delete_data: bool,
}

/// Runs `basalt dev`.
pub(crate) async fn run(args: DevArgs) -> Result<()> {
    match args.command {
        None => up(args.up).await,
        Some(DevCommand::Down(down)) => take_down(down).await,
    }
}

async fn up(args: UpArgs) -> Result<()> {
    check(&args)?;
    let layout = Layout::new(&args.dir)?;
    let mut cluster = match layout.load()? {
        Some(cluster) => cluster,
        None => Cluster {
            plan: Plan { masters: args.masters, agents: args.agents, device_bytes: args.device_size, base_port: args.base_port },
            cluster: None,
            processes: BTreeMap::new(),
            mounted: BTreeMap::new(),
        },
    };
    layout.save(&cluster)?;
    let steps = Steps::new(layout.clone());
    steps.masters(&mut cluster).await?;
    steps.devices(&cluster)?;
    steps.agents(&mut cluster, &args.agent_flags).await?;
    steps.csi(&mut cluster).await?;
    if !args.no_volume {
        let mount = steps.mount(&mut cluster, &args.volume, args.size, &args.fs).await?;
        if !args.no_tree && !mount.join("tree").exists() {
            steps.tree(&mut cluster, &args.volume, args.tree.as_deref(), TREE_BYTES).await?;
        }
    }
    steps.farewell(&cluster);
    Ok(())
}

fn check(args: &UpArgs) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("`basalt dev` mounts a filesystem and needs root: run it with sudo");
    }
    if ![1, 3, 5].contains(&args.masters) {
        bail!("--masters {} must be 1, 3 or 5", args.masters);
    }
    if !(3..=26).contains(&args.agents) {
        bail!("--agents {} must be 3 to 26: a chunk has three copies on three nodes", args.agents);
    }
    if args.base_port < 1024 || args.base_port > u16::MAX - 200 {
        bail!("--base-port {} must be 1024 to {}", args.base_port, u16::MAX - 200);
    }
    if !["ext4", "xfs"].contains(&args.fs.as_str()) {
        bail!("--fs {} must be ext4 or xfs", args.fs);
    }
    Ok(())
}

/// Takes away what an agent that is gone left in the kernel because it could not take it up again: nobody serves it, and
/// whoever touched its mount would wait for ever.
fn abandon_all(run_dir: &Path) {
    for found in nodeagent_frontend::adopt(run_dir) {
        for stays in nodeagent_frontend::abandon(run_dir, found.volume) {
            eprintln!("left of volume {}: {stays}", found.name);
        }
    }
}

async fn take_down(args: DownArgs) -> Result<()> {
    if !args.dir.exists() {
        println!("There is no cluster in {}.", args.dir.display());
        return Ok(());
    }
    let layout = Layout::new(&args.dir)?;
    let Some(mut cluster) = layout.load()? else {
        bail!("{} holds no cluster (no cluster.json): nothing was touched", layout.dir.display());
    };
    let steps = Steps::new(layout.clone());
    steps.unmount_all(&mut cluster).await?;
    steps.detach_all(&cluster).await?;
    // Agents first: they close their volumes at the masters.
    for kind in ["csi", "agent", "master"] {
        let names: Vec<String> = cluster.processes.keys().filter(|name| name.starts_with(kind)).cloned().collect();
        for name in names {
            if let Some(running) = cluster.processes.remove(&name) {
                running.stop(Duration::from_secs(10)).await.with_context(|| format!("could not stop {name}"))?;
            }
        }
    }
    layout.save(&cluster)?;
    for site in layout.agents(&cluster.plan) {
        tokio::task::spawn_blocking(move || abandon_all(&site.run_dir.join("fuse"))).await?;
    }
    if args.delete_data {
        std::fs::remove_dir_all(&layout.dir).with_context(|| format!("could not delete {}", layout.dir.display()))?;
        println!("Stopped; all data in {} is deleted.", layout.dir.display());
    } else {
        println!("Stopped. The data is kept in {}: `basalt dev` goes on with it.", layout.dir.display());
    }
    Ok(())
}
