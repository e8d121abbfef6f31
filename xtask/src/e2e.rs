//! `cargo xtask e2e`: Basalt on a Kubernetes made of the real programs.
//!
//! The control plane, kubelet, sidecars, the conformance suite and Helm are built from the Go modules of `e2e/kube`, as
//! their committed go.mod and go.sum say; etcd, containerd, runc and the network plugins come from Debian. All of it is
//! kept in the user's cache folder, so that only the first run is long. The lab itself is `e2e/src/kube`.

mod packages;

use crate::Outcome;
use crate::run::is_installed;
use crate::test::{Done, Step, cargo_in, finish, install, run_steps, target_directory};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Programs of this machine that the lab and its images use, and the Debian package of each.
const TOOLS: [(&str, &str); 11] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("sysctl", "procps"),
    ("unshare", "util-linux"),
    ("busybox", "busybox-static"),
    ("strip", "binutils"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("losetup", "mount"),
    ("blkid", "util-linux"),
];

/// Folders of Go modules in `e2e/kube`, and what is built of each: all its tools, or the program that it is.
const MODULES: [(&str, &str); 5] =
    [("csi-sanity", "tool"), ("sidecars", "tool"), ("helm", "tool"), ("control-plane", "tool"), ("dns", ".")];

/// The version that the servers report; that of the module k8s.io/kubernetes in control-plane/go.mod.
const KUBERNETES: &str = "v1.36.3";

const STEPS: [Step; 8] = [
    Step { name: "tools", limit: Duration::from_secs(600), work: tools },
    Step { name: "packages", limit: Duration::from_secs(600), work: packages },
    Step { name: "modules", limit: Duration::from_secs(3000), work: modules },
    Step { name: "build", limit: Duration::from_secs(3000), work: build },
    Step { name: "sanity", limit: Duration::from_secs(600), work: sanity },
    Step { name: "lab", limit: Duration::from_secs(300), work: lab },
    Step { name: "tests", limit: Duration::from_secs(3600), work: tests },
    Step { name: "down", limit: Duration::from_secs(120), work: down },
];

/// See the module. `only` and `skip` name steps: `--skip down` leaves the lab for a person to look at, with the program
/// `kube-lab`.
pub(crate) fn run(root: &Path, only: &[String], skip: &[String]) -> Outcome {
    run_steps(root, &STEPS, only, skip)
}

/// Where everything that is built or unpacked is kept between runs.
fn cache() -> Result<PathBuf> {
    match (std::env::var_os("BASALT_E2E_CACHE"), std::env::var_os("HOME")) {
        (Some(cache), _) => Ok(cache.into()),
        (None, Some(home)) => Ok(Path::new(&home).join(".cache/basalt/e2e")),
        (None, None) => bail!("neither BASALT_E2E_CACHE nor HOME is set"),
    }
}

fn tools(_root: &Path, limit: Duration) -> Result<Done> {
    let missing = || TOOLS.into_iter().filter(|(program, _)| !is_installed(program)).collect::<Vec<_>>();
    if !missing().is_empty() {
        install(missing().into_iter().map(|(_, package)| package).collect(), limit);
    }
    let still: Vec<_> = missing().into_iter().map(|(program, _)| program).collect();
    Ok(if still.is_empty() { Done::Well } else { Done::Badly(format!("{} could not be installed", still.join(", "))) })
}

fn packages(_root: &Path, limit: Duration) -> Result<Done> {
    packages::unpack(&cache()?, limit)
}

fn modules(root: &Path, limit: Duration) -> Result<Done> {
    if !is_installed("go") {
        return Ok(Done::Badly("go is not installed: the control plane is built of Go modules".to_owned()));
    }
    let bin = cache()?.join("bin");
    fs::create_dir_all(&bin)?;
    for (module, what) in MODULES {
        let folder = root.join("e2e/kube").join(module);
        let stamp = bin.join(format!(".{module}"));
        let recipe = recipe(&folder)?;
        if fs::read_to_string(&stamp).is_ok_and(|built| built == recipe) {
            continue;
        }
        println!("building {module}");
        let mut command = Command::new("go");
        command.current_dir(&folder).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false");
        let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}");
        // A program's name is the last part of its module's path, a tool's that of its package.
        command.args(["build", "-ldflags", &flags, "-o"]).arg(format!("{}/", bin.display())).arg(what);
        match finish(&mut command, limit)? {
            Done::Well => fs::write(stamp, recipe)?,
            other => return Ok(Done::Badly(format!("go build of {module}: {other:?}"))),
        }
    }
    Ok(Done::Well)
}

/// All that decides what a module's programs are.
fn recipe(folder: &Path) -> Result<String> {
    let mut recipe = String::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        let path = folder.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => recipe += &text,
            Err(_) if file == "main.go" => {}
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }
    Ok(recipe)
}

fn build(root: &Path, limit: Duration) -> Result<Done> {
    let done = finish(&mut cargo_in(root, &["build", "--package", "cli", "--package", "e2e", "--bins"]), limit)?;
    if done != Done::Well {
        return Ok(done);
    }
    finish(&mut cargo_in(root, &["test", "--package", "e2e", "--no-run"]), limit)
}

/// Names the binary under test, unless the caller did.
fn with_binary<'a>(root: &Path, command: &'a mut Command) -> Result<&'a mut Command> {
    if std::env::var_os("BASALT_BIN").is_none() {
        command.env("BASALT_BIN", target_directory(root)?.join("debug").join("basalt"));
    }
    Ok(command)
}

fn tests_named(root: &Path, name: &str, lab: bool, limit: Duration) -> Result<Done> {
    let args = ["test", "--package", "e2e", "--test", name, "--", "--test-threads=1", "--nocapture"];
    let mut command = cargo_in(root, &args);
    if lab {
        command.env("BASALT_LAB", lab_dir());
    }
    finish(with_binary(root, &mut command)?, limit)
}

fn lab_dir() -> PathBuf {
    std::env::var_os("BASALT_LAB").map_or_else(|| "/var/tmp/basalt-lab".into(), PathBuf::from)
}

/// The conformance suite on the sockets of a cluster of plain processes.
fn sanity(root: &Path, limit: Duration) -> Result<Done> {
    tests_named(root, "k10_sanity", false, limit)
}

fn kube_lab(root: &Path, what: &str, limit: Duration) -> Result<Done> {
    let mut command = Command::new(target_directory(root)?.join("debug/kube-lab"));
    command.arg("--dir").arg(lab_dir()).arg(what);
    finish(with_binary(root, &mut command)?, limit)
}

fn lab(root: &Path, limit: Duration) -> Result<Done> {
    kube_lab(root, "up", limit)
}

fn tests(root: &Path, limit: Duration) -> Result<Done> {
    tests_named(root, "k[2-9]*", true, limit)
}

fn down(root: &Path, limit: Duration) -> Result<Done> {
    kube_lab(root, "down", limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_is_reported_is_the_one_that_is_built() {
        let recipe = recipe(&crate::root().join("e2e/kube/control-plane")).unwrap();
        assert!(recipe.contains(&format!("k8s.io/kubernetes {KUBERNETES}")));
    }

    #[test]
    fn every_module_has_its_versions_pinned() {
        for (module, _) in MODULES {
            let recipe = recipe(&crate::root().join("e2e/kube").join(module)).unwrap();
            assert!(recipe.contains("go 1."), "{module}");
            assert!(recipe.contains("h1:"), "{module} has no go.sum");
        }
    }
}
