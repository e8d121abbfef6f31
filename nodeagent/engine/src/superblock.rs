//! The superblock: whose device this is and where everything on it stands. Written at format, in two copies, and never
//! again.

use api_types::checksum::crc32c;
use api_types::limits::EXTENT_BYTES;
use api_types::{ClusterId, DeviceId};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of one copy in bytes.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
/// Where the copies stand. The second is out of reach of whoever writes a partition table or a boot sector by mistake.
pub(crate) const SUPERBLOCK_AT: [u64; 2] = [0, 1 << 20];
/// The version that this code writes and reads.
pub(crate) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"BSLTDISK";
const CRC_AT: usize = SUPERBLOCK_BYTES - 4;
const MIB: u64 = 1 << 20;
/// Fewer extents than this make no useful store.
const EXTENTS_MIN: u64 = 16;
/// A chunk's worst share of a checkpoint per extent it holds, in bytes: its entry and one run.
const CHECKPOINT_BYTES_PER_EXTENT: u64 = 64;
/// Room for at least this many owners' epoch floors, 16 bytes each.
const FLOOR_BYTES_MIN: u64 = 1 << 20;
const FLOOR_BYTES_MAX: u64 = 16 << 20;

/// Where things stand on a device, in bytes from its start. All multiples of 1 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The journal ring.
    pub journal_offset: u64,
    /// Its length.
    pub journal_bytes: u64,
    /// The two checkpoint regions.
    pub checkpoint_offsets: [u64; 2],
    /// The length of each.
    pub checkpoint_bytes: u64,
    /// The first extent.
    pub extents_offset: u64,
    /// How many extents of 1 MiB there are.
    pub extents: u32,
}

impl Layout {
    /// The layout for a device of so many bytes. The error is the least size a device must have.
    pub(crate) fn for_size(size_bytes: u64) -> Result<Layout, u64> {
        let build = |size: u64| {
            let journal_offset = 2 * MIB;
            let journal_bytes = (size / 256).clamp(MIB, 32 * MIB) / MIB * MIB;
            let extents_at_most = size / MIB;
            let floors = (extents_at_most * 16).clamp(FLOOR_BYTES_MIN, FLOOR_BYTES_MAX);
            let checkpoint_bytes = (4096 + floors + extents_at_most * CHECKPOINT_BYTES_PER_EXTENT).next_multiple_of(MIB);
            let first = journal_offset + journal_bytes;
            let extents_offset = first + 2 * checkpoint_bytes;
            let extents = size.saturating_sub(extents_offset) / u64::from(EXTENT_BYTES);
            (journal_offset, journal_bytes, first, checkpoint_bytes, extents_offset, extents)
        };
        let (journal_offset, journal_bytes, first, checkpoint_bytes, extents_offset, extents) = build(size_bytes);
        if extents < EXTENTS_MIN {
            let (.., offset, _) = build(EXTENTS_MIN * MIB);
            return Err(offset + EXTENTS_MIN * MIB);
        }
        // 4 PiB of extents is beyond any disk; what is more stays unused rather than overflows.
        let extents = u32::try_from(extents).unwrap_or(u32::MAX);
        Ok(Layout {
            journal_offset,
            journal_bytes,
            checkpoint_offsets: [first, first + checkpoint_bytes],
            checkpoint_bytes,
            extents_offset,
            extents,
        })
    }

    /// The most epoch floors that are sure to fit a checkpoint.
    pub(crate) fn floors_max(&self) -> usize {
        let rest = self.checkpoint_bytes - 4096 - u64::from(self.extents) * CHECKPOINT_BYTES_PER_EXTENT;
        usize::try_from(rest / 16).unwrap_or(usize::MAX)
    }

    /// Where the extents end.
    pub(crate) fn end(&self) -> u64 {
        self.extents_offset + u64::from(self.extents) * u64::from(EXTENT_BYTES)
    }

    fn is_sound(&self) -> bool {
        let parts = [
            (0, 2 * MIB),
            (self.journal_offset, self.journal_bytes),
            (self.checkpoint_offsets[0], self.checkpoint_bytes),
            (self.checkpoint_offsets[1], self.checkpoint_bytes),
            (self.extents_offset, u64::from(self.extents) * u64::from(EXTENT_BYTES)),
        ];
        let aligned = parts.iter().all(|(at, bytes)| at % MIB == 0 && bytes % MIB == 0 && *bytes > 0);
        let ordered = parts.windows(2).all(|pair| pair[0].0.checked_add(pair[0].1).is_some_and(|end| end <= pair[1].0));
        let room = 4096 + u64::from(self.extents) * CHECKPOINT_BYTES_PER_EXTENT;
        aligned && ordered && self.checkpoint_bytes > room
    }
}

