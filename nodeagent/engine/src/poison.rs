//! Making an extent ready to be reserved.
//!
//! A reserved extent is searched at mount for a first unit, and the extent may hold one already: of a chunk that was
//! deleted, or of an earlier store. Its footer is overwritten. Overwriting only the head wouldn't do: the next first unit
//! may begin with the same bytes (zeros are common), be torn by a crash, and so complete the old one again.
//!
//! The head is overwritten all the same, so that a mount sees from one block that nothing was written there.

use crate::journal::BLOCK_BYTES;
use api_types::DeviceId;
use api_types::checksum::{FooterSeed, crc32c};
use api_types::limits::UNIT_BYTES_MAX;
use api_types::unit::{FOOTER_BYTES, Footer};
use std::collections::BTreeSet;

const MAGIC: [u8; 4] = *b"BSLR";
const HEAD_BYTES: usize = 32;
/// Every unit length is a multiple of this.
const STEP_BYTES: usize = 512;
/// A first unit ends within so many bytes.
pub(crate) const SEARCH_BYTES: u32 = UNIT_BYTES_MAX.next_multiple_of(BLOCK_BYTES as u32);

/// The block for the head of one extent; `incarnation` makes it another one after each opening.
pub(crate) fn block(device: DeviceId, incarnation: u64, extent: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..4].copy_from_slice(&MAGIC);
    block[4..8].copy_from_slice(&extent.to_le_bytes());
    block[8..16].copy_from_slice(&device.0.to_le_bytes());
    block[16..24].copy_from_slice(&incarnation.to_le_bytes());
    let crc = crc32c(&block[..HEAD_BYTES - 4]);
    block[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Where in these first bytes of an extent blocks stand that hold the footer of a first unit, besides the first block.
pub(crate) fn stale_footers(bytes: &[u8], seed: FooterSeed) -> BTreeSet<usize> {
    let ends = (STEP_BYTES..=bytes.len()).step_by(STEP_BYTES);
    let stale = ends.filter(|end| {
        let footer = &bytes[end - FOOTER_BYTES as usize..*end];
        Footer::decode(footer, seed).is_ok_and(|footer| footer.start == 0)
    });
    stale.map(|end| (end - 1) / BLOCK_BYTES * BLOCK_BYTES).filter(|at| *at > 0).collect()
}

/// These are the first bytes of an extent that no unit was written to since it was reserved.
pub(crate) fn is_poison(head: &[u8], device: DeviceId, extent: u32) -> bool {
    head.get(..BLOCK_BYTES).is_some_and(|head| {
        let incarnation = head[16..24].try_into().map(u64::from_le_bytes).unwrap_or_default();
        head == block(device, incarnation, extent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::unit::finish_unit;

    #[test]
    fn only_footers_of_first_units_are_stale() {
        let seed = FooterSeed(3);
        let mut bytes = vec![0; 5 * BLOCK_BYTES];
        let shape = crate::record::tests::shape(1);
        finish_unit(&mut bytes[..2 * BLOCK_BYTES], shape, 0, 4096, b"t", seed);
        finish_unit(&mut bytes[3 * BLOCK_BYTES..], shape, 3 * 4096, 4096, b"t", seed);
        assert_eq!(stale_footers(&bytes, seed), BTreeSet::from([BLOCK_BYTES]));
        assert_eq!(stale_footers(&bytes, FooterSeed(4)), BTreeSet::new());
    }

    #[test]
    fn bytes_are_these() {
        let bytes = block(DeviceId(0x0102), 3, 7);
        let head: String = bytes[..28].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(head, concat!("42534c52", "07000000", "0201000000000000", "0300000000000000", "00000000"));
        assert_eq!(bytes[28..32], crc32c(&bytes[..28]).to_le_bytes());
        assert!(bytes[32..].iter().all(|byte| *byte == 0));
        assert!(is_poison(&bytes, DeviceId(0x0102), 7));
        assert!(!is_poison(&bytes, DeviceId(0x0102), 8));
        assert!(!is_poison(&vec![0; 4096], DeviceId(0x0102), 7));
    }
}
