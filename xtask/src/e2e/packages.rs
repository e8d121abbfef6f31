//! Debian packages that are unpacked and not installed: their programs run from the cache folder, and the machine stays
//! as it is. Newer ones than the machine's own come from the release after it.

use crate::run::{self, Ended};
use crate::test::Done;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The release whose containerd speaks what kubelet needs. Its Go programs need nothing of its libc.
const NEWER: &str = "trixie";
const FROM_NEWER: [&str; 3] = ["etcd-server", "containerd", "containernetworking-plugins"];
/// Linked to the machine's libraries, and so of its own release.
const FROM_OWN: [&str; 1] = ["runc"];

/// Fills `cache/debian`, unless that is done.
pub(crate) fn unpack(cache: &Path, limit: Duration) -> Result<Done> {
    let wanted = format!("{NEWER} {} · {}", FROM_NEWER.join(" "), FROM_OWN.join(" "));
    let (target, stamp) = (cache.join("debian"), cache.join("debian/.unpacked"));
    if fs::read_to_string(&stamp).is_ok_and(|done| done == wanted) {
        return Ok(Done::Well);
    }
    let work = cache.join("apt");
    for folder in ["lists/partial", "cache/archives/partial", "debs"] {
        fs::create_dir_all(work.join(folder))?;
    }
    for stale in [target.clone(), work.join("debs")] {
        if stale.exists() {
            fs::remove_dir_all(&stale)?;
        }
        fs::create_dir_all(&stale)?;
    }
    apt(None, &["update", "-qq"], &work, limit)?;
    apt(None, &[&["download", "-qq"][..], &FROM_OWN].concat(), &work, limit)?;
    let newer = newer_release(&work)?;
    apt(Some(&newer), &["update", "-qq"], &work, limit)?;
    apt(Some(&newer), &[&["download", "-qq"][..], &FROM_NEWER].concat(), &work, limit)?;
    for file in fs::read_dir(work.join("debs"))? {
        let done = run::run(Command::new("dpkg").arg("-x").arg(file?.path()).arg(&target), limit)?;
        ensure!(done == Ended::Well, "dpkg -x: {done:?}");
    }
    fs::write(stamp, wanted)?;
    Ok(Done::Well)
}

/// Runs apt-get in the folder of packages: with the machine's sources, or with others and their lists apart.
fn apt(settings: Option<&[String]>, args: &[&str], work: &Path, limit: Duration) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.current_dir(work.join("debs")).stdout(Stdio::null());
    for setting in settings.unwrap_or_default() {
        command.args(["-o", setting]);
    }
    let done = run::run(command.args(args), limit)?;
    ensure!(done == Ended::Well, "apt-get {}: {done:?}", args.join(" "));
    Ok(())
}

/// Settings that make apt look at the newer release only, on the server that the machine uses for its own.
fn newer_release(work: &Path) -> Result<Vec<String>> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(COMPONENT) $(REPO_URI)", "Created-By: Packages", "Origin: Debian"])
        .output()
        .context("running apt-get")?;
    let text = String::from_utf8(output.stdout)?;
    let server = text
        .lines()
        .find_map(|line| line.strip_prefix("main ").filter(|server| !server.contains("security")))
        .context("this machine's apt knows no Debian: the lab's containerd and etcd come from there")?;
    let list = work.join("sources.list");
    fs::write(&list, format!("deb {server} {NEWER} main\n"))?;
    Ok(vec![
        format!("Dir::Etc::sourcelist={}", list.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", work.join("lists").display()),
        format!("Dir::Cache={}", work.join("cache").display()),
    ])
}
