//! The unit: what one append writes, byte for byte the same on every replica. The byte table is in `docs/format.md`.
//!
//! ```text
//! | data (n bytes) | zeros | trailer (k bytes) | footer (64 bytes) |    length = multiple of the alignment
//! ```
//! The zeros stand between data and trailer, so that the footer ends the unit and the data starts it: block data is
//! always aligned for direct I/O, and whoever knows a block's checksum reads just that block.

use crate::checksum::{FooterSeed, crc32c, crc32c_append};
use crate::id::{ChunkId, Epoch, OwnerId};
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, UNIT_BYTES_MAX, UNIT_DATA_BYTES_MAX, UNIT_TRAILER_BYTES_MAX};
use crate::qos::LifetimeClass;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a footer in bytes.
pub const FOOTER_BYTES: u32 = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"BSLU");
const VERSION: u8 = 1;

/// Multiple of which every unit start and unit length is: 512 or 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub enum Alignment {
    /// Every device of the chunk takes 512-byte blocks.
    B512,
    /// Some device of the chunk wants 4096-byte blocks.
    B4096,
}

impl Alignment {
    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// As a power of two.
    #[must_use]
    pub fn shift(self) -> u8 {
        match self {
            Alignment::B512 => 9,
            Alignment::B4096 => 12,
        }
    }

    /// The alignment with this power of two.
    #[must_use]
    pub fn from_shift(shift: u8) -> Option<Self> {
        match shift {
            9 => Some(Alignment::B512),
            12 => Some(Alignment::B4096),
            _ => None,
        }
    }

    /// `bytes` rounded up.
    #[must_use]
    pub fn round_up(self, bytes: u32) -> u32 {
        bytes.next_multiple_of(self.bytes())
    }
}

/// What a chunk is, from its creation to its end: the same in every footer of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ChunkShape {
    /// Its name.
    pub chunk: ChunkId,
    /// Its fencing group.
    pub owner: OwnerId,
    /// The epoch of its only writer.
    pub epoch: Epoch,
    /// The most bytes it may hold, [`CHUNK_BYTES_MIN`] to [`CHUNK_BYTES_MAX`].
    pub capacity: u32,
    /// Of its units.
    pub alignment: Alignment,
    /// How long its bytes are expected to live.
    pub class: LifetimeClass,
}

/// The last 64 bytes of a unit, decoded and verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// The chunk it is part of.
    pub shape: ChunkShape,
    /// Where in the chunk the unit starts.
    pub start: u32,
    /// Length of the caller's data.
    pub data_bytes: u32,
    /// Length of the caller's trailer.
    pub trailer_bytes: u32,
    /// CRC-32C of the data and the zeros after it.
    pub data_crc: u32,
    /// CRC-32C of the trailer.
    pub trailer_crc: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawFooter {
    magic: U32,
    version: u8,
    alignment_shift: u8,
    class: u8,
    reserved: u8,
    chunk: U64,
    owner: U64,
    epoch: U64,
    start: U32,
    data_bytes: U32,
    trailer_bytes: U32,
    capacity: U32,
    data_crc: U32,
    trailer_crc: U32,
    reserved_end: U32,
    footer_crc: U32,
}
const _: () = assert!(size_of::<RawFooter>() == FOOTER_BYTES as usize);

/// Why bytes aren't the unit they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The last 64 bytes aren't a footer of this cluster.
    #[error("no footer of this cluster: magic, version or checksum differ")]
    NoFooter,
    /// The footer verifies but contradicts itself.
    #[error("footer field `{0}` is out of range")]
    Field(&'static str),
    /// Data or padding changed.
    #[error("checksum of the data differs from the footer's")]
    Data,
    /// Trailer changed.
    #[error("checksum of the trailer differs from the footer's")]
    Trailer,
    /// The footer belongs to another unit.
    #[error("footer belongs to another chunk or another place")]
    Misplaced,
}

impl Footer {
    /// Length of the whole unit in bytes.
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        unit_bytes(self.data_bytes, self.trailer_bytes, self.shape.alignment)
    }

    /// Where in the chunk the next unit starts.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.unit_bytes()
    }

    /// The 64 bytes.
    #[must_use]
    pub fn encode(&self, seed: FooterSeed) -> [u8; FOOTER_BYTES as usize] {
        let mut raw = RawFooter {
            magic: MAGIC.into(),
            version: VERSION,
            alignment_shift: self.shape.alignment.shift(),
            class: self.shape.class as u8,
            reserved: 0,
            chunk: self.shape.chunk.0.into(),
            owner: self.shape.owner.0.into(),
            epoch: self.shape.epoch.0.into(),
            start: self.start.into(),
            data_bytes: self.data_bytes.into(),
            trailer_bytes: self.trailer_bytes.into(),
            capacity: self.shape.capacity.into(),
            data_crc: self.data_crc.into(),
            trailer_crc: self.trailer_crc.into(),
            reserved_end: 0.into(),
            footer_crc: 0.into(),
        };
        let crc = crc32c_append(seed.0, &raw.as_bytes()[..60]);
        raw.footer_crc = crc.into();
        let mut bytes = [0; FOOTER_BYTES as usize];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads and verifies 64 bytes: magic, version, checksum, and that every field is in its range and the unit fits
    /// its chunk.
    pub fn decode(bytes: &[u8], seed: FooterSeed) -> Result<Footer, UnitError> {
        let raw = RawFooter::read_from_bytes(bytes).map_err(|_| UnitError::NoFooter)?;
        if raw.magic.get() != MAGIC || raw.version != VERSION || crc32c_append(seed.0, &bytes[..60]) != raw.footer_crc.get() {
            return Err(UnitError::NoFooter);
        }
        let alignment = Alignment::from_shift(raw.alignment_shift).ok_or(UnitError::Field("alignment"))?;
        let class = LifetimeClass::from_u8(raw.class).ok_or(UnitError::Field("class"))?;
        let (data_bytes, trailer_bytes) = (raw.data_bytes.get(), raw.trailer_bytes.get());
        if data_bytes > UNIT_DATA_BYTES_MAX {
            return Err(UnitError::Field("data length"));
        }
        if trailer_bytes > UNIT_TRAILER_BYTES_MAX {
            return Err(UnitError::Field("trailer length"));
        }
        let capacity = raw.capacity.get();
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&capacity) {
            return Err(UnitError::Field("capacity"));
        }
        let start = raw.start.get();
        let fits = start.checked_add(unit_bytes(data_bytes, trailer_bytes, alignment)).is_some_and(|end| end <= capacity);
        if !fits || !start.is_multiple_of(alignment.bytes()) {
            return Err(UnitError::Field("start"));
        }
        Ok(Footer {
            shape: ChunkShape {
                chunk: ChunkId(raw.chunk.get()),
                owner: OwnerId(raw.owner.get()),
                epoch: Epoch(raw.epoch.get()),
                capacity,
                alignment,
                class,
            },
            start,
            data_bytes,
            trailer_bytes,
            data_crc: raw.data_crc.get(),
            trailer_crc: raw.trailer_crc.get(),
        })
    }
}