/// Whose device it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its own name.
    pub device: DeviceId,
    /// The size it was formatted for, in bytes.
    pub size_bytes: u64,
    /// The device's block when it was formatted.
    pub block_bytes: u32,
    /// When it was formatted: milliseconds since 1970.
    pub created_ms: u64,
    /// Where things stand on it.
    pub layout: Layout,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    block_bytes: U32,
    cluster: U128,
    device: U64,
    size_bytes: U64,
    created_ms: U64,
    journal_offset: U64,
    journal_bytes: U64,
    checkpoint_offsets: [U64; 2],
    checkpoint_bytes: U64,
    extents_offset: U64,
    extent_bytes: U32,
    extents: U32,
}
const RAW_BYTES: usize = size_of::<Raw>();
const _: () = assert!(RAW_BYTES == 112);

/// Why a block isn't a superblock that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SuperblockError {
    #[error("no superblock")]
    Absent,
    #[error("version {0}")]
    Version(u32),
    #[error("checksum differs")]
    Checksum,
    #[error("field out of range")]
    Field,
}

impl Superblock {
    /// How the device is named where a person must confirm that it may be overwritten.
    #[must_use]
    pub fn name(&self) -> String {
        format!("basalt:{}/{}", self.cluster, self.device)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let layout = &self.layout;
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            block_bytes: self.block_bytes.into(),
            cluster: self.cluster.0.into(),
            device: self.device.0.into(),
            size_bytes: self.size_bytes.into(),
            created_ms: self.created_ms.into(),
            journal_offset: layout.journal_offset.into(),
            journal_bytes: layout.journal_bytes.into(),
            checkpoint_offsets: layout.checkpoint_offsets.map(U64::from),
            checkpoint_bytes: layout.checkpoint_bytes.into(),
            extents_offset: layout.extents_offset.into(),
            extent_bytes: EXTENT_BYTES.into(),
            extents: layout.extents.into(),
        };
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        bytes[..RAW_BYTES].copy_from_slice(raw.as_bytes());
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| SuperblockError::Absent)?;
        if raw.magic != MAGIC || bytes.len() < SUPERBLOCK_BYTES {
            return Err(SuperblockError::Absent);
        }
        if crc32c(&bytes[..CRC_AT]).to_le_bytes() != bytes[CRC_AT..SUPERBLOCK_BYTES] {
            return Err(SuperblockError::Checksum);
        }
        if raw.version.get() != VERSION {
            return Err(SuperblockError::Version(raw.version.get()));
        }
        let superblock = Superblock {
            cluster: ClusterId(raw.cluster.get()),
            device: DeviceId(raw.device.get()),
            size_bytes: raw.size_bytes.get(),
            block_bytes: raw.block_bytes.get(),
            created_ms: raw.created_ms.get(),
            layout: Layout {
                journal_offset: raw.journal_offset.get(),
                journal_bytes: raw.journal_bytes.get(),
                checkpoint_offsets: raw.checkpoint_offsets.map(U64::get),
                checkpoint_bytes: raw.checkpoint_bytes.get(),
                extents_offset: raw.extents_offset.get(),
                extents: raw.extents.get(),
            },
        };
        let known = raw.extent_bytes.get() == EXTENT_BYTES && matches!(superblock.block_bytes, 512 | 4096);
        if !known || !superblock.layout.is_sound() || superblock.layout.end() > superblock.size_bytes {
            return Err(SuperblockError::Field);
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            cluster: ClusterId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            device: DeviceId(0x1122_3344_5566_7788),
            size_bytes: 64 << 20,
            block_bytes: 4096,
            created_ms: 1_700_000_000_000,
            layout: Layout::for_size(64 << 20).unwrap(),
        }
    }

    #[test]
    fn bytes_are_these() {
        let bytes = sample().encode();
        let head: String = bytes[..112].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            head,
            concat!(
                "42534c544449534b",                 // magic
                "01000000",                         // version
                "00100000",                         // block
                "100f0e0d0c0b0a090807060504030201", // cluster
                "8877665544332211",                 // device
                "0000000400000000",                 // size
                "0068e5cf8b010000",                 // created
                "0000200000000000",                 // journal
                "0000100000000000",
                "0000300000000000", // checkpoints
                "0000500000000000",
                "0000200000000000",
                "0000700000000000", // extents
                "00001000",
                "39000000",
            )
        );
        assert!(bytes[112..4092].iter().all(|byte| *byte == 0));
        assert_eq!(Superblock::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let bytes = sample().encode();
        for at in (0..112).chain([200, 4092, 4095]) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Superblock::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = sample().encode();
        bytes[8] = 9;
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Version(9)));
    }

    #[test]
    fn too_small_a_device_is_told_the_least_size_and_that_size_works() {
        let least = Layout::for_size(1 << 20).unwrap_err();
        assert!(Layout::for_size(least).is_ok());
        assert!(Layout::for_size(least - MIB).is_err());
    }

    #[test]
    fn layouts_of_all_sizes_are_sound() {
        for shift in 25..52 {
            let layout = Layout::for_size((1 << shift) + 12_345 * 4096).unwrap();
            assert!(layout.is_sound(), "size 2^{shift}");
            assert!(layout.floors_max() >= 60_000);
        }
    }
}
