//! How full a volume is.

use super::Site;
use crate::error::Error;
use crate::proto::volume_usage::Unit;
use crate::proto::{NodeGetVolumeStatsResponse, VolumeUsage};
use api_types::VolumeId;
use std::path::Path;

/// Space and inodes of a filesystem, or the size of a bare device.
pub(crate) async fn stats(site: &Site, volume: VolumeId, path: &Path) -> Result<NodeGetVolumeStatsResponse, Error> {
    let path = site.host.resolve(path).await?;
    let not_here = || Error::NotFound(format!("volume {volume} at {}", path.display()));
    let mount = site.mount_at(&path).await?.ok_or_else(not_here)?;
    let attached = site.agent.attached(volume).await?.ok_or_else(not_here)?;
    let number = site.host.device_number(&attached.device).await?.ok_or_else(not_here)?;
    if mount.device == number {
        let usage = site.host.usage(&path).await?;
        let entry = |unit: Unit, (total, used, available): (u64, u64, u64)| VolumeUsage {
            unit: unit.into(),
            total: total as i64,
            used: used as i64,
            available: available as i64,
        };
        return Ok(NodeGetVolumeStatsResponse {
            usage: vec![entry(Unit::Bytes, usage.bytes), entry(Unit::Inodes, usage.inodes)],
        });
    }
    if site.host.device_number(&path).await? == Some(number) {
        let total = attached.size_bytes as i64;
        return Ok(NodeGetVolumeStatsResponse {
            usage: vec![VolumeUsage { unit: Unit::Bytes.into(), total, used: 0, available: 0 }],
        });
    }
    Err(not_here())
}
