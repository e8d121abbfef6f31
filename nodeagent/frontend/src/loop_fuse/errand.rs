//! Calls to the kernel that make it ask *us*, done by a process of their own.
//!
//! The kernel lets nobody interrupt a call that waits for a request which a FUSE server has read, not even with -9. An
//! agent that was killed while one of its own threads was in such a call could not end before its successor has
//! answered the request, and the successor could not start before the ports and devices of the dead one are free. So
//! whatever opens, looks at or closes the file behind a loop device, or the device itself, is an errand: a process that
//! holds nothing else may wait as long as it takes.

use super::HolderCommand;
use super::device::LoopDevice;
use super::place::Place;
use crate::front_end::FrontEndError;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The word that tells an errand from a holder. What follows it is an [`Errand`] as JSON.
pub(super) const WORD: &str = "--errand";

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Errand {
    /// Make a loop device over a file. Answers its number.
    Make {
        /// The file.
        file: PathBuf,
        /// Refuse writes.
        read_only: bool,
    },
    /// Have the kernel look at the file's size, and take it over to the device. Answers the size in bytes.
    Resize {
        /// The file.
        file: PathBuf,
        /// The device's number.
        number: u32,
    },
    /// Take a device away, see [`LoopDevice::remove`]. Answers zero.
    Remove {
        /// The device's number.
        number: u32,
        /// When its last user goes.
        lazily: bool,
    },
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Done(u64),
    Busy { device: String, by: String },
    Failed(String),
}

impl Errand {
    pub(super) fn make(place: &Place, read_only: bool) -> Self {
        Errand::Make { file: place.file(), read_only }
    }

    pub(super) fn resize(place: &Place, device: &LoopDevice) -> Self {
        Errand::Resize { file: place.file(), number: device.number }
    }

    pub(super) fn remove(device: &LoopDevice, lazily: bool) -> Self {
        Errand::Remove { number: device.number, lazily }
    }

    /// Has a process do it, and waits for that without a bound: call it where waiting is allowed.
    pub(super) fn send(&self, command: &HolderCommand) -> Result<u64, FrontEndError> {
        let failed = |error: &dyn std::fmt::Display| FrontEndError::Errand(format!("{self:?}: {error}"));
        let json = serde_json::to_string(self).map_err(|error| failed(&error))?;
        let ran = command.run(&[OsStr::new(WORD), OsStr::new(&json)], None)?;
        match serde_json::from_str(&ran.output) {
            Ok(Outcome::Done(answer)) => Ok(answer),
            Ok(Outcome::Busy { device, by }) => Err(FrontEndError::Busy { device, by }),
            Ok(Outcome::Failed(text)) => Err(FrontEndError::Errand(text)),
            Err(_) => Err(failed(&format!("it ended without an answer: {}", ran.status))),
        }
    }

    fn run(&self) -> Result<u64, FrontEndError> {
        match self {
            Errand::Make { file, read_only } => Ok(LoopDevice::create(file, *read_only)?.number.into()),
            Errand::Resize { file, number } => {
                look_again(file)?;
                LoopDevice { number: *number }.take_size()
            }
            Errand::Remove { number, lazily } => LoopDevice { number: *number }.remove(*lazily).map(|()| 0),
        }
    }
}

/// Makes the kernel ask for the file's size. Returns when that is answered.
fn look_again(file: &Path) -> Result<(), FrontEndError> {
    statx(CWD, file, AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)
        .map(drop)
        .map_err(|errno| FrontEndError::io(format!("looking at {}", file.display()))(errno.into()))
}

/// The process that does an errand.
pub(super) fn run(json: Option<OsString>) -> ExitCode {
    let errand = json.and_then(|json| serde_json::from_str::<Errand>(json.to_str()?).ok());
    let outcome = match errand.as_ref().map(Errand::run) {
        Some(Ok(answer)) => Outcome::Done(answer),
        Some(Err(FrontEndError::Busy { device, by })) => Outcome::Busy { device, by },
        Some(Err(error)) => Outcome::Failed(error.to_string()),
        None => Outcome::Failed("that is no errand".to_owned()),
    };
    let text = serde_json::to_string(&outcome).unwrap_or_default();
    // Whoever asked may have gone by now; what was done is found by the next.
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errand_is_spelled_on_the_command_line_and_read_back() {
        let errand = Errand::Make { file: "/run/basalt/mnt/volume".into(), read_only: true };
        let json = serde_json::to_string(&errand).unwrap();
        assert_eq!(serde_json::from_str::<Errand>(&json).unwrap(), errand);
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_that_names_the_errand() {
        let command = HolderCommand { program: "/bin/true".into(), arguments: Vec::new(), keeper: None };
        let error = Errand::Remove { number: 7, lazily: false }.send(&command).unwrap_err().to_string();
        assert!(error.contains("Remove") && error.contains("without an answer"), "{error}");
    }
}