/// Length of a unit with so much data and trailer.
#[must_use]
pub fn unit_bytes(data_bytes: u32, trailer_bytes: u32, alignment: Alignment) -> u32 {
    alignment.round_up(data_bytes + trailer_bytes + FOOTER_BYTES)
}

/// Writes a whole unit into `out`, which must be exactly [`unit_bytes`] long and start with the data already in place.
/// Everything after the data is overwritten. Returns the footer.
///
/// # Panics
/// When `out` has another length than the unit, or data or trailer exceed their limits: a programmer's error.
pub fn finish_unit(out: &mut [u8], shape: ChunkShape, start: u32, data_bytes: u32, trailer: &[u8], seed: FooterSeed) -> Footer {
    let trailer_bytes = u32::try_from(trailer.len()).expect("a trailer is far below 4 GiB");
    assert!(data_bytes <= UNIT_DATA_BYTES_MAX && trailer_bytes <= UNIT_TRAILER_BYTES_MAX, "unit exceeds its limits");
    assert_eq!(out.len(), unit_bytes(data_bytes, trailer_bytes, shape.alignment) as usize, "buffer isn't a unit long");
    let footer_at = out.len() - FOOTER_BYTES as usize;
    let trailer_at = footer_at - trailer.len();
    out[data_bytes as usize..trailer_at].fill(0);
    out[trailer_at..footer_at].copy_from_slice(trailer);
    let footer =
        Footer { shape, start, data_bytes, trailer_bytes, data_crc: crc32c(&out[..trailer_at]), trailer_crc: crc32c(trailer) };
    out[footer_at..].copy_from_slice(&footer.encode(seed));
    footer
}

/// Verifies a whole unit: footer, data, padding and trailer.
pub fn verify_unit(unit: &[u8], seed: FooterSeed) -> Result<Footer, UnitError> {
    let footer_at = unit.len().checked_sub(FOOTER_BYTES as usize).ok_or(UnitError::NoFooter)?;
    let footer = Footer::decode(&unit[footer_at..], seed)?;
    if footer.unit_bytes() as usize != unit.len() {
        return Err(UnitError::Field("length"));
    }
    let trailer_at = footer_at - footer.trailer_bytes as usize;
    if crc32c(&unit[trailer_at..footer_at]) != footer.trailer_crc {
        return Err(UnitError::Trailer);
    }
    if crc32c(&unit[..trailer_at]) != footer.data_crc {
        return Err(UnitError::Data);
    }
    Ok(footer)
}

/// The trailer of a unit whose footer is known.
#[must_use]
pub fn trailer_of<'a>(unit: &'a [u8], footer: &Footer) -> &'a [u8] {
    let footer_at = unit.len() - FOOTER_BYTES as usize;
    &unit[footer_at - footer.trailer_bytes as usize..footer_at]
}

/// What stands at the head of a run of chunk bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// A whole unit that verifies.
    Unit(Footer),
    /// No unit ends within these bytes, and there are fewer than the longest unit has: more bytes could hold one.
    More,
    /// No valid unit starts here. The chunk ends, or is damaged.
    Nothing,
}

/// Finds the unit that starts at the head of `bytes`, which stand at `start` in their chunk. The length of a unit is
/// only known from its end, so every aligned place is tried for a footer that names this very start; `expected`
/// rejects every other chunk (`None`: whichever chunk the first footer names).
#[must_use]
pub fn find_unit(bytes: &[u8], start: u32, alignment: Alignment, expected: Option<ChunkId>, seed: FooterSeed) -> Head {
    let step = alignment.bytes() as usize;
    let mut end = step;
    while end <= bytes.len() && end <= UNIT_BYTES_MAX as usize {
        let tail = &bytes[end - FOOTER_BYTES as usize..end];
        if tail[..4] == MAGIC.to_le_bytes()
            && let Ok(footer) = Footer::decode(tail, seed)
            && footer.start == start
            && footer.shape.alignment == alignment
            && footer.unit_bytes() as usize == end
            && expected.is_none_or(|chunk| chunk == footer.shape.chunk)
        {
            return match verify_unit(&bytes[..end], seed) {
                Ok(footer) => Head::Unit(footer),
                Err(_) => Head::Nothing,
            };
        }
        end += step;
    }
    if bytes.len() < UNIT_BYTES_MAX as usize { Head::More } else { Head::Nothing }
}

#[cfg(test)]
mod tests;
