//! The agent is killed at a random moment while it attaches a volume: whatever it had begun, the next agent starts, and
//! attaches and detaches the volume; nothing is left in the kernel, not even when it never comes back.
//!
//! `BASALT_E2E_ROUNDS` sets the number of kills (default 6).

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Options, can_run};
use rand::Rng;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn an_agent_killed_while_it_attaches_leaves_nothing_that_stops_the_next() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let rounds: u32 = std::env::var("BASALT_E2E_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let mut cluster = Cluster::start(Options { base_port: 22_600, volume: None, ..Options::default() })?;
    let agent = cluster.names("agent-")[0].clone();
    cluster.basalt(&["volume", "create", "db-0", "--size", "256Mi"])?;
    for round in 0..rounds {
        // The moment is the point: an attach takes some tens of milliseconds, most of them in the kernel.
        let moment = Duration::from_millis(rand::rng().random_range(1..150));
        let mut attaching = Command::new(e2e::binary()?);
        attaching.args(["volume", "attach", "db-0", "--dir"]).arg(cluster.dir());
        let mut attaching = attaching.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("volume attach")?;
        std::thread::sleep(moment);
        cluster.kill(&agent)?;
        attaching.wait()?;
        cluster.restart(&agent)?;
        e2e::wait_for("the agent to answer", || Ok(cluster.basalt(&["volume", "attach", "db-0"]).is_ok()))?;
        let device = cluster.attach("db-0")?;
        e2e::run_program("dd", &["if=/dev/urandom", &format!("of={device}"), "bs=64k", "count=16", "oflag=direct"])?;
        cluster.detach("db-0")?;
        eprintln!("round {round}: killed after {} ms", moment.as_millis());
    }
    // What an agent that doesn't come back had attached goes with the cluster.
    cluster.attach("db-0")?;
    cluster.kill(&agent)?;
    cluster.basalt(&["dev", "down"])?;
    let dir = cluster.dir().display().to_string();
    let loops = e2e::run_program("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"])?;
    ensure!(!loops.contains(&dir), "loop devices were left: {loops}");
    ensure!(!std::fs::read_to_string("/proc/self/mounts")?.contains(&dir), "mounts were left");
    ensure!(cluster.holders()?.is_empty(), "holders were left");
    Ok(())
}
