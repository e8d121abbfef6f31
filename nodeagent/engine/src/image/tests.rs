use super::*;
use crate::record::tests::shape;
use proptest::prelude::*;

fn run(start: u32, count: u32) -> Run {
    Run { start, count }
}

fn image(records: &[Record]) -> Image {
    let mut image = Image::default();
    records.iter().for_each(|record| image.apply(record).unwrap());
    image
}

#[test]
fn a_created_chunk_takes_its_reserved_extent() {
    let image = image(&[Record::Reserve { extent: 4 }, Record::Create { shape: shape(1), extent: 4, length: 0 }]);
    assert!(image.reserved.is_empty());
    assert_eq!(image.held(), [run(4, 1)]);
}

#[test]
fn a_seal_gives_back_what_lies_beyond() {
    let image = image(&[
        Record::Create { shape: shape(1), extent: 4, length: 0 },
        Record::Extend { chunk: ChunkId(1), run: run(8, 4) },
        Record::Seal { chunk: ChunkId(1), length: (1 << 20) + 4096, end: End::Final },
    ]);
    assert_eq!(image.held(), [run(4, 1), run(8, 1)]);
}

#[test]
fn a_restored_chunk_replaces_the_short_one() {
    let image = image(&[
        Record::Create { shape: shape(1), extent: 4, length: 0 },
        Record::Seal { chunk: ChunkId(1), length: 4096, end: End::Closed },
        Record::RestoreRun { chunk: ChunkId(1), run: run(10, 2) },
        Record::Restored { shape: shape(1), length: 8192 },
    ]);
    assert_eq!(image.held(), [run(10, 2)]);
    assert_eq!(image.chunks[&ChunkId(1)].length, 8192);
}

#[test]
fn a_record_that_contradicts_is_refused() {
    let mut image = Image::default();
    assert!(image.apply(&Record::Delete { chunk: ChunkId(1) }).is_err());
    assert!(image.apply(&Record::Restored { shape: shape(1), length: 0 }).is_err());
}

#[test]
fn bytes_are_these() {
    let image = image(&[
        Record::Reserve { extent: 9 },
        Record::Create { shape: shape(0x0101), extent: 4, length: 4096 },
        Record::Floor { owner: OwnerId(6), epoch: Epoch(2) },
        Record::RestoreRun { chunk: ChunkId(5), run: run(10, 2) },
    ]);
    let bytes = image.encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "01000000",                                                     // chunks
            "010100000000000002020000000000000300000000000000000000040c01", // shape
            "00100000",                                                     // length
            "00",                                                           // end
            "010000000400000001000000",                                     // runs
            "0100000006000000000000000200000000000000",                     // floors
            "0100000009000000",                                             // reserved
            "010000000500000000000000010000000a00000002000000",             // restoring
        )
    );
    assert_eq!(Image::decode(&bytes), Ok(image));
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Image::decode(&bytes);
    }

    #[test]
    fn cut_off_checkpoints_are_refused(cut in 0usize..111) {
        let image = image(&[Record::Create { shape: shape(1), extent: 4, length: 0 }, Record::Reserve { extent: 9 }]);
        let bytes = image.encode();
        if cut < bytes.len() {
            prop_assert!(Image::decode(&bytes[..cut]).is_err());
        }
    }
}
