//! Load on a mounted volume: fio with verification in the background, and a log of acknowledged writes kept outside.

use crate::cluster::run;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// fio is installed.
#[must_use]
pub fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !found {
        eprintln!("skipped: fio is not installed");
    }
    found
}

/// Random 4 KiB writes with a CRC-32C in each, read back and verified as they go, until stopped.
pub struct Fio {
    child: Child,
}

impl Fio {
    /// Starts it on a file of `size` (such as `256m`) in `dir`, for `seconds` at most.
    pub fn start(dir: &Path, size: &str, seconds: u32) -> Result<Self> {
        let child = Command::new("fio")
            .args(["--name=verify", "--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--iodepth=8", "--direct=1"])
            .args(["--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--time_based", "--norandommap"])
            .args(["--output-format=json", "--group_reporting", "--max_latency=120s"])
            .arg(format!("--runtime={seconds}"))
            .arg(format!("--size={size}"))
            .arg(format!("--filename={}", dir.join("fio-verify").display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start fio")?;
        Ok(Fio { child })
    }

    /// It still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Tells it to end its run now, as if its time was over.
    pub fn stop(&self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).context("could not stop fio")
    }

    /// Waits for its end; an I/O error or a mismatch is an error. Answers the longest latency it saw, in ms.
    pub fn finish(self) -> Result<f64> {
        let output = self.child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        // fio answers 128 when it was told to end.
        if !output.status.success() && output.status.code() != Some(128) {
            bail!("fio failed ({}): {text}{errors}", output.status);
        }
        let start = text.find('{').context("fio printed no JSON")?;
        let json: serde_json::Value = serde_json::from_str(&text[start..]).context("fio's JSON")?;
        let job = &json["jobs"][0];
        if job["error"].as_i64() != Some(0) {
            bail!("fio saw error {}: {errors}", job["error"]);
        }
        Ok(job["write"]["clat_ns"]["max"].as_f64().unwrap_or(0.0) / 1e6)
    }
}

impl Fio {
    /// Writes as much as `path` holds (`size_mib`) in 4 KiB blocks at depth 16, in order (`write`) or at random
    /// (`randwrite`: some blocks more than once), each with a checksum for [`Fio::verify`].
    pub fn overwrite(path: &str, size_mib: u64, pattern: &str) -> Result<()> {
        let mut command = job(path, size_mib, "overwrite");
        command.args(["--iodepth=16", "--verify=crc32c", "--do_verify=0", "--randrepeat=0", "--norandommap"]);
        command.arg(format!("--rw={pattern}")).arg(format!("--io_size={size_mib}m"));
        run(command).map(drop)
    }

