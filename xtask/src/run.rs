//! Runs programs, each for a bounded time.

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// Runs a program in a process group of its own, with its output going where ours goes.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().with_context(|| format!("starting {name}"))?;
    let began = now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ended(status));
        }
        if began.elapsed() > limit {
            let group = format!("-{}", child.id());
            let _already_gone = Command::new("kill").args(["-9", "--", &group]).status();
            child.wait()?;
            return Ok(Ended::TooLate);
        }
        thread::sleep(Duration::from_millis(50));
    }
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
        let began = now();
        let ended = run(Command::new("sh").args(["-c", "sleep 60 & sleep 60"]), Duration::from_millis(100)).unwrap();
        assert_eq!(ended, Ended::TooLate);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn how_a_program_ended_is_told() {
        let limit = Duration::from_secs(20);
        assert_eq!(run(&mut Command::new("true"), limit).unwrap(), Ended::Well);
        assert_eq!(run(Command::new("sh").args(["-c", "exit 3"]), limit).unwrap(), Ended::Badly(Some(3)));
        assert!(run(&mut Command::new("no-such-program-anywhere"), limit).is_err());
    }
}
