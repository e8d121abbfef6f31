//! What is written to the head of an extent before it is reserved.
//!
//! A reserved extent is searched at mount for a first unit, and the extent may hold one already: of a chunk that was
//! deleted, or of an earlier store. With its first block overwritten that unit can't verify any more.

use crate::journal::BLOCK_BYTES;
use api_types::DeviceId;
use api_types::checksum::crc32c;

const MAGIC: [u8; 4] = *b"BSLR";
const HEAD_BYTES: usize = 32;

/// The block for one extent; `incarnation` makes it another one after each opening.
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
