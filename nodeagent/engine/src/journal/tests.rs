use super::*;
use crate::extent::Run;
use crate::record::End;
use crate::record::tests::shape;
use api_types::{ChunkId, Epoch, OwnerId};
use proptest::prelude::*;

const RING: Ring = Ring { device: DeviceId(0x0102), offset: 2 << 20, blocks: 256 };

fn decode_all(bytes: &[u8]) -> Vec<Block> {
    bytes.chunks(BLOCK_BYTES).map(|block| RING.decode(block).unwrap().unwrap()).collect()
}

#[test]
fn bytes_are_these() {
    let (bytes, taken) = RING.encode(5, 300, &[Record::Delete { chunk: ChunkId(7) }]);
    assert_eq!(taken, 1);
    let head: String = bytes[..64].iter().map(|byte| format!("{byte:02x}")).collect();
    let crc = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
    let body = concat!(
        "0100",             // version
        "0900",             // record bytes
        "00000000",         //
        "0201000000000000", // device
        "0500000000000000", // incarnation
        "2c01000000000000", // sequence
        "2c01000000000000", // commit
        "060700000000000000",
        "00000000000000",
    );
    assert_eq!(head, format!("42534c4a{:08x}{body}", crc.swap_bytes()));
    assert_eq!(crc, crc32c(&bytes[8..]));
    assert_eq!(RING.at(300), (2 << 20) + 44 * 4096);
}

#[test]
fn every_flipped_bit_of_a_block_is_found() {
    let (bytes, _) = RING.encode(5, 300, &[Record::Delete { chunk: ChunkId(7) }]);
    for at in (0..80).chain([1000, 4095]) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(RING.decode(&damaged), None, "byte {at}");
    }
    let other = Ring { device: DeviceId(9), ..RING };
    assert_eq!(other.decode(&bytes), None);
}

#[test]
fn a_commit_never_takes_more_blocks_than_allowed_and_leaves_the_rest() {
    let records = vec![Record::Create { shape: shape(1), extent: 1, length: 0 }; 8000];
    let (bytes, taken) = RING.encode(1, 10, &records);
    assert_eq!(bytes.len(), 64 * BLOCK_BYTES);
    assert!(taken < 8000);
    let blocks = decode_all(&bytes);
    assert!(blocks.iter().all(|block| block.commit == 10));
    assert_eq!(blocks.iter().map(|block| block.records.len()).sum::<usize>(), taken);
}

fn any_record() -> impl Strategy<Value = Record> {
    let run = (0u32..1000, 1u32..64).prop_map(|(start, count)| Run { start, count });
    prop_oneof![
        any::<u32>().prop_map(|extent| Record::Reserve { extent }),
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(chunk, extent, length)| Record::Create {
            shape: shape(chunk),
            extent,
            length
        }),
        (any::<u64>(), run.clone()).prop_map(|(chunk, run)| Record::Extend { chunk: ChunkId(chunk), run }),
        (any::<u64>(), any::<u32>()).prop_map(|(chunk, length)| Record::Progress { chunk: ChunkId(chunk), length }),
        (any::<u64>(), any::<u32>()).prop_map(|(chunk, length)| Record::Seal { chunk: ChunkId(chunk), length, end: End::Closed }),
        any::<u64>().prop_map(|chunk| Record::Delete { chunk: ChunkId(chunk) }),
        (any::<u64>(), any::<u64>()).prop_map(|(owner, epoch)| Record::Floor { owner: OwnerId(owner), epoch: Epoch(epoch) }),
        (any::<u64>(), run).prop_map(|(chunk, run)| Record::RestoreRun { chunk: ChunkId(chunk), run }),
        any::<u64>().prop_map(|chunk| Record::RestoreDrop { chunk: ChunkId(chunk) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn commits_read_back_what_was_written(records in prop::collection::vec(any_record(), 1..400), first in any::<u32>()) {
        let (bytes, taken) = RING.encode(3, u64::from(first), &records);
        let blocks = decode_all(&bytes);
        let mut back = Vec::new();
        for (sequence, block) in (u64::from(first)..).zip(blocks) {
            prop_assert_eq!(block.sequence, sequence);
            prop_assert_eq!(block.incarnation, 3);
            back.extend(block.records);
        }
        prop_assert_eq!(&back[..], &records[..taken]);
    }
}
