//! An idle cluster with a mounted volume costs next to nothing. The figure is printed; the bound here is generous, since
//! a test must not depend on the machine's mood: what it catches is a core burnt by polling.

use anyhow::{Result, ensure};
use e2e::{Cluster, Options, can_run};
use std::time::Duration;

#[test]
fn an_idle_cluster_burns_no_core() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 22_000, ..Options::default() })?;
    std::fs::write(cluster.mount().join("file"), vec![1u8; 1 << 20])?;
    // The time over which CPU is counted, and what mkfs and mount leave to do before.
    std::thread::sleep(Duration::from_secs(10));
    let before = cluster.cpu_ticks()?;
    std::thread::sleep(Duration::from_secs(30));
    let ticks = cluster.cpu_ticks()? - before;
    // 100 ticks are one second of one core.
    eprintln!("idle: all processes together use {:.2} % of one core", ticks as f64 / 30.0);
    for name in cluster.names("") {
        eprintln!("resident: {name} {:.1} MiB", cluster.resident_kib(&name)? as f64 / 1024.0);
    }
    ensure!(ticks < 30 * 30, "idle processes used {ticks} ticks in 30 s: something polls");
    Ok(())
}