    /// Reads all of `path` and checks each block against the checksum it carries.
    pub fn verify(path: &str, size_mib: u64) -> Result<()> {
        let mut command = job(path, size_mib, "verify");
        command.args(["--rw=read", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"]);
        run(command).map(drop)
    }
}

/// What fio measured in one go of 4 KiB requests.
#[derive(Debug, Clone, Copy)]
pub struct Shot {
    /// Requests a second.
    pub iops: f64,
    /// Half of them took less, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 took less.
    pub p99_us: f64,
    /// 999 of 1000 took less.
    pub p999_us: f64,
}

impl Shot {
    /// Requests of one kind (`randread`, `randwrite`) for `seconds`; `dsync`: each write is durable when it is answered.
    pub fn take(path: &str, size_mib: u64, pattern: &str, depth: u32, seconds: u32, dsync: bool) -> Result<Self> {
        let mut command = job(path, size_mib, "shot");
        command.args([format!("--rw={pattern}"), format!("--iodepth={depth}"), format!("--runtime={seconds}")]);
        command.args(["--time_based", "--norandommap", "--randrepeat=0", "--output-format=json"]);
        if dsync {
            command.arg("--sync=dsync");
        }
        if pattern == "randwrite" && !dsync {
            // What is read back later carries its checksum.
            command.args(["--verify=crc32c", "--do_verify=0"]);
        }
        let text = run(command)?;
        let start = text.find('{').context("fio printed no JSON")?;
        let json: serde_json::Value = serde_json::from_str(&text[start..]).context("fio's JSON")?;
        let side = &json["jobs"][0][if pattern == "randread" { "read" } else { "write" }];
        let number = |value: &serde_json::Value| value.as_f64().context("fio printed no number");
        let percentile = |name: &str| Ok::<_, anyhow::Error>(number(&side["clat_ns"]["percentile"][name])? / 1e3);
        Ok(Shot {
            iops: number(&side["iops"])?,
            p50_us: percentile("50.000000")?,
            p99_us: percentile("99.000000")?,
            p999_us: percentile("99.900000")?,
        })
    }
}

fn job(path: &str, size_mib: u64, name: &str) -> Command {
    let mut command = Command::new("fio");
    command.args(["--bs=4k", "--ioengine=libaio", "--direct=1"]);
    command.args([format!("--name={name}"), format!("--size={size_mib}m"), format!("--filename={path}")]);
    command
}

/// A filesystem that isn't mounted passes its check without a change.
pub fn fsck_is_clean(device: &str, fs: &str) -> Result<()> {
    let mut command = match fs {
        "xfs" => {
            let mut command = Command::new("xfs_repair");
            command.arg("-n");
            command
        }
        _ => {
            let mut command = Command::new("e2fsck");
            command.args(["-f", "-n"]);
            command
        }
    };
    command.arg(device);
    run(command).map(drop)
}

/// Size of a block of [`Writer`], in bytes.
const BLOCK: usize = 4096;

/// What [`Writer`] was told is durable: for each block the last sequence number.
pub type Acknowledged = std::collections::BTreeMap<u64, u64>;

/// Writes numbered blocks with O_DIRECT and O_DSYNC, and keeps a log outside the volume of every write that was
/// acknowledged.
pub struct Writer {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<Result<(Acknowledged, u64)>>,
}

impl Writer {
    /// Starts writing to a new file of `blocks` blocks.
    pub fn start(path: &Path, blocks: u64, seed: u64) -> Result<Self> {
        // Written once first, so that later writes change data and not the file's metadata.
        std::fs::write(path, vec![0u8; usize::try_from(blocks)? * BLOCK]).context("could not lay out the file")?;
        std::fs::File::open(path)?.sync_all()?;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (path, flag) = (path.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || write_blocks(&path, blocks, seed, &flag));
        Ok(Writer { stop, thread })
    }

    /// Ends it: an I/O error ends it too, and isn't one here, since its write was never acknowledged. Answers what was
    /// acknowledged, and how many writes.
    pub fn finish(self) -> Result<(Acknowledged, u64)> {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    }
}

fn write_blocks(path: &Path, blocks: u64, seed: u64, stop: &std::sync::atomic::AtomicBool) -> Result<(Acknowledged, u64)> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let flags = nix::fcntl::OFlag::O_DIRECT.bits() | nix::fcntl::OFlag::O_DSYNC.bits();
    let file = std::fs::OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    let mut memory = vec![0u8; 2 * BLOCK];
    // O_DIRECT wants aligned memory: an aligned part of a buffer twice as large.
    let shift = memory.as_ptr().align_offset(BLOCK);
    let mut acknowledged = Acknowledged::new();
    let (mut sequence, mut state) = (0u64, seed | 1);
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (state >> 33) % blocks;
        sequence += 1;
        fill(&mut memory[shift..shift + BLOCK], block, sequence);
        if file.write_all_at(&memory[shift..shift + BLOCK], block * BLOCK as u64).is_err() {
            break;
        }
        acknowledged.insert(block, sequence);
    }
    Ok((acknowledged, sequence))
}

fn fill(block: &mut [u8], number: u64, sequence: u64) {
    for (index, word) in block.chunks_exact_mut(8).enumerate() {
        let value = match index {
            0 => number,
            1 => sequence,
            _ => number ^ sequence.rotate_left(u32::try_from(index % 64).unwrap_or(0)),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Every acknowledged write is there, or a later one of the same block; and no block is a mixture.
pub fn check_blocks(path: &Path, acknowledged: &Acknowledged) -> Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {} back", path.display()))?;
    for (number, sequence) in acknowledged {
        let at = usize::try_from(*number)? * BLOCK;
        let block = bytes.get(at..at + BLOCK).with_context(|| format!("block {number} is beyond the end of the file"))?;
        let found = u64::from_le_bytes(block[8..16].try_into()?);
        if found < *sequence {
            bail!("block {number} lost write {sequence}: it has {found}");
        }
        let mut expected = vec![0u8; BLOCK];
        fill(&mut expected, *number, found);
        if block != expected {
            bail!("block {number} is a mixture of writes around {found}");
        }
    }
    Ok(())
}
