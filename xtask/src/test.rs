//! Every check and test there is, the quick ones first: what a person runs before a change is shown, and what CI runs.

use crate::Outcome;
use crate::run::{self, Ended, is_installed, now};
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Programs that tests use, and the Debian package of each. A test whose program is missing says so and is skipped.
const TOOLS: [(&str, &str); 10] = [
    ("fio", "fio"),
    ("qemu-img", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("mkfs.ext4", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("blkid", "util-linux"),
];

const MINUTE: Duration = Duration::from_secs(60);

/// A part of a long command, which can be run alone.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) limit: Duration,
    pub(crate) work: fn(&Path, Duration) -> Result<Done>,
}

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    Well,
    /// Could not be done here, and need not be.
    Skipped(String),
    Badly(String),
}

const STEPS: [Step; 7] = [
    Step { name: "tools", limit: Duration::from_secs(600), work: tools },
    Step { name: "fmt", limit: Duration::from_secs(120), work: fmt },
    Step { name: "tidy", limit: Duration::from_secs(120), work: tidy },
    Step { name: "clippy", limit: Duration::from_secs(2400), work: clippy },
    Step { name: "build", limit: Duration::from_secs(3600), work: build },
    Step { name: "test", limit: Duration::from_secs(3600), work: test },
    Step { name: "e2e", limit: Duration::from_secs(5400), work: e2e },
];

pub(crate) fn run(root: &Path, only: &[String], skip: &[String]) -> Outcome {
    run_steps(root, &STEPS, only, skip)
}

/// Runs the steps with these names, or all but those, in their order.
pub(crate) fn run_steps(root: &Path, steps: &[Step], only: &[String], skip: &[String]) -> Outcome {
    for name in only.iter().chain(skip) {
        if !steps.iter().any(|step| step.name == name) {
            bail!("there is no step `{name}`: use one of {}", steps.iter().map(|step| step.name).collect::<Vec<_>>().join(", "));
        }
    }
    let is_chosen = |step: &&Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        (only.is_empty() || named(only)) && !named(skip)
    };
    let mut lines = Vec::new();
    let mut all_well = true;
    for step in steps.iter().filter(is_chosen) {
        println!("\n== {} (at most {} min)", step.name, step.limit.as_secs().div_ceil(60));
        let began = now();
        let done = (step.work)(root, step.limit).unwrap_or_else(|error| Done::Badly(format!("{error:#}")));
        let seconds = began.elapsed().as_secs_f64();
        let text = match &done {
            Done::Well => "ok".to_owned(),
            Done::Skipped(why) => format!("skipped: {why}"),
            Done::Badly(why) => format!("FAILED: {why}"),
        };
        println!("== {}: {text} ({seconds:.1} s)", step.name);
        lines.push(format!("{:<8} {seconds:>8.1} s  {text}", step.name));
        all_well &= !matches!(done, Done::Badly(_));
        // Nothing after it can be better than noise.
        if step.name == "build" && !all_well && matches!(done, Done::Badly(_)) {
            break;
        }
    }
    println!("\n== summary\n{}\n== {}", lines.join("\n"), if all_well { "all well" } else { "FAILED" });
    Ok(all_well)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

pub(crate) fn cargo_in(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(root).args(args);
    command
}

pub(crate) fn finish(command: &mut Command, limit: Duration) -> Result<Done> {
    Ok(match run::run(command, limit)? {
        Ended::Well => Done::Well,
        Ended::Badly(Some(status)) => Done::Badly(format!("status {status}")),
        Ended::Badly(None) => Done::Badly("ended by a signal".to_owned()),
        Ended::TooLate => Done::Badly(format!("not done after {} min", limit.as_secs() / 60)),
    })
}

fn tools(_root: &Path, limit: Duration) -> Result<Done> {
    let missing = || TOOLS.into_iter().filter(|(program, _)| !is_installed(program)).collect::<Vec<_>>();
    if !missing().is_empty() {
        install(missing().into_iter().map(|(_, package)| package).collect(), limit);
    }
    let still: Vec<_> = missing().into_iter().map(|(program, _)| program).collect();
    if still.is_empty() {
        return Ok(Done::Well);
    }
    Ok(Done::Skipped(format!("{} could not be installed: tests that use them are skipped", still.join(", "))))
}

/// Installs what it can, as root on Debian; what fails is reported by who needs it.
pub(crate) fn install(mut packages: Vec<&str>, limit: Duration) {
    packages.dedup();
    println!("missing: {}", packages.join(", "));
    if !is_installed("apt-get") {
        println!("no apt-get here: nothing is installed");
        return;
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        // Its progress is of no interest; what it couldn't do, it says on the other channel.
        command.env("DEBIAN_FRONTEND", "noninteractive").args(args).stdout(Stdio::null());
        run::run(&mut command, limit / 4)
    };
    let _shown = apt(&["update", "-qq"]);
    let all = [&["install", "-y", "-qq", "--no-install-recommends"][..], &packages].concat();
    if matches!(apt(&all), Ok(Ended::Well)) {
        return;
    }
    // One that isn't to be had keeps apt from installing any: one by one.
    for package in packages {
        let _shown = apt(&["install", "-y", "-qq", "--no-install-recommends", package]);
    }
}

fn has_component(subcommand: &str) -> bool {
    let mut command = Command::new(cargo());
    command.args([subcommand, "--version"]);
    matches!(run::run(&mut command, MINUTE), Ok(Ended::Well))
}

fn fmt(root: &Path, limit: Duration) -> Result<Done> {
    if !has_component("fmt") {
        return Ok(Done::Skipped("rustfmt is not installed".to_owned()));
    }
    finish(&mut cargo_in(root, &["fmt", "--all", "--check"]), limit)
}

fn tidy(root: &Path, _limit: Duration) -> Result<Done> {
    Ok(if crate::tidy::run(root, false, false)? { Done::Well } else { Done::Badly("see above".to_owned()) })
}

fn clippy(root: &Path, limit: Duration) -> Result<Done> {
    if !has_component("clippy") {
        return Ok(Done::Skipped("clippy is not installed".to_owned()));
    }
    finish(&mut cargo_in(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]), limit)
}

fn build(root: &Path, limit: Duration) -> Result<Done> {
    let done = finish(&mut cargo_in(root, &["build", "--workspace", "--bins"]), limit)?;
    if done != Done::Well {
        return Ok(done);
    }
    finish(&mut cargo_in(root, &["test", "--workspace", "--no-run"]), limit)
}

fn test(root: &Path, limit: Duration) -> Result<Done> {
    finish(&mut cargo_in(root, &["test", "--workspace", "--exclude", "e2e"]), limit)
}

/// One at a time: each starts a cluster of its own, and two cores are enough for one.
fn e2e(root: &Path, limit: Duration) -> Result<Done> {
    let mut command = cargo_in(root, &["test", "--package", "e2e", "--", "--test-threads=1", "--nocapture"]);
    if std::env::var_os("BASALT_BIN").is_none() {
        command.env("BASALT_BIN", target_directory(root)?.join("debug").join("basalt"));
    }
    finish(&mut command, limit)
}

pub(crate) fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root).no_deps().exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_does_not_exist_is_named() {
        let error = run(Path::new("."), &["formatting".to_owned()], &[]).unwrap_err();
        assert!(error.to_string().starts_with("there is no step `formatting`: use one of tools, fmt"));
    }

    #[test]
    fn the_whole_is_bounded() {
        let total: Duration = STEPS.iter().map(|step| step.limit).sum();
        assert!(total <= 5 * 60 * MINUTE, "{total:?}");
    }
}
