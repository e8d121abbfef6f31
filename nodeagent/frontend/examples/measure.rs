//! Measures the loop-on-FUSE front end over a disk in memory with fio: operations per second, latency, and the
//! processor time that the serving process spends on each operation.
//!
//! `cargo run --release -p nodeagent-frontend --example measure [seconds]`; needs root and fio. This binary is its own
//! server (`serve`) and holder (`fuse-holder`).
#![expect(clippy::unwrap_used, reason = "a tool for developers: it ends when something is not as it should be")]

use api_types::VolumeId;
use nodeagent_frontend::testing::{MemoryBlock, context};
use nodeagent_frontend::{FrontEnd, HolderCommand, LoopFuse, Spec, run_holder};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

const SIZE: u64 = 256 << 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_else(|| OsString::from("3"));
    match first.to_str() {
        Some("fuse-holder") => run_holder(arguments.collect()),
        Some("serve") => serve(PathBuf::from(arguments.next().unwrap())),
        _ => measure(first.to_str().unwrap().parse().unwrap()),
    }
}

fn serve(run_dir: PathBuf) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let holder =
            HolderCommand { program: std::env::current_exe().unwrap(), arguments: vec!["fuse-holder".into()], keeper: None };
        let front_end = LoopFuse::new(run_dir, holder, context());
        let spec = Spec { volume: VolumeId(1), name: "measured".to_owned(), read_only: false };
        let attachment = front_end.export(MemoryBlock::new(SIZE).device(), spec).await.unwrap();
        println!("{}", attachment.device_path());
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
        attachment.detach(false).await.unwrap();
    });
    ExitCode::SUCCESS
}

/// Processor time of a process in microseconds.
fn cpu_us(server: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    // User and system time, in the kernel's ticks of 10 ms.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10_000
}

fn fio(device: &str, rw: &str, block: &str, depth: u32, seconds: u32) -> (f64, f64, f64) {
    let arguments = [
        "--name=m".to_owned(),
        format!("--filename={device}"),
        format!("--rw={rw}"),
        format!("--bs={block}"),
        format!("--iodepth={depth}"),
        format!("--runtime={seconds}"),
        "--time_based=1".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--output-format=json".to_owned(),
    ];
    let output = Command::new("fio").args(arguments).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let side = &report["jobs"][0][if rw.contains("read") { "read" } else { "write" }];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_default();
    (number(&side["iops"]), number(&side["clat_ns"]["mean"]) / 1000.0, number(&side["total_ios"]))
}

fn measure(seconds: u32) -> ExitCode {
    let run_dir = Path::new("/dev/shm").join(format!("basalt-measure-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("serve").arg(&run_dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut device = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut device).unwrap();
    println!("| 4 KiB and more through {} | ops/s | mean µs | server CPU µs per op |\n|---|---|---|---|", device.trim());
    let cases = [("4k", 1), ("4k", 32), ("4k", 128), ("128k", 8), ("1m", 4)];
    for (rw, (block, depth)) in ["randread", "randwrite"].into_iter().flat_map(|rw| cases.map(|case| (rw, case))) {
        let before = cpu_us(&server);
        let (iops, mean, ops) = fio(device.trim(), rw, block, depth, seconds);
        let cpu = (cpu_us(&server) - before) as f64 / ops.max(1.0);
        println!("| {rw} {block} QD{depth} | {iops:.0} | {mean:.1} | {cpu:.1} |");
    }
    server.stdin.take().unwrap().write_all(b"\n").unwrap();
    server.wait().unwrap();
    let _ = std::fs::remove_dir_all(run_dir);
    ExitCode::SUCCESS
}
