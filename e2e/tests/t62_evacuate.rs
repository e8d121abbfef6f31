//! A disk leaves for good: all its copies move away while the volume is written and verified, what its writer holds open
//! follows when the volume is detached, and only then it can be removed.

use anyhow::{Context, Result, ensure};
use e2e::load::{Fio, has_fio};
use e2e::{Cluster, Options, can_run, run_program, wait_for};

#[test]
fn a_device_is_emptied_under_load_and_removed_for_good() -> Result<()> {
    if !can_run() || !has_fio() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 23_400, ..Options::default() })?;
    // Written once: reclaim leaves its chunks alone, so that they have to be copied.
    let file = cluster.mount().join("kept");
    let file = file.to_str().unwrap_or_default();
    Fio::overwrite(file, 128, "write")?;
    let mut fio = Fio::start(&cluster.mount(), "128m", 3600)?;
    let sealed = |device: &serde_json::Value| number(device, "chunks") - number(device, "open");
    let mut victim = String::new();
    wait_for("a full chunk on a device that isn't the writer's", || {
        let found = devices(&cluster)?.into_iter().skip(1).find(|device| sealed(device) > 0);
        victim = found.map(|device| text(&device, "device")).unwrap_or_default();
        Ok(!victim.is_empty())
    })?;
    ensure!(cluster.basalt(&["device", "remove", &victim]).is_err(), "a device was removed with chunks on it");
    cluster.basalt(&["device", "evacuate", &victim])?;
    wait_for("the sealed chunks to move", || Ok(sealed(&device(&cluster, &victim)?) == 0))?;
    let chunks = &cluster.basalt_json(&["status"])?["chunks"];
    eprintln!("{victim} has open chunks only; {} chunks are short, {} lost", chunks["under_replicated"], chunks["lost"]);
    ensure!(chunks["lost"] == 0, "chunks were lost");
    ensure!(fio.is_running()?, "fio ended: {:#}", fio.finish().unwrap_err());
    fio.stop()?;
    fio.finish()?;
    Fio::verify(file, 128)?;
    run_program("umount", &[cluster.mount().to_str().unwrap_or_default()])?;
    cluster.forget_mount()?;
    cluster.detach("dev")?;
    // A new writer closes what the old one had open.
    cluster.attach("dev")?;
    wait_for("the last chunks to move", || Ok(number(&device(&cluster, &victim)?, "chunks") == 0))?;
    cluster.basalt(&["device", "remove", &victim])?;
    ensure!(device(&cluster, &victim).is_err(), "the device is still listed");
    let copied = cluster.metric_sum("agent-", "basalt_agent_repaired_bytes_total")?;
    eprintln!("{:.0} MiB were copied to other devices", copied / f64::from(1 << 20));
    ensure!(copied > 0.0, "nothing moved");
    cluster.detach("dev")
}

fn devices(cluster: &Cluster) -> Result<Vec<serde_json::Value>> {
    let nodes = cluster.basalt_json(&["device", "list"])?;
    let nodes = nodes.as_array().context("no list of nodes")?;
    Ok(nodes.iter().flat_map(|node| node["devices"].as_array().cloned().unwrap_or_default()).collect())
}

fn device(cluster: &Cluster, id: &str) -> Result<serde_json::Value> {
    devices(cluster)?.into_iter().find(|device| device["device"] == id).with_context(|| format!("no device {id}"))
}

fn number(device: &serde_json::Value, field: &str) -> u64 {
    device[field].as_u64().unwrap_or(0)
}

fn text(device: &serde_json::Value, field: &str) -> String {
    device[field].as_str().unwrap_or_default().to_owned()
}
