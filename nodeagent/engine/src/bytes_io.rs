//! Little-endian numbers in and out of byte strings, for journal records and checkpoints.

use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, Epoch, LifetimeClass, OwnerId};

/// Bytes end too early, or a field has a value that it can't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("field `{0}` is cut off or out of range")]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// 30 bytes: chunk, owner, epoch, capacity, alignment as a power of two, class.
pub(crate) fn put_shape(out: &mut Vec<u8>, shape: &ChunkShape) {
    put_u64(out, shape.chunk.0);
    put_u64(out, shape.owner.0);
    put_u64(out, shape.epoch.0);
    put_u32(out, shape.capacity);
    out.push(shape.alignment.shift());
    out.push(shape.class as u8);
}

/// Takes fields off the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed(field))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn chunk(&mut self) -> Result<ChunkId, Malformed> {
        Ok(ChunkId(self.u64("chunk")?))
    }

    pub(crate) fn shape(&mut self) -> Result<ChunkShape, Malformed> {
        Ok(ChunkShape {
            chunk: self.chunk()?,
            owner: OwnerId(self.u64("owner")?),
            epoch: Epoch(self.u64("epoch")?),
            capacity: self.u32("capacity")?,
            alignment: Alignment::from_shift(self.u8("alignment")?).ok_or(Malformed("alignment"))?,
            class: LifetimeClass::from_u8(self.u8("class")?).ok_or(Malformed("class"))?,
        })
    }
}
