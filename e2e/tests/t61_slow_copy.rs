//! One copy's disk answers 200 ms late for ten seconds while the volume is written: writes go on with the other two, the
//! slow copy is pursued, and nothing is rebuilt. The latencies before, during and after are printed.

use anyhow::{Context, Result, ensure};
use e2e::load::{Fio, Shot, has_fio};
use e2e::{Cluster, Options, can_run, wait_for};

#[test]
fn a_slow_copy_is_pursued_and_not_rebuilt() -> Result<()> {
    if !can_run() || !has_fio() {
        return Ok(());
    }
    let options = Options { base_port: 22_400, agent_flags: vec!["--allow-faults"], ..Options::default() };
    let cluster = Cluster::start(options)?;
    let file = cluster.mount().join("file");
    let file = file.to_str().unwrap_or_default();
    Fio::overwrite(file, 64, "write")?;
    let shot = |seconds| Shot::take(file, 64, "randwrite", 1, seconds, false);
    let served = |agent: &str| cluster.metric_sum(agent, "basalt_rpc_received_bytes_total");
    // The agent that serves the volume calls its own store directly; another one's is the usual case.
    let others = cluster.names("agent-").split_off(1);
    let earlier = others.iter().map(|agent| served(agent)).collect::<Result<Vec<_>>>()?;
    let before = shot(5)?;
    // One that holds a copy of what is being written.
    let mut victim = None;
    for (agent, earlier) in others.iter().zip(earlier) {
        if served(agent)? > earlier + f64::from(1 << 20) {
            victim = Some(agent);
        }
    }
    let victim = victim.context("no agent received appends")?;
    let node = victim.trim_start_matches("agent-");
    cluster.basalt(&["device", "slow", "--node", node, "--by-ms", "200", "--for-ms", "10000"])?;
    let during = shot(10)?;
    let after = shot(5)?;
    for (when, shot) in [("before", &before), ("during", &during), ("after", &after)] {
        let ms = |us: f64| us / 1e3;
        eprintln!("{when}: p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms", ms(shot.p50_us), ms(shot.p99_us), ms(shot.p999_us));
    }
    // A write that had to wait for the slow copy would have taken this long, and so would every later one.
    ensure!(during.p50_us < 200_000.0, "writes waited for the slow copy");
    wait_for("copies that were behind", || Ok(cluster.basalt_json(&["status"])?["chunks"]["under_replicated"] == 0))?;
    let repaired = cluster.metric_sum("agent-", "basalt_agent_repaired_bytes_total")?;
    ensure!(repaired == 0.0, "{repaired} bytes were rebuilt because a disk was slow");
    Fio::verify(file, 64)
}
