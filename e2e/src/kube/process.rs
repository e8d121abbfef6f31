//! Daemons of the lab: started once, found again by any later process, ended for certain.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a daemon may take to end before it is killed.
const GOODBYE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// The folders in which daemons are remembered and log.
#[derive(Debug, Clone)]
pub(crate) struct Daemons {
    dir: PathBuf,
}

/// One that was started: its number, and when by the kernel's clock, since numbers come again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    started: u64,
}

impl Daemons {
    pub(crate) fn at(dir: &Path) -> Self {
        Daemons { dir: dir.to_owned() }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn memory(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pid"))
    }

    /// Starts one, with its output in its log.
    pub(crate) fn start(&self, name: &str, mut command: Command) -> Result<Identity> {
        std::fs::create_dir_all(&self.dir)?;
        let log = File::options().create(true).append(true).open(self.log(name))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("could not start {name}: {command:?}"))?;
        let pid = i32::try_from(child.id())?;
        let identity = Identity { pid, started: started(pid).with_context(|| format!("{name} ended at once"))? };
        std::fs::write(self.memory(name), format!("{} {}", identity.pid, identity.started))?;
        Ok(identity)
    }

    /// The daemon of this name, if it runs.
    pub(crate) fn find(&self, name: &str) -> Option<Identity> {
        let text = std::fs::read_to_string(self.memory(name)).ok()?;
        let (pid, began) = text.trim().split_once(' ')?;
        let identity = Identity { pid: pid.parse().ok()?, started: began.parse().ok()? };
        (started(identity.pid) == Some(identity.started)).then_some(identity)
    }

    /// An error with the end of its log when it doesn't run any more.
    pub(crate) fn must_run(&self, name: &str) -> Result<()> {
        if self.find(name).is_some() {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let from = log.lines().count().saturating_sub(12);
        bail!("{name} has ended; its log ends with:\n{}", log.lines().skip(from).collect::<Vec<_>>().join("\n"))
    }

    /// Ends it: asks, waits, kills. One that doesn't run is no error.
    pub(crate) fn stop(&self, name: &str, signal: Signal) -> Result<()> {
        if let Some(identity) = self.find(name) {
            kill(Pid::from_raw(identity.pid), signal).ok();
            let mut waited = Duration::ZERO;
            while started(identity.pid) == Some(identity.started) {
                if waited >= GOODBYE {
                    kill(Pid::from_raw(identity.pid), Signal::SIGKILL).ok();
                }
                if waited >= 2 * GOODBYE {
                    bail!("{name} (process {}) does not end", identity.pid);
                }
                std::thread::sleep(STEP);
                waited += STEP;
                // It may be a child of ours.
                nix::sys::wait::waitpid(Pid::from_raw(identity.pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG)).ok();
            }
        }
        std::fs::remove_file(self.memory(name)).ok();
        Ok(())
    }

    /// Names of all that were started and not stopped.
    pub(crate) fn names(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let name = |file: std::fs::DirEntry| Some(file.file_name().to_str()?.strip_suffix(".pid")?.to_owned());
        files.filter_map(name).collect()
    }
}

/// When a process that lives began, in ticks since boot (proc_pid_stat(5), field 22). A dead one that nobody has waited
/// for doesn't live.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_found_again_and_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let daemons = Daemons::at(dir.path());
        let mut command = Command::new("sleep");
        command.arg("1000");
        let identity = daemons.start("sleeper", command).unwrap();
        assert_eq!(Daemons::at(dir.path()).find("sleeper"), Some(identity));
        daemons.must_run("sleeper").unwrap();
        daemons.stop("sleeper", Signal::SIGTERM).unwrap();
        assert_eq!(daemons.find("sleeper"), None);
        assert!(daemons.names().is_empty());
        daemons.stop("sleeper", Signal::SIGTERM).unwrap();
    }

    #[test]
    fn a_number_that_came_again_is_not_taken_for_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("other.pid"), format!("{} 1", std::process::id())).unwrap();
        let daemons = Daemons::at(dir.path());
        assert_eq!(daemons.find("other"), None);
        assert!(daemons.must_run("other").unwrap_err().to_string().contains("other has ended"));
    }
}
