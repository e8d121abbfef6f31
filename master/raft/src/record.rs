//! One record of the log, byte for byte.
//!
//! ```text
//!  length u32 | CRC u32 | sequence u64 | synced u64 | kind u8 | 7 zeros | body | zeros to a multiple of 8
//! ```
//! `sequence` counts all records of a log from 1. `synced` is the newest sequence that was known to be on the disk when
//! this record was written: a record that doesn't verify is a torn tail, unless a later one proves that it was whole once.

use crc32c::{crc32c, crc32c_append};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a record's head.
pub(crate) const HEAD_BYTES: usize = 32;
/// The longest body; no command comes near it.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A log entry.
    Entry = 1,
    /// Entries up to here are committed.
    Committed = 2,
    /// Entries after here are void.
    Truncate = 3,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    length: U32,
    crc: U32,
    sequence: U64,
    synced: U64,
    kind: u8,
    zeros: [u8; 7],
}

/// A record as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) sequence: u64,
    pub(crate) synced: u64,
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
}

/// Bytes that a record with such a body takes.
pub(crate) fn record_bytes(body: usize) -> usize {
    (HEAD_BYTES + body).next_multiple_of(8)
}

fn crc_of(head: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&head[..4]), &head[8..HEAD_BYTES]), body)
}

/// Appends a record to `out`.
pub(crate) fn encode(out: &mut Vec<u8>, sequence: u64, synced: u64, kind: Kind, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut head = Head {
        length: length.into(),
        crc: 0.into(),
        sequence: sequence.into(),
        synced: synced.into(),
        kind: kind as u8,
        zeros: [0; 7],
    };
    head.crc = crc_of(head.as_bytes(), body).into();
    let end = out.len() + record_bytes(body.len());
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
    out.resize(end, 0);
}

/// The record at the head of `bytes`, when it is whole and verifies.
pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
    let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
    let kind = match head.kind {
        1 => Kind::Entry,
        2 => Kind::Committed,
        3 => Kind::Truncate,
        _ => return None,
    };
    let length = head.length.get() as usize;
    if length > BODY_BYTES_MAX || length > rest.len() || crc_of(bytes, &rest[..length]) != head.crc.get() {
        return None;
    }
    Some(Record { sequence: head.sequence.get(), synced: head.synced.get(), kind, body: rest[..length].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_record_stay() {
        let mut out = Vec::new();
        encode(&mut out, 7, 5, Kind::Committed, b"abc");
        assert_eq!(out.len(), 40);
        assert_eq!(out[..4], [3, 0, 0, 0]);
        assert_eq!(out[8..25], [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(&out[32..], b"abc\0\0\0\0\0");
        let record = Record { sequence: 7, synced: 5, kind: Kind::Committed, body: b"abc".to_vec() };
        assert_eq!(decode(&out), Some(record));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let mut out = Vec::new();
        encode(&mut out, 7, 5, Kind::Entry, b"abcdefgh");
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        for length in 0..out.len() {
            assert_eq!(decode(&out[..length]), None);
        }
    }
}
