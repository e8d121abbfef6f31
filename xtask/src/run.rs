//! Runs programs, each for a bounded time.

use anyhow::{Context, Result};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// With success.
    Well,
    /// With this status, or by a signal.
    Badly(Option<i32>),
    /// Not in time, so it was killed with everything it had started.
    TooLate,
}

/// Runs a program, with its output going where ours goes. It stays in our process group, so that what ends us from a
/// terminal ends it too.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| format!("starting {name}"))?;
    let began = now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ended(status));
        }
        if began.elapsed() > limit {
            let family = family_of(child.id());
            let _some_already_gone = Command::new("kill").arg("-9").args(family).stderr(Stdio::null()).status();
            child.wait()?;
            return Ok(Ended::TooLate);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// A process and everything that descends from it.
fn family_of(first: u32) -> Vec<String> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(parent_of).collect();
    let mut family = vec![first];
    let mut place = 0;
    while let Some(parent) = family.get(place).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        place += 1;
    }
    family.iter().map(u32::to_string).collect()
}

/// A process and its parent, from a folder of `/proc`.
fn parent_of(entry: fs::DirEntry) -> Option<(u32, u32)> {
    let process = entry.file_name().to_str()?.parse().ok()?;
    let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
    // The name may hold spaces and brackets; state and parent come after its last bracket.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Some((process, parent))
}

fn ended(status: ExitStatus) -> Ended {
    if status.success() { Ended::Well } else { Ended::Badly(status.code()) }
}

/// Says whether a program is there, by its name in the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where root's tools are, also when a user's path leaves them out.
    let more = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(more).any(|folder| folder.join(program).is_file())
}

#[expect(clippy::disallowed_methods, reason = "a tool that times programs; no core")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        let ended = run(Command::new("sh").args(["-c", &script]), Duration::from_secs(2)).unwrap();
        assert_eq!(ended, Ended::TooLate);
        let child = fs::read_to_string(pid_file).unwrap();
        let lives = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            // Dead and not collected by its new parent as yet is dead.
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        while lives() {
            thread::yield_now();
        }
    }

    #[test]
    fn how_a_program_ended_is_told() {
        let limit = Duration::from_secs(20);
        assert_eq!(run(&mut Command::new("true"), limit).unwrap(), Ended::Well);
        assert_eq!(run(Command::new("sh").args(["-c", "exit 3"]), limit).unwrap(), Ended::Badly(Some(3)));
        assert!(run(&mut Command::new("no-such-program-anywhere"), limit).is_err());
    }
}
