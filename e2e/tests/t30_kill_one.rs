//! One process after the other is killed with -9 and started again while fio writes and verifies: no error, no mismatch.
//!
//! `BASALT_E2E_ROUNDS` sets the number of kills (default 4, each kind once).

use anyhow::{Result, ensure};
use e2e::load::{Fio, has_fio};
use e2e::{Cluster, Options, can_run, wait_for};
use rand::Rng;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[test]
fn no_kill_of_an_agent_or_the_leading_master_is_seen_as_an_error() -> Result<()> {
    if !can_run() || !has_fio() {
        return Ok(());
    }
    let rounds: usize = std::env::var("BASALT_E2E_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut cluster = Cluster::start(Options { base_port: 21_400, ..Options::default() })?;
    let mut fio = Fio::start(&cluster.mount(), "128m", 3600)?;
    let probe = Probe::start(&cluster)?;
    let mut longest: BTreeMap<&str, Duration> = BTreeMap::new();
    for round in 0..rounds {
        let kind = ["serving agent", "leading master", "holding agent", "serving agent"]
            [if round < 4 { round } else { rand::rng().random_range(0..4) }];
        let victim = victim(&cluster, kind)?;
        probe.reset();
        cluster.kill(&victim)?;
        cluster.restart(&victim)?;
        // The next kill comes once this one's stall is over and a few more writes went through.
        let count = probe.count();
        wait_for("writes after a kill", || Ok(probe.count() > count + 20))?;
        wait_for("the process to be back", || Ok(healthy(&cluster)))?;
        let stall = probe.longest();
        eprintln!("round {round}: killed {victim} ({kind}), longest stall {} ms", stall.as_millis());
        let entry = longest.entry(kind).or_default();
        *entry = (*entry).max(stall);
        ensure!(fio.is_running()?, "fio ended in round {round}: {:#}", fio.finish().unwrap_err());
    }
    for (kind, stall) in &longest {
        eprintln!("longest stall, {kind} killed: {} ms", stall.as_millis());
    }
    probe.finish()?;
    fio.stop()?;
    let slowest_ms = fio.finish()?;
    eprintln!("fio: no error, no mismatch; its slowest write took {slowest_ms:.0} ms");
    Ok(())
}

fn victim(cluster: &Cluster, kind: &str) -> Result<String> {
    if kind == "leading master" {
        let status = cluster.basalt_json(&["status"])?;
        let leader = status["leader"].as_u64().unwrap_or(1);
        return Ok(format!("master-{leader}"));
    }
    let agents = cluster.names("agent-");
    let index = if kind == "serving agent" { 0 } else { rand::rng().random_range(1..agents.len()) };
    Ok(agents[index].clone())
}

fn healthy(cluster: &Cluster) -> bool {
    let Ok(status) = cluster.basalt_json(&["status"]) else { return false };
    let up = |node: &serde_json::Value| node["liveness"] == "up";
    status["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4 && nodes.iter().all(up))
}

/// Writes one block after the other, and measures the longest time that one took.
struct Probe {
    state: std::sync::Arc<State>,
    thread: std::thread::JoinHandle<Result<()>>,
}

#[derive(Default)]
struct State {
    stop: std::sync::atomic::AtomicBool,
    count: std::sync::atomic::AtomicU64,
    longest_us: std::sync::atomic::AtomicU64,
}

impl Probe {
    fn start(cluster: &Cluster) -> Result<Self> {
        use std::os::unix::fs::{FileExt, OpenOptionsExt};
        let flags = nix::fcntl::OFlag::O_DSYNC.bits();
        let path = cluster.mount().join("probe");
        let file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).custom_flags(flags).open(path)?;
        let state = std::sync::Arc::new(State::default());
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            use std::sync::atomic::Ordering::Relaxed;
            while !shared.stop.load(Relaxed) {
                #[expect(clippy::disallowed_methods, reason = "a stall is measured in real time")]
                let start = Instant::now();
                file.write_all_at(&[1u8; 4096], 0)?;
                let took = u64::try_from(start.elapsed().as_micros())?;
                shared.longest_us.fetch_max(took, Relaxed);
                shared.count.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        Ok(Probe { state, thread })
    }

    fn reset(&self) {
        self.state.longest_us.store(0, std::sync::atomic::Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.state.count.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.state.longest_us.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn finish(self) -> Result<()> {
        self.state.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the probe panicked"))?
    }
}
