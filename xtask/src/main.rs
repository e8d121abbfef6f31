//! The project's own commands: `cargo xtask tidy` checks what no compiler checks, `cargo xtask test` runs every check
//! and test there is, `cargo xtask e2e` tests on a real Kubernetes, `cargo xtask bench` measures.
//!
//! Contract: depends on none of the rooms, so that it builds in seconds; what needs them is run through cargo.

mod bench;
mod e2e;
mod run;
mod test;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", about = "The project's own commands")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the crate graph, sizes, names, links and the other rules of STYLE.md that a program can check.
    Tidy {
        /// Write the sizes that are over the line to xtask/ratchet.toml, where they are smaller than what stands there.
        #[arg(long)]
        shrink: bool,
        /// Also write sizes that have grown or are new there: to be justified in review.
        #[arg(long)]
        accept: bool,
    },
    /// Install the tools that are missing, then run formatting, lints, tidy, all tests and the end-to-end tests.
    Test {
        /// Only the steps with these names, in their order.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// All steps but those with these names.
        #[arg(long, value_delimiter = ',')]
        skip: Vec<String>,
    },
    /// Build a Kubernetes of the real programs, start it on this machine with three nodes, and test Basalt on it.
    E2e {
        /// Only the steps with these names, in their order.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// All steps but those with these names.
        #[arg(long, value_delimiter = ',')]
        skip: Vec<String>,
    },
    /// Measure, in a release build.
    Bench {
        /// What to measure.
        what: bench::What,
        /// Passed on to the benchmark.
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Tidy { shrink, accept } => tidy::run(&root(), shrink || accept, accept),
        Command::Test { only, skip } => test::run(&root(), &only, &skip),
        Command::E2e { only, skip } => e2e::run(&root(), &only, &skip),
        Command::Bench { what, args } => bench::run(&root(), what, &args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the clone this was started in. That of the build may be another one, and gone: clones share a target folder.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = Path::new(&manifest);
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Every command says whether all is well; an error is when that can't be said.
type Outcome = Result<bool>;
