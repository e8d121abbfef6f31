//! Staging: attach, look at what the device holds, make or check the filesystem, mount it once for the whole node.

use super::publish::shows_device;
use super::{Site, Wanted};
use crate::agent::Attached;
use crate::capability::Access;
use crate::content::Content;
use crate::error::Error;
use crate::host::TargetKind;
use crate::mounts::{DeviceNumber, Mount};
use crate::parameters::Filesystem;
use crate::record::Record;
use api_types::VolumeId;
use std::path::{Path, PathBuf};

/// A volume that is staged.
pub(crate) struct Staged {
    pub(crate) device: PathBuf,
    pub(crate) number: DeviceNumber,
    /// Where the filesystem is mounted; `None` for a bare device.
    pub(crate) mounted: Option<PathBuf>,
}

/// Stages, or finds what is missing of an earlier stage and does that. When it fails, an attachment that nothing uses is
/// given back: a volume that can't be staged here must not be held here.
pub(crate) async fn stage(site: &Site, volume: VolumeId, staging: &Path, wanted: &Wanted) -> Result<Staged, Error> {
    let staging = site.host.resolve(staging).await?;
    let attached = site.agent.attach(volume).await?;
    let result = stage_attached(site, &attached, &staging, wanted).await;
    if result.is_err() {
        give_back(site, &attached).await;
    }
    result
}

async fn stage_attached(site: &Site, attached: &Attached, staging: &Path, wanted: &Wanted) -> Result<Staged, Error> {
    let device = attached.device.clone();
    let Some(number) = site.host.device_number(&device).await? else {
        return Err(Error::Unavailable(format!("{} of volume {} is no block device as yet", device.display(), attached.volume)));
    };
    let Access::Mount { filesystem, flags } = &wanted.capability.access else {
        return Ok(Staged { device, number, mounted: None });
    };
    let mounted = Some(staging.to_owned());
    let filesystem = filesystem.or(wanted.class_filesystem);
    match site.mount_at(staging).await? {
        Some(mount) if mount.device == number => {
            if filesystem.is_some_and(|kind| kind.as_str() != mount.filesystem) || mount.read_only != wanted.capability.read_only
            {
                let how = if mount.read_only { "read-only" } else { "writable" };
                return Err(Error::AlreadyExists(format!(
                    "volume {} is staged at {} already, as {how} {}: other than asked",
                    attached.volume,
                    staging.display(),
                    mount.filesystem
                )));
            }
            return Ok(Staged { device, number, mounted });
        }
        // What an earlier life of the agent or of the node left there: its device is gone.
        Some(_) => site.clear(staging).await?,
        None => {}
    }
    let mut record = site.records.lock(attached.volume)?;
    let (kind, size_bytes) = prepare(site, attached, &mut record, filesystem).await?;
    site.host.make_target(staging, TargetKind::Folder).await?;
    site.host.mount(&device, staging, kind, flags, wanted.capability.read_only).await?;
    if size_bytes < attached.size_bytes && !wanted.capability.read_only {
        // Grown while it was not mounted. A filesystem that is only smaller than its device by rounding has nothing to
        // do, and says so. One that can't grow is still good: it stays mounted, and the size is tried again next time.
        if let Err(error) = site.host.grow(&device, staging, kind).await {
            tracing::warn!(volume = %attached.volume, %error, "could not grow the filesystem to its device");
        }
    }
    Ok(Staged { device, number, mounted })
}

/// Makes sure that the device holds a sound filesystem; answers which, and its size.
async fn prepare(
    site: &Site,
    attached: &Attached,
    record: &mut Record,
    wanted: Option<Filesystem>,
) -> Result<(Filesystem, u64), Error> {
    let device = &attached.device;
    let content = match site.host.inspect(device).await? {
        // The remains of a filesystem that was being made here. A whole one is never taken for remains, even when the
        // note is still there: another node may have finished it and put data in.
        Content::Unsigned if record.is_making()? => Content::Blank,
        content => content,
    };
    match content {
        Content::Blank | Content::HalfMade => {
            let kind = wanted.unwrap_or_default();
            record.set_making(true)?;
            site.host.make(device, kind, record.guard()?).await?;
            record.set_making(false)?;
            Ok((kind, attached.size_bytes))
        }
        Content::Filesystem { kind, size_bytes } if wanted.is_none_or(|wanted| wanted == kind) => {
            record.set_making(false)?;
            site.host.check(device, kind, record.guard()?).await?;
            Ok((kind, size_bytes))
        }
        Content::Filesystem { kind, .. } => Err(Error::Precondition(format!(
            "volume {} holds {}, and {} was asked for: it is never formatted again; ask for {}, or use a new volume",
            attached.volume,
            kind.as_str(),
            wanted.unwrap_or_default().as_str(),
            kind.as_str()
        ))),
        Content::Unsigned => Err(foreign(attached, "data without a known signature")),
        Content::Foreign(what) => Err(foreign(attached, what)),
    }
}

fn foreign(attached: &Attached, what: &str) -> Error {
    Error::Precondition(format!(
        "volume {} holds {what}: it is never formatted over data; use it as a block device, or use a new volume",
        attached.volume
    ))
}

/// Detaches what nothing on this node uses. Best effort: the stage has failed already, and its retry or the unstage
/// comes.
async fn give_back(site: &Site, attached: &Attached) {
    let in_use = async {
        let number = site.host.device_number(&attached.device).await?;
        let mounts = site.host.mounts().await?;
        let shows = |mount: &Mount| Some(mount.device) == number || shows_device(mount, &attached.device);
        Ok::<_, Error>(mounts.iter().any(shows))
    };
    if matches!(in_use.await, Ok(false))
        && let Err(error) = site.agent.detach(attached.volume).await
    {
        tracing::warn!(volume = %attached.volume, %error, "could not detach a volume whose stage failed");
    }
}

/// Undoes a stage, whole or half-done.
pub(crate) async fn unstage(site: &Site, volume: Option<VolumeId>, staging: &Path) -> Result<(), Error> {
    let staging = site.host.resolve(staging).await?;
    site.clear(&staging).await?;
    if let Some(volume) = volume {
        site.agent.detach(volume).await?;
        site.records.remove(volume)?;
    }
    Ok(())
}
