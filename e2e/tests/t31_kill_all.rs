//! Every process is killed at once under load, the holders of the kernel's devices included. After a restart the
//! filesystem checks clean and every write that was acknowledged is there.
//!
//! `BASALT_E2E_ROUNDS` sets the number of times (default 2).

use anyhow::{Context, Result, ensure};
use e2e::load::{Writer, check_blocks};
use e2e::{Cluster, Options, can_run, run};
use std::process::Command;
use std::time::Duration;

const BLOCKS: u64 = 8192;

#[test]
fn what_was_acknowledged_is_there_after_everything_was_killed() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let rounds: u64 = std::env::var("BASALT_E2E_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let mut cluster = Cluster::start(Options { base_port: 21_600, ..Options::default() })?;
    for round in 0..rounds {
        let file = cluster.mount().join("blocks");
        let writer = Writer::start(&file, BLOCKS, round + 1)?;
        std::thread::sleep(Duration::from_millis(1500));
        cluster.kill_everything()?;
        let (acknowledged, writes) = writer.finish()?;
        ensure!(writes > 10, "only {writes} writes went through before the kill");
        cluster.forget_mount()?;
        cluster.up_without_mount()?;
        let device = cluster.attach("dev")?;
        // The journal is replayed first, as the mount would do; then nothing may be left to mend.
        let mut replay = Command::new("e2fsck");
        replay.args(["-p", &device]);
        let replayed = replay.status().context("e2fsck")?;
        ensure!(replayed.code().is_some_and(|code| code <= 1), "e2fsck -p answered {replayed}");
        e2e::load::fsck_is_clean(&device, "ext4")?;
        cluster.detach("dev")?;
        cluster.up()?;
        check_blocks(&cluster.mount().join("blocks"), &acknowledged)?;
        eprintln!("round {round}: {writes} writes, {} blocks checked", acknowledged.len());
    }
    let mut sync = Command::new("sync");
    sync.arg("-f").arg(cluster.mount());
    run(sync).map(drop)
}
