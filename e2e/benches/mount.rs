//! 4 KiB on a mounted volume (three copies, all agents on this machine) beside the same on a raw file of the same disk,
//! in turns, in one run. `cargo xtask bench mount` builds what it needs; an argument is the seconds of each turn.
//!
//! A write to the volume is durable on two disks when it is answered; so the raw file is opened with O_DSYNC for writes.

use anyhow::{Context, Result, ensure};
use e2e::load::{Shot, has_fio};
use e2e::{Cluster, Options, can_run, run_program};

/// Turns of each: the middle one counts.
const TURNS: usize = 3;
/// What is written and read, on either side.
const SIZE_MIB: u64 = 512;

fn main() -> Result<()> {
    // Cargo itself adds `--bench`.
    let seconds: u32 = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(4);
    ensure!(can_run() && has_fio(), "needs root, FUSE, loop devices and fio");
    let options = Options { base_port: 22_800, device: "3Gi", volume: Some("2Gi"), ..Options::default() };
    let cluster = Cluster::start(options)?;
    let raw = cluster.dir().join("raw-file");
    let volume = cluster.mount().join("file");
    let (raw, volume) = (raw.to_str().context("path")?, volume.to_str().context("path")?);
    for path in [raw, volume] {
        // Written through once, so that neither side pays for new extents of a filesystem.
        run_program("dd", &["if=/dev/zero", &format!("of={path}"), "bs=1M", &format!("count={SIZE_MIB}"), "oflag=direct"])?;
    }
    run_program("sync", &["-f", raw])?;
    println!("| 4 KiB | raw file, IOPS | p50, p99 µs | volume, IOPS | p50, p99 µs | volume : raw |");
    println!("|---|---|---|---|---|---|");
    for (name, pattern, depth) in [
        ("write, depth 1", "randwrite", 1),
        ("write, depth 32", "randwrite", 32),
        ("read, depth 1", "randread", 1),
        ("read, depth 32", "randread", 32),
    ] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            theirs.push(Shot::take(raw, SIZE_MIB, pattern, depth, seconds, pattern == "randwrite")?);
            ours.push(Shot::take(volume, SIZE_MIB, pattern, depth, seconds, false)?);
        }
        let (ours, theirs) = (middle(ours), middle(theirs));
        let ratio = ours.iops / theirs.iops;
        let show = |shot: &Shot| format!("{:.0} | {:.0}, {:.0}", shot.iops, shot.p50_us, shot.p99_us);
        println!("| {name} | {} | {} | {ratio:.2} |", show(&theirs), show(&ours));
    }
    Ok(())
}

fn middle(mut shots: Vec<Shot>) -> Shot {
    shots.sort_by(|one, other| one.iops.total_cmp(&other.iops));
    shots[shots.len() / 2]
}
