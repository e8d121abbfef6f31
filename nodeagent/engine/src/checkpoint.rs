//! A checkpoint region as bytes: a header of one block, then the image.

use crate::bytes_io::Malformed;
use crate::image::Image;
use api_types::DeviceId;
use api_types::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header in bytes; the image follows.
pub(crate) const HEADER_BYTES: usize = 4096;
const MAGIC: u32 = u32::from_le_bytes(*b"BSLC");
const VERSION: u32 = 1;
const CRC_AT: usize = 48;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U32,
    version: U32,
    device: U64,
    incarnation: U64,
    number: U64,
    journal_from: U64,
    body_bytes: U32,
    body_crc: U32,
    header_crc: U32,
}
const _: () = assert!(size_of::<Raw>() == CRC_AT + 4);

/// What a checkpoint says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checkpoint {
    /// Counts the openings of the store.
    pub(crate) incarnation: u64,
    /// Counts checkpoints; the parity says in which region it stands.
    pub(crate) number: u64,
    /// The first journal block that isn't in it.
    pub(crate) journal_from: u64,
}

/// Why a region holds no checkpoint that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("header does not verify")]
    Header,
    #[error("version {0} is unknown")]
    Version(u32),
    #[error("body does not verify")]
    Body,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Checkpoint {
    /// Header and image, padded to whole blocks.
    pub(crate) fn encode(&self, device: DeviceId, image: &Image) -> Vec<u8> {
        let body = image.encode();
        let mut raw = Raw {
            magic: MAGIC.into(),
            version: VERSION.into(),
            device: device.0.into(),
            incarnation: self.incarnation.into(),
            number: self.number.into(),
            journal_from: self.journal_from.into(),
            body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX).into(),
            body_crc: crc32c(&body).into(),
            header_crc: 0.into(),
        };
        raw.header_crc = crc32c(&raw.as_bytes()[..CRC_AT]).into();
        let mut bytes = vec![0; (HEADER_BYTES + body.len()).next_multiple_of(4096)];
        bytes[..CRC_AT + 4].copy_from_slice(raw.as_bytes());
        bytes[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        bytes
    }

    /// Reads a header: what it says, and how long its body is.
    pub(crate) fn decode_header(bytes: &[u8], device: DeviceId) -> Result<(Checkpoint, usize), CheckpointError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| CheckpointError::Header)?;
        let verifies = crc32c(&raw.as_bytes()[..CRC_AT]) == raw.header_crc.get();
        if raw.magic.get() != MAGIC || !verifies || raw.device.get() != device.0 {
            return Err(CheckpointError::Header);
        }
        if raw.version.get() != VERSION {
            return Err(CheckpointError::Version(raw.version.get()));
        }
        let checkpoint =
            Checkpoint { incarnation: raw.incarnation.get(), number: raw.number.get(), journal_from: raw.journal_from.get() };
        Ok((checkpoint, raw.body_bytes.get() as usize))
    }

    /// Reads a whole region: header, and a body of exactly the length that the header gives.
    pub(crate) fn decode(bytes: &[u8], device: DeviceId) -> Result<(Checkpoint, Image), CheckpointError> {
        let (checkpoint, body_bytes) = Self::decode_header(bytes, device)?;
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| CheckpointError::Header)?;
        let end = HEADER_BYTES.saturating_add(body_bytes);
        let body = bytes.get(HEADER_BYTES..end).ok_or(CheckpointError::Body)?;
        if crc32c(body) != raw.body_crc.get() {
            return Err(CheckpointError::Body);
        }
        Ok((checkpoint, Image::decode(body)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn sample() -> (Checkpoint, Image) {
        let mut image = Image::default();
        image.apply(&Record::Reserve { extent: 9 }).unwrap();
        (Checkpoint { incarnation: 2, number: 5, journal_from: 77 }, image)
    }

    #[test]
    fn bytes_are_these() {
        let (checkpoint, image) = sample();
        let bytes = checkpoint.encode(DeviceId(0x0102), &image);
        let head: String = bytes[..40].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(head, "42534c43010000000201000000000000020000000000000005000000000000004d00000000000000");
        assert_eq!(bytes[40..44], 20u32.to_le_bytes());
        assert_eq!(bytes[44..48], crc32c(&image.encode()).to_le_bytes());
        assert_eq!(bytes[48..52], crc32c(&bytes[..48]).to_le_bytes());
        assert_eq!(bytes.len(), 8192);
        assert_eq!(Checkpoint::decode(&bytes, DeviceId(0x0102)), Ok((checkpoint, image)));
    }

    #[test]
    fn damage_is_found_in_header_and_body() {
        let (checkpoint, image) = sample();
        let bytes = checkpoint.encode(DeviceId(1), &image);
        for at in (0..52).chain(HEADER_BYTES..HEADER_BYTES + 20) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(Checkpoint::decode(&damaged, DeviceId(1)).is_err(), "byte {at}");
        }
        assert_eq!(Checkpoint::decode(&bytes, DeviceId(2)), Err(CheckpointError::Header));
    }
}
