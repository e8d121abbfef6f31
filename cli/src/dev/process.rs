//! The processes of a development cluster: started so that they outlive this command, found again by pid and start
//! time, so that a pid the kernel has given to another program is never taken for ours.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often a condition on a process is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A process as the cluster's state file remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    /// Field 22 of /proc/PID/stat: clock ticks after boot at which it started (proc_pid_stat(5)).
    pub(crate) start_ticks: u64,
    /// How it was started, so that it can be started again.
    pub(crate) program: Program,
}

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Its name in the state file and of its log.
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) log: PathBuf,
}

impl Running {
    /// The process still runs, and is the one that was started.
    pub(crate) fn is_alive(&self) -> bool {
        start_ticks(self.pid).is_some_and(|ticks| ticks == self.start_ticks)
    }

    /// Asks it to end, waits, and ends it by force when `patience` is over.
    pub(crate) async fn stop(&self, patience: Duration) -> Result<()> {
        for signal in [nix::sys::signal::Signal::SIGTERM, nix::sys::signal::Signal::SIGKILL] {
            if !self.is_alive() {
                return Ok(());
            }
            match nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid), signal) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).context(format!("could not signal process {}", self.pid)),
            }
            let mut waited = Duration::ZERO;
            while self.is_alive() && waited < patience {
                tokio::time::sleep(POLL).await;
                waited += POLL;
            }
        }
        if self.is_alive() {
            bail!("process {} did not end, not even when killed: it hangs in the kernel", self.pid);
        }
        Ok(())
    }
}

impl Program {
    /// Starts this very program file with other arguments, in a process group of its own and with its output in its
    /// log.
    pub(crate) fn start(&self) -> Result<Running> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("could not open the log {}", self.log.display()))?;
        let me = std::env::current_exe().context("could not find this program's own file")?;
        let child = Command::new(&me)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("could not start {} as {}", me.display(), self.name))?;
        let pid = i32::try_from(child.id()).context("pid out of range")?;
        let start_ticks = start_ticks(pid).with_context(|| format!("{} ended at once; {}", self.name, tail(&self.log)))?;
        // A child that ends while this command still runs must not stay a zombie that looks alive.
        std::thread::Builder::new().name("reap".into()).spawn(move || {
            let mut child = child;
            // Nothing is to be done about a failed wait: the child is gone either way.
            let _ = child.wait();
        })?;
        Ok(Running { pid, start_ticks, program: self.clone() })
    }
}

/// The last lines of a log, to be put into an error.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(8).collect();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    format!("the end of {}:\n  {}", log.display(), lines.join("\n  "))
}

fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_ticks(&stat)
}

/// The start time in a line of /proc/PID/stat; `None` for a zombie. The second field is the program's name in
/// parentheses and may hold anything, so fields are counted from the last `)`.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_read_past_a_name_with_parentheses() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 2 3";
        assert_eq!(parse_start_ticks(stat), Some(98765));
        assert_eq!(parse_start_ticks(&stat.replace(" S ", " Z ")), None);
    }

    #[test]
    fn a_pid_with_another_start_time_is_not_ours() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let ticks = start_ticks(pid).unwrap();
        let program = Program { name: "test".into(), args: vec![], log: PathBuf::new() };
        assert!(Running { pid, start_ticks: ticks, program: program.clone() }.is_alive());
        assert!(!Running { pid, start_ticks: ticks + 1, program }.is_alive());
    }
}
