//! The journal ring as bytes: blocks of 4 KiB, each with a header, a checksum and whole records.
//!
//! A commit writes one or more blocks in a row and is waited for before the next, so after a crash only the blocks of
//! the last commit may be torn. Each block says where its commit begins: a valid block of a later commit behind an
//! invalid one means damage, not a torn tail.

use crate::bytes_io::{Malformed, Reader};
use crate::record::{RECORD_BYTES_MAX, Record};
use api_types::DeviceId;
use api_types::checksum::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a block in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The most blocks that one commit writes.
pub(crate) const COMMIT_BLOCKS_MAX: u64 = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"BSLJ");
const VERSION: u16 = 1;
const HEADER_BYTES: usize = size_of::<Header>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    /// Of all that follows in the block.
    crc: U32,
    version: U16,
    record_bytes: U16,
    reserved: U32,
    device: U64,
    incarnation: U64,
    sequence: U64,
    commit: U64,
}
const _: () = assert!(HEADER_BYTES == 48);
const _: () = assert!(HEADER_BYTES + RECORD_BYTES_MAX <= BLOCK_BYTES);

/// A block that verifies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Counts the openings of the store.
    pub(crate) incarnation: u64,
    /// Counts blocks.
    pub(crate) sequence: u64,
    /// The sequence of the first block of the same commit.
    pub(crate) commit: u64,
    /// What it says.
    pub(crate) records: Vec<Record>,
}

/// A ring of blocks on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) device: DeviceId,
    pub(crate) offset: u64,
    pub(crate) blocks: u64,
}

impl Ring {
    /// Where on the device a block stands.
    pub(crate) fn at(&self, sequence: u64) -> u64 {
        self.offset + sequence % self.blocks * BLOCK_BYTES as u64
    }

    /// How many blocks from this one on stand side by side, at most `count`.
    pub(crate) fn side_by_side(&self, sequence: u64, count: u64) -> u64 {
        count.min(self.blocks - sequence % self.blocks)
    }

    /// The blocks of one commit, the first of which has number `first`. Takes as many records off the front as fit
    /// [`COMMIT_BLOCKS_MAX`]; returns how many.
    pub(crate) fn encode(&self, incarnation: u64, first: u64, records: &[Record]) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        let mut taken = 0;
        let mut sequence = first;
        while taken < records.len() && sequence < first + COMMIT_BLOCKS_MAX {
            let mut body = Vec::with_capacity(BLOCK_BYTES);
            while let Some(record) = records.get(taken) {
                if HEADER_BYTES + body.len() + RECORD_BYTES_MAX > BLOCK_BYTES {
                    break;
                }
                record.encode(&mut body);
                taken += 1;
            }
            out.extend_from_slice(&self.encode_block(incarnation, sequence, first, &body));
            sequence += 1;
        }
        (out, taken)
    }

    fn encode_block(&self, incarnation: u64, sequence: u64, commit: u64, body: &[u8]) -> Vec<u8> {
        let header = Header {
            magic: MAGIC.into(),
            crc: 0.into(),
            version: VERSION.into(),
            record_bytes: u16::try_from(body.len()).unwrap_or(0).into(),
            reserved: 0.into(),
            device: self.device.0.into(),
            incarnation: incarnation.into(),
            sequence: sequence.into(),
            commit: commit.into(),
        };
        let mut block = vec![0; BLOCK_BYTES];
        block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        block[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
        let crc = crc32c(&block[8..]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// The block in these bytes, if they verify as a block of this device. `Some(Err)`: it verifies but can't be read.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Result<Block, Malformed>> {
        let (header, body) = Header::read_from_prefix(bytes).ok()?;
        let whole = bytes.len() == BLOCK_BYTES && header.magic.get() == MAGIC && crc32c(&bytes[8..]) == header.crc.get();
        if !whole || header.device.get() != self.device.0 {
            return None;
        }
        Some(decode_records(&header, body).map(|records| Block {
            incarnation: header.incarnation.get(),
            sequence: header.sequence.get(),
            commit: header.commit.get(),
            records,
        }))
    }
}

fn decode_records(header: &Header, body: &[u8]) -> Result<Vec<Record>, Malformed> {
    if header.version.get() != VERSION {
        return Err(Malformed("journal version"));
    }
    let mut reader = Reader(body.get(..usize::from(header.record_bytes.get())).ok_or(Malformed("record bytes"))?);
    let mut records = Vec::new();
    while !reader.0.is_empty() {
        records.push(Record::decode(&mut reader)?);
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
