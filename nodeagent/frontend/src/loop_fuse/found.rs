//! What an earlier process of this agent left attached.

use super::device::LoopDevice;
use super::place::{Place, root};
use crate::holder::Link;
use api_types::VolumeId;
use nix::mount::{MntFlags, umount2};
use std::path::{Path, PathBuf};

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

/// The directories of attachments, in order of their names.
fn places(run_dir: &Path) -> Vec<(VolumeId, Place)> {
    let Ok(entries) = std::fs::read_dir(root(run_dir)) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, Place::at(entry.path())))
        })
        .collect();
    found.sort_by_key(|&(volume, _)| volume);
    found
}

/// A holder that answers. One that is connected to and says nothing for a second is as good as dead: it is not, but
/// nothing can be served through it.
fn lives(place: &Place) -> bool {
    Link::connect(&place.socket()).ok().flatten().is_some_and(|link| link.answers())
}

/// What was attached before a crash. Blocking, quick; call it once at start, from a blocking thread.
#[must_use]
pub fn adopt(run_dir: &Path) -> Vec<FoundAttachment> {
    places(run_dir)
        .into_iter()
        .map(|(volume, place)| {
            let memory = place.recall().filter(|memory| memory.volume == volume);
            FoundAttachment {
                volume,
                name: memory.as_ref().map_or_else(|| volume.to_string(), |memory| memory.name.clone()),
                read_only: memory.is_some_and(|memory| memory.read_only),
                device_path: place.device().map(|device| device.path().display().to_string()),
                state: if lives(&place) { FoundState::Waiting } else { FoundState::Dead },
            }
        })
        .collect()
}

/// Removes what can't be taken up again: dead mounts, loop devices and directories. Answers, for people, what had to
/// stay and why (a dead loop device under a mounted filesystem goes when that is unmounted). What lives is not touched.
/// Blocking.
#[must_use]
pub fn cleanup_orphans(run_dir: &Path) -> Vec<String> {
    let mut stays = Vec::new();
    let mut alive = Vec::new();
    for (_, place) in places(run_dir) {
        if lives(&place) {
            alive.push(place);
        } else {
            stays.extend(place.clear());
        }
    }
    // What has no directory any more.
    let known = |path: &Path| alive.iter().any(|place| path.starts_with(place.dir()));
    for (device, backing) in LoopDevice::below(&root(run_dir)) {
        let living = known(&backing) || device.labelled_below(alive.iter().map(Place::dir));
        if !living && let Err(error) = device.remove(true) {
            stays.push(error.to_string());
        }
    }
    for mount in mounts_below(&root(run_dir)).into_iter().filter(|mount| !known(mount)) {
        if let Err(errno) = umount2(&mount, MntFlags::MNT_DETACH) {
            stays.push(format!("unmounting {}: {errno}", mount.display()));
        }
    }
    stays
}

/// Mount points below `dir`.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The fifth field is the mount point. Ours have no bytes that the kernel escapes, or `starts_with` says no.
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(dir)).collect()
}

/// Takes an attachment of an earlier process away without serving it again: its users get I/O errors. For a volume
/// that can't be opened any more, because it was deleted or is served elsewhere. Answers what had to stay. Blocking.
#[must_use]
pub fn abandon(run_dir: &Path, volume: VolumeId) -> Vec<String> {
    let place = Place::of(run_dir, volume);
    let mut stays = Vec::new();
    if let Ok(Some(link)) = Link::connect(&place.socket())
        && let Err(error) = link.detach(true)
    {
        stays.push(error.to_string());
    }
    stays.extend(place.clear());
    stays
}
