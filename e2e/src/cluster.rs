//! See [`Cluster`].

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a test cluster is like.
#[derive(Debug, Clone)]
pub struct Options {
    /// First of the 200 ports: tests that run together take different ones.
    pub base_port: u16,
    /// Agents, each with one device.
    pub agents: u8,
    /// Size of each device.
    pub device: &'static str,
    /// Size of the mounted volume; `None`: none is claimed.
    pub volume: Option<&'static str>,
    /// Its filesystem.
    pub fs: &'static str,
    /// More flags of every agent.
    pub agent_flags: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Options { base_port: 21_000, agents: 4, device: "2Gi", volume: Some("1Gi"), fs: "ext4", agent_flags: Vec::new() }
    }
}

/// A process of the cluster, as its state file has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// How it was started.
    pub program: Program,
}

/// How a process was started.
#[derive(Debug, Clone, Deserialize)]
pub struct Program {
    /// Flags.
    pub args: Vec<String>,
    /// Where its output goes.
    pub log: PathBuf,
}

#[derive(Debug, Deserialize)]
struct State {
    processes: BTreeMap<String, Process>,
}

/// A running cluster. Dropping it takes everything down and deletes it.
pub struct Cluster {
    dir: tempfile::TempDir,
    options: Options,
    processes: BTreeMap<String, Process>,
}

