//! `kube-lab`: the Kubernetes lab of the end-to-end tests, for hands.

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use e2e::kube::{Lab, images};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

#[derive(Parser)]
#[command(name = "kube-lab", about = "A three-node Kubernetes on this machine, for tests")]
struct Args {
    /// Its directory. Default: BASALT_LAB, or /var/tmp/basalt-lab.
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Make the images and start a new lab in place of an old one.
    Up,
    /// Stop everything and delete it.
    Down,
    /// Say what runs.
    Status,
    /// Make the images anew and load them into the running nodes.
    Load,
    /// Run kubectl.
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run a program in the lab's network, with KUBECONFIG set.
    Run {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Run a program on a node, outside of all pods.
    On {
        node: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Take a node's power.
    Kill { node: String },
    /// Give it back.
    Start { node: String },
}

fn main() -> Result<()> {
    let args = Args::parse();
    let lab = Lab::at(&args.dir.unwrap_or_else(Lab::usual_dir))?;
    match args.command {
        What::Up => {
            images::make_all(&lab)?;
            lab.start()?;
            println!("three nodes are ready");
            Ok(())
        }
        What::Down => {
            lab.stop()?;
            lab.forget()
        }
        What::Status => {
            println!("{}", lab.running().join("\n"));
            Ok(())
        }
        What::Load => {
            images::make_all(&lab)?;
            lab.nodes().iter().try_for_each(|node| node.load_images())
        }
        What::Kubectl { args } => {
            let mut command = Command::new(lab.programs().built("kubectl"));
            command.args(args);
            replace(&lab, command)
        }
        What::Run { words } => {
            let (program, rest) = words.split_first().context("name a program")?;
            let mut command = Command::new(program);
            command.args(rest);
            replace(&lab, command)
        }
        What::On { node, words } => {
            let (program, rest) = words.split_first().context("name a program")?;
            let mut command = lab.node(&node)?.command(program)?;
            command.args(rest);
            bail!(command.exec())
        }
        What::Kill { node } => lab.node(&node)?.kill(),
        What::Start { node } => lab.node(&node)?.start(),
    }
}

fn replace(lab: &Lab, mut command: Command) -> Result<()> {
    lab.enter()?;
    bail!(command.env("KUBECONFIG", lab.kubeconfig()).exec())
}
