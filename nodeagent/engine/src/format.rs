//! Making a device ours.

use crate::checkpoint::Checkpoint;
use crate::image::Image;
use crate::inspect::{Contents, InspectError, inspect};
use crate::shell::write_region;
use crate::superblock::{Layout, SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use api_types::{ClusterId, DeviceId, QosClass, Rng};
use bytes::Bytes;
use nodeagent_device::{Device, Durability, Write};
use std::rc::Rc;

/// So much is zeroed at both ends of the device.
const WIPE_BYTES: u64 = 256 << 10;

/// How to format.
#[derive(Clone)]
pub struct FormatOptions {
    /// The cluster the device is to belong to.
    pub cluster: ClusterId,
    /// Its name; drawn at random when `None`.
    pub device_id: Option<DeviceId>,
    /// The exact id of what may be overwritten, as [`Contents`] prints it. `None`: only a blank device is formatted.
    pub overwrite: Option<String>,
    /// What time it is, for the record: milliseconds since 1970.
    pub created_ms: u64,
}

impl FormatOptions {
    /// Formats a blank device for this cluster, under a name drawn at random.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        FormatOptions { cluster, device_id: None, overwrite: None, created_ms: 0 }
    }
}

/// Why a device wasn't formatted. Nothing was changed on it, except for [`FormatError::Io`].
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It holds something.
    #[error("{name} holds {contents}: nothing was written; to overwrite it, give exactly that id")]
    NotBlank {
        /// Which device.
        name: String,
        /// What it holds.
        contents: Box<Contents>,
    },
    /// The id given isn't that of what it holds.
    #[error("{name} holds {contents}, not `{given}`: nothing was written")]
    OtherContents {
        /// Which device.
        name: String,
        /// What it holds.
        contents: Box<Contents>,
        /// What was said that it holds.
        given: String,
    },
    /// There is no room for a store on it.
    #[error("{name} has {size_bytes} bytes: a device needs at least {least_bytes}")]
    TooSmall {
        /// Which device.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// The least size.
        least_bytes: u64,
    },
    /// It couldn't be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// Writing failed part of the way. Format again.
    #[error("cannot write to {name}")]
    Io {
        /// Which device.
        name: String,
        /// What the device said.
        #[source]
        source: std::io::Error,
    },
}

/// Puts an empty store on a device. Refuses one that holds anything, unless its exact id is given.
pub async fn format(device: Rc<dyn Device>, options: FormatOptions, rng: &dyn Rng) -> Result<Superblock, FormatError> {
    let info = device.info().clone();
    let name = info.name.clone();
    let layout = Layout::for_size(info.size_bytes).map_err(|least_bytes| FormatError::TooSmall {
        name: name.clone(),
        size_bytes: info.size_bytes,
        least_bytes,
    })?;
    let contents = inspect(device.as_ref()).await?;
    match &options.overwrite {
        _ if contents.is_blank() => {}
        None => return Err(FormatError::NotBlank { name, contents: Box::new(contents) }),
        Some(given) if *given == contents.to_string() => {}
        Some(given) => {
            return Err(FormatError::OtherContents { name, contents: Box::new(contents), given: given.clone() });
        }
    }
    let device_id = options.device_id.unwrap_or_else(|| DeviceId(rng.next_u64().max(1)));
    let superblock = Superblock {
        cluster: options.cluster,
        device: device_id,
        size_bytes: info.size_bytes,
        block_bytes: info.block_bytes,
        created_ms: options.created_ms,
        layout,
    };
    // Drawn, so that journal blocks of an earlier store of the same name can't be taken for this one's.
    let incarnation = rng.next_u64() >> 16;
    write_store(device.as_ref(), &superblock, incarnation).await.map_err(|source| FormatError::Io { name, source })?;
    Ok(superblock)
}

/// Checkpoints first, superblock last: until then the device is none of ours.
async fn write_store(device: &dyn Device, superblock: &Superblock, incarnation: u64) -> std::io::Result<()> {
    let write = |offset: u64, data: Bytes| {
        device.write(Write { offset, data, durability: Durability::Durable, qos: QosClass::Foreground })
    };
    // What could be taken for another store or a partition table at the ends of the device.
    let tail_bytes = superblock.size_bytes.min(WIPE_BYTES);
    let zeros = Bytes::from(vec![0; usize::try_from(WIPE_BYTES).unwrap_or(0)]);
    write(0, zeros.clone()).await?;
    write(SUPERBLOCK_AT[1], zeros.slice(..SUPERBLOCK_BYTES)).await?;
    write(superblock.size_bytes - tail_bytes, zeros).await?;
    for number in [1, 2] {
        let checkpoint = Checkpoint { incarnation, number, journal_from: 1 };
        let bytes = Bytes::from(checkpoint.encode(superblock.device, &Image::default()));
        write_region(device, superblock, number, bytes, || false).await?;
    }
    for at in [SUPERBLOCK_AT[1], SUPERBLOCK_AT[0]] {
        write(at, Bytes::from(superblock.encode())).await?;
    }
    device.flush().await
}