impl Cluster {
    /// Starts one.
    pub fn start(options: Options) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("basalt-e2e-").tempdir()?;
        let mut cluster = Cluster { dir, options, processes: BTreeMap::new() };
        cluster.up()?;
        Ok(cluster)
    }

    /// Runs `basalt dev` again: starts whatever doesn't run.
    pub fn up(&mut self) -> Result<()> {
        let mut command = Command::new(binary()?);
        command.args(["dev", "--no-tree", "--dir"]).arg(self.dir());
        command.args(["--base-port", &self.options.base_port.to_string(), "--agents", &self.options.agents.to_string()]);
        command.args(["--device-size", self.options.device, "--fs", self.options.fs]);
        match self.options.volume {
            Some(size) => command.args(["--size", size]),
            None => command.arg("--no-volume"),
        };
        for flag in &self.options.agent_flags {
            command.arg(format!("--agent-flag={flag}"));
        }
        run(command)?;
        self.reload()
    }

    fn reload(&mut self) -> Result<()> {
        let text = std::fs::read_to_string(self.dir().join("cluster.json")).context("the cluster has no state file")?;
        let state: State = serde_json::from_str(&text).context("the cluster's state file")?;
        self.processes = state.processes;
        Ok(())
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where its volume is mounted.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.dir().join("mnt/dev")
    }

    /// Names of its processes that start so.
    #[must_use]
    pub fn names(&self, prefix: &str) -> Vec<String> {
        self.processes.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// A process by its name.
    pub fn process(&self, name: &str) -> Result<&Process> {
        self.processes.get(name).with_context(|| format!("the cluster has no process `{name}`"))
    }

    /// A process runs.
    pub fn is_running(&self, name: &str) -> Result<bool> {
        Ok(is_running(self.process(name)?.pid))
    }

    /// Sends a signal to a process.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.process(name)?.pid), signal).with_context(|| format!("could not signal {name}"))
    }

    /// Kills a process and waits until the kernel has taken it away.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGKILL)?;
        let pid = self.process(name)?.pid;
        wait_for(&format!("the end of {name}"), || Ok(!is_running(pid)))
    }

    /// Starts a process that has ended, with the flags it had.
    pub fn restart(&mut self, name: &str) -> Result<()> {
        let old = self.process(name)?.clone();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&old.program.log)?;
        let child = {
            use std::os::unix::process::CommandExt;
            Command::new(binary()?)
                .args(&old.program.args)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .process_group(0)
                .spawn()
                .with_context(|| format!("could not start {name} again"))?
        };
        let pid = i32::try_from(child.id())?;
        // Reaped in the background, so that it doesn't stay a zombie that seems to run.
        std::thread::spawn(move || {
            let mut child = child;
            let _ = child.wait();
        });
        self.processes.insert(name.to_owned(), Process { pid, program: old.program });
        self.remember(name, pid)
    }

    /// Writes the new pid into the state file, so that `basalt dev down` finds the process.
    fn remember(&self, name: &str, pid: i32) -> Result<()> {
        let path = self.dir().join("cluster.json");
        let mut state: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let process = &mut state["processes"][name];
        process["pid"] = pid.into();
        process["start_ticks"] = start_ticks(pid).unwrap_or(0).into();
        std::fs::write(&path, serde_json::to_vec_pretty(&state)?)?;
        Ok(())
    }

    /// Runs `basalt` with these arguments on this cluster, and returns what it printed.
    pub fn basalt(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(binary()?);
        command.args(args).arg("--dir").arg(self.dir());
        run(command)
    }

    /// The same, with the answer as JSON.
    pub fn basalt_json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let text = self.basalt(&[&["--output", "json"], args].concat())?;
        serde_json::from_str(&text).with_context(|| format!("`basalt {}` printed no JSON: {text}", args.join(" ")))
    }

    /// Kills every process at once: daemons, CSI driver and the holders of kernel devices.
    pub fn kill_everything(&self) -> Result<()> {
        let mut pids: Vec<i32> = self.processes.values().map(|process| process.pid).collect();
        pids.extend(self.holders()?);
        for pid in &pids {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        wait_for("the end of all processes", || Ok(pids.iter().all(|pid| !is_running(*pid))))
    }

    /// Pids of the processes that hold kernel devices open for this cluster's agents.
    pub fn holders(&self) -> Result<Vec<i32>> {
        let dir = self.dir().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains("fuse-holder") && line.contains(&dir) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// Unmounts what a killed cluster left mounted, as the end of a node would.
    pub fn forget_mount(&self) -> Result<()> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let dir = self.dir().display().to_string();
        let mut points: Vec<&str> =
            mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|point| point.starts_with(&dir)).collect();
        points.reverse();
        for point in points {
            let mut command = Command::new("umount");
            command.args(["-l", point]);
            run(command)?;
        }
        Ok(())
    }

    /// Starts whatever doesn't run, and mounts nothing.
    pub fn up_without_mount(&mut self) -> Result<()> {
        let volume = self.options.volume.take();
        let up = self.up();
        self.options.volume = volume;
        up
    }

    /// Attaches a volume on the first agent, and answers its kernel device.
    pub fn attach(&self, volume: &str) -> Result<String> {
        let attached = self.basalt_json(&["volume", "attach", volume])?;
        attached["device_path"].as_str().map(str::to_owned).with_context(|| format!("no device path in {attached}"))
    }

    /// Takes it away again.
    pub fn detach(&self, volume: &str) -> Result<()> {
        self.basalt(&["volume", "detach", volume]).map(drop)
    }

    /// Resident memory of a process in KiB.
    pub fn resident_kib(&self, name: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process(name)?.pid))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        Ok(line.split_ascii_whitespace().nth(1).context("no number")?.parse()?)
    }

    /// CPU time that all processes have used so far, holders included, in clock ticks (1/100 s).
    pub fn cpu_ticks(&self) -> Result<u64> {
        let holders = self.holders()?;
        let pids = self.processes.values().map(|process| process.pid).chain(holders);
        Ok(pids.filter_map(cpu_ticks).sum())
    }

    /// Bytes that all agents have made the disk write since each was started.
    pub fn written_bytes(&self) -> Result<u64> {
        let mut written = 0;
        for name in self.names("agent-") {
            let text = std::fs::read_to_string(format!("/proc/{}/io", self.process(&name)?.pid))?;
            let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("no write_bytes")?;
            written += line.parse::<u64>()?;
        }
        Ok(written)
    }

    /// The sum of a metric over all its labels and over the processes whose name starts so.
    pub fn metric_sum(&self, prefix: &str, metric: &str) -> Result<f64> {
        let mut sum = 0.0;
        for name in self.names(prefix) {
            for line in self.metrics(&name)?.lines() {
                let Some(rest) = line.strip_prefix(metric).filter(|rest| rest.starts_with(['{', ' '])) else { continue };
                sum += rest.rsplit(' ').next().unwrap_or_default().parse::<f64>().with_context(|| line.to_owned())?;
            }
        }
        Ok(sum)
    }

    /// What a process answers to Prometheus.
    pub fn metrics(&self, name: &str) -> Result<String> {
        let args = &self.process(name)?.program.args;
        let flag = args.iter().position(|arg| arg == "--metrics-listen").context("no metrics address")?;
        let mut stream = std::net::TcpStream::connect(args.get(flag + 1).context("no metrics address")?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::env::var_os("BASALT_E2E_KEEP").is_some() {
            eprintln!("kept: {}", self.dir().display());
            self.dir.disable_cleanup(true);
            return;
        }
        for process in self.processes.values() {
            // A process that a test left stopped can't be told to end.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
        }
        let down = binary().and_then(|binary| {
            let mut command = Command::new(binary);
            command.args(["dev", "down", "--dir"]).arg(self.dir());
            run(command)
        });
        if let Err(error) = down {
            // A mount whose server is gone would hang whoever touches it.
            let _ = self.forget_mount();
            eprintln!("could not take the cluster down: {error:#}");
            for process in self.processes.values() {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
        // One that no agent has taken up again keeps a mount on which the removal of the directory would wait for ever.
        for pid in self.holders().unwrap_or_default() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.forget_mount();
    }
}

/// Waits until `condition` holds; fails after a generous bound.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a test waits in real time")]
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > PATIENCE {
            bail!("gave up waiting for {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs a command to its end; its output is the answer, or part of the error.
pub fn run(mut command: Command) -> Result<String> {
    let text = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("could not run {text}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{text} failed ({}):\n{out}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(out)
}

/// Runs a program with these arguments, see [`run`].
pub fn run_program(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    run(command)
}

/// The binary under test.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BASALT_BIN") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let beside = test.ancestors().nth(2).context("a test has a target directory")?.join("basalt");
    if !beside.exists() {
        bail!("{} is not there: build it with `cargo build -p cli`, or run `cargo xtask test`", beside.display());
    }
    Ok(beside)
}

fn is_running(pid: i32) -> bool {
    start_ticks(pid).is_some()
}

fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

fn start_ticks(pid: i32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    if matches!(fields[0].as_str(), "Z" | "X") {
        return None;
    }
    fields[19].parse().ok()
}

fn cpu_ticks(pid: i32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
}
