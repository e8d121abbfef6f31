//! One copy's disk answers 200 ms late for ten seconds while the volume is written: writes go on with the other two, the
//! slow copy is pursued, and nothing is rebuilt. The latencies before, during and after are printed.

use anyhow::{Result, ensure};
use e2e::load::{Fio, has_fio};
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
    let before = Fio::latency(file, 64, 5)?;
    // On the node that serves the volume one copy is called directly; another node's is the usual case.
    let victim = cluster.names("agent-")[1].trim_start_matches("agent-").to_owned();
    cluster.basalt(&["device", "slow", "--node", &victim, "--by-ms", "200", "--for-ms", "10000"])?;
    let during = Fio::latency(file, 64, 10)?;
    let after = Fio::latency(file, 64, 5)?;
    for (when, latency) in [("before", &before), ("during", &during), ("after", &after)] {
        eprintln!(
            "{when}: p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, {} writes",
            latency.p50_ms, latency.p99_ms, latency.p999_ms, latency.writes
        );
    }
    // A write that had to wait for the slow copy would have taken this long, and so would every later one.
    ensure!(during.p50_ms < 200.0, "writes waited for the slow copy");
    wait_for("copies that were behind", || Ok(cluster.basalt_json(&["status"])?["chunks"]["under_replicated"] == 0))?;
    let repaired = cluster.metric_sum("agent-", "basalt_agent_repaired_bytes_total")?;
    ensure!(repaired == 0.0, "{repaired} bytes were rebuilt because a disk was slow");
    Fio::verify(file, 64)
}
