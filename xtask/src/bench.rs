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
    /// A volume on chunk stores in this process.
    Volume,
}

impl What {
    fn package_and_bench(self) -> (&'static str, &'static str) {
        match self {
            What::Rpc => ("nodeagent-agent", "rpc"),
            What::Engine => ("nodeagent-engine", "engine"),
            What::Volume => ("client-volume", "volume"),
        }
    }
}

pub(crate) fn run(root: &Path, what: What, args: &[String]) -> Outcome {
    let (package, bench) = what.package_and_bench();
    let benches = root.join(room_of(package)).join("benches");
    if !benches.join(format!("{bench}.rs")).is_file() {
        bail!("{package} has no benchmark `{bench}` yet");
    }
    let mut command = Command::new(crate::test::cargo());
    command.current_dir(root).args(["bench", "--package", package, "--bench", bench, "--"]).args(args);
    Ok(run::run(&mut command, LIMIT)? == Ended::Well)
}

fn room_of(package: &str) -> String {
    package.replacen('-', "/", 1)
}
