//! Benchmarks: release builds of the `benches` of the rooms.

use crate::Outcome;
use crate::run::{self, Ended};
use anyhow::bail;
use clap::ValueEnum;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(3600);

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum What {
    /// Frames against tonic, unary and stream, over loopback in one run.
    Rpc,
    /// The chunk store on a file against the file itself.
    Engine,
    /// A mounted volume against a raw file, on real processes.
    Mount,
}

impl What {
    fn package_and_bench(self) -> (&'static str, &'static str) {
        match self {
            What::Rpc => ("nodeagent-agent", "rpc"),
            What::Engine => ("nodeagent-engine", "engine"),
            What::Mount => ("e2e", "mount"),
        }
    }
}

pub(crate) fn run(root: &Path, what: What, args: &[String]) -> Outcome {
    let (package, bench) = what.package_and_bench();
    let mut command = Command::new(crate::test::cargo());
    command.current_dir(root).args(["bench", "--package", package, "--bench", bench, "--"]).args(args);
    if what == What::Mount {
        // It measures the processes that people run.
        let mut build = Command::new(crate::test::cargo());
        build.current_dir(root).args(["build", "--release", "--package", "cli"]);
        if run::run(&mut build, LIMIT)? != Ended::Well {
            bail!("the binary does not build");
        }
        command.env("BASALT_BIN", crate::test::target_directory(root)?.join("release").join("basalt"));
    }
    Ok(run::run(&mut command, LIMIT)? == Ended::Well)
}
