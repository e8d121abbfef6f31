//! Growing: the masters have the new size; take it over to the device and to the filesystem on it.

use super::Site;
use crate::error::Error;
use crate::parameters::Filesystem;
use crate::proto::CapacityRange;
use api_types::VolumeId;
use std::path::Path;

/// Answers the size of the device, once the filesystem fills it.
pub(crate) async fn expand(site: &Site, volume: VolumeId, path: &Path, range: Option<&CapacityRange>) -> Result<u64, Error> {
    let path = site.host.resolve(path).await?;
    let attached = site.agent.attached(volume).await?.ok_or_else(|| Error::NotFound(format!("volume {volume} on this node")))?;
    let number = site.host.device_number(&attached.device).await?;
    let mount = site.mount_at(&path).await?;
    let is_filesystem = mount.as_ref().is_some_and(|mount| Some(mount.device) == number);
    // A bare device is bound to its path, or, before it is published, nowhere.
    if !is_filesystem && mount.is_some() && site.host.device_number(&path).await? != number {
        return Err(Error::NotFound(format!("volume {volume} at {}", path.display())));
    }
    let size = site.agent.resize(volume).await?;
    if range.is_some_and(|range| u64::try_from(range.required_bytes).is_ok_and(|required| required > size)) {
        return Err(Error::OutOfRange(format!("volume {volume} has {size} bytes: expand it at the controller before the node")));
    }
    if let Some(mount) = mount.filter(|_| is_filesystem) {
        let kind = Filesystem::parse("the filesystem", &mount.filesystem)?;
        site.host.grow(&attached.device, &path, kind).await?;
    }
    Ok(size)
}
