//! A volume is overwritten at random five times its size on devices that hold twice its size: no error, the space it
//! takes comes to rest, and what the devices wrote for it is stated.
//!
//! `BASALT_E2E_VOLUME_MIB` sets the volume's size (default 128); a write amplification is printed.

use anyhow::{Context, Result};
use e2e::load::{Fio, has_fio};
use e2e::{Cluster, Options, can_run};

/// How often the volume is written over.
const LAPS: u64 = 5;
/// Copies of each byte.
const COPIES: u64 = 3;
/// Agents, each with one device.
const AGENTS: u64 = 4;
/// Of each device: superblock, journal, checkpoints, and what is kept back for seals and repairs.
const DEVICE_EXTRA_MIB: u64 = 64;

#[test]
fn a_volume_can_be_overwritten_for_ever_on_twice_its_space() -> Result<()> {
    if !can_run() || !has_fio() {
        return Ok(());
    }
    let size_mib: u64 = std::env::var("BASALT_E2E_VOLUME_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(128);
    let device = format!("{}Mi", 2 * size_mib * COPIES / AGENTS + DEVICE_EXTRA_MIB);
    let options = Options { base_port: 22_200, device: device.leak(), volume: None, ..Options::default() };
    let cluster = Cluster::start(options)?;
    cluster.basalt(&["volume", "create", "db-0", "--size", &format!("{size_mib}Mi")])?;
    let path = cluster.attach("db-0")?;
    // Once in order: from here on every write is an overwrite.
    Fio::overwrite(&path, size_mib, "write")?;
    let written_before = cluster.written_bytes()?;
    for lap in 1..=LAPS {
        // While it is written, the devices bound what it takes: a write that found no space would fail here.
        Fio::overwrite(&path, size_mib, "randwrite")?;
        let taken = taken_bytes(&cluster)?;
        eprintln!("lap {lap}: {:.2} times the volume's size is taken, copies counted once", share(taken / COPIES, size_mib));
    }
    let user = (LAPS * size_mib) << 20;
    let written = cluster.written_bytes()? - written_before;
    eprintln!("devices wrote {:.2} bytes per byte and copy", written as f64 / (user * COPIES) as f64);
    // Once nobody writes, reclaim brings it down to the garbage it may keep.
    let rest = (2 * size_mib * COPIES) << 20;
    e2e::wait_for("the volume to take less than twice its size", || Ok(taken_bytes(&cluster)? <= rest))?;
    Fio::verify(&path, size_mib)?;
    cluster.detach("db-0")?;
    cluster.basalt(&["volume", "delete", "db-0"])?;
    e2e::wait_for("all space to be free again", || Ok(taken_bytes(&cluster)? == 0))
}

fn share(bytes: u64, mib: u64) -> f64 {
    bytes as f64 / (mib << 20) as f64
}

/// Bytes of all devices that chunks take.
fn taken_bytes(cluster: &Cluster) -> Result<u64> {
    let status = cluster.basalt_json(&["status"])?;
    let mut taken = 0;
    for node in status["nodes"].as_array().context("no nodes")? {
        for device in node["devices"].as_array().context("no devices")? {
            let number = |field: &str| device[field].as_u64().with_context(|| format!("no {field}"));
            taken += number("capacity_bytes")? - number("free_bytes")?;
        }
    }
    Ok(taken)
}
