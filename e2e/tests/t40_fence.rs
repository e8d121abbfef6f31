//! A volume is taken over while its agent is stopped. When that agent goes on, it can write nothing any more.

use anyhow::{Result, ensure};
use e2e::{Cluster, Options, can_run, wait_for};
use nix::sys::signal::Signal;

#[test]
fn an_agent_that_was_stopped_can_write_nothing_after_a_take_over() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 21_800, ..Options::default() })?;
    std::fs::write(cluster.mount().join("before"), vec![1u8; 1 << 20])?;
    cluster.signal("agent-node-a", Signal::SIGSTOP)?;
    let attach = ["volume", "attach", "dev", "--node", "node-b", "--take-over", "--front-end", "nbd"];
    let attached = cluster.basalt_json(&attach)?;
    ensure!(attached["epoch"].as_u64() == Some(2), "the new writer has the next epoch: {attached}");
    // Without being asked for, a take-over is refused.
    let refused = cluster.basalt(&["volume", "attach", "dev", "--node", "node-c", "--front-end", "nbd"]);
    ensure!(refused.is_err(), "a second take-over happened without being asked for");
    cluster.signal("agent-node-a", Signal::SIGCONT)?;
    // The page cache takes the write, the device must not.
    wait_for("the old writer to be refused", || {
        let path = cluster.mount().join("after");
        let written = std::fs::File::create(&path).and_then(|file| {
            use std::io::Write;
            (&file).write_all(&[2u8; 4096])?;
            file.sync_all()
        });
        Ok(written.is_err())
    })?;
    let volumes = cluster.basalt_json(&["volume", "list"])?;
    ensure!(volumes.to_string().contains("node-b"), "the volume belongs to node-b now: {volumes}");
    cluster.forget_mount()
}
