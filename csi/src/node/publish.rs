//! Publishing: the staged filesystem, or the bare device, appears at the path of one pod.

use super::stage::{self, Staged};
use super::{Site, Wanted};
use crate::error::Error;
use crate::host::TargetKind;
use crate::mounts::Mount;
use api_types::VolumeId;
use std::path::Path;

/// Stages again whatever was lost of the stage (a restarted agent or node), then binds. So a pod never gets an empty
/// folder, and a block device is that of today.
pub(crate) async fn publish(
    site: &Site,
    volume: VolumeId,
    staging: &Path,
    target: &Path,
    wanted: &Wanted,
    read_only: bool,
) -> Result<(), Error> {
    let staged = stage::stage(site, volume, staging, wanted).await?;
    let target = site.host.resolve(target).await?;
    if let Some(mount) = site.mount_at(&target).await? {
        if is_same(site, &staged, &target, mount.device).await {
            if mount.read_only == read_only || staged.mounted.is_none() {
                return Ok(());
            }
            return Err(Error::AlreadyExists(format!(
                "volume {volume} is published at {} already, {}: other than asked",
                target.display(),
                if mount.read_only { "read-only" } else { "writable" }
            )));
        }
        // Left there by a device that is gone.
        site.clear(&target).await?;
    }
    if wanted.capability.single_pod {
        alone(site, volume, &staged).await?;
    }
    match &staged.mounted {
        Some(staging) => {
            site.host.make_target(&target, TargetKind::Folder).await?;
            site.host.bind(staging, &target, read_only).await
        }
        None => {
            site.host.make_target(&target, TargetKind::File).await?;
            site.host.bind(&staged.device, &target, false).await
        }
    }
}

/// Refuses a second place of a volume that one pod may have. Mounts that are not published places, such as a subPath,
/// count too: whoever has them still has the volume.
async fn alone(site: &Site, volume: VolumeId, staged: &Staged) -> Result<(), Error> {
    let mounts = site.host.mounts().await?;
    let other = mounts.iter().find(|mount| match &staged.mounted {
        Some(staging) => mount.device == staged.number && mount.target != *staging,
        None => shows_device(mount, &staged.device),
    });
    match other {
        None => Ok(()),
        Some(mount) => Err(Error::Precondition(format!(
            "volume {volume} is for a single pod and published at {} already: unpublish it there first",
            mount.target.display()
        ))),
    }
}

/// The mount is a bind of this device's node in /dev.
pub(crate) fn shows_device(mount: &Mount, device: &Path) -> bool {
    device.strip_prefix("/dev").is_ok_and(|name| mount.root == Path::new("/").join(name))
}

/// What is mounted at `target` shows today's device.
async fn is_same(site: &Site, staged: &Staged, target: &Path, mounted: (u32, u32)) -> bool {
    match staged.mounted {
        Some(_) => mounted == staged.number,
        None => matches!(site.host.device_number(target).await, Ok(Some(number)) if number == staged.number),
    }
}

/// Takes the volume away from the pod's path. Asks the table of mounts, not the device, which may be dead.
pub(crate) async fn unpublish(site: &Site, target: &Path) -> Result<(), Error> {
    let target = site.host.resolve(target).await?;
    site.clear(&target).await?;
    site.host.remove_target(&target).await
}
