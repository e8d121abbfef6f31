use super::*;
use proptest::prelude::*;

#[test]
fn a_hot_trailer_has_its_golden_bytes() {
    let records = vec![
        WriteRecord { first: 0x0102, count: 1, crcs: Some(vec![0xaabb_ccdd]) },
        WriteRecord { first: 9, count: 0x0300, crcs: None },
    ];
    let trailer = Trailer::Hot { sequence: 7, records };
    #[rustfmt::skip]
    let expected = [
        1, 1, 2, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, // head
        2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // a write
        9, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, // zeros
        0xdd, 0xcc, 0xbb, 0xaa,
    ];
    assert_eq!(trailer.encode(), expected);
    assert_eq!(Trailer::decode(&expected, 4096), Ok(trailer));
}

#[test]
fn a_cold_trailer_has_its_golden_bytes() {
    let records = vec![MoveRecord { first: 3, source_chunk: ChunkId(0x55), source_offset: 512, crcs: vec![1, 2] }];
    let trailer = Trailer::Cold { sequence: 0x0100, records };
    #[rustfmt::skip]
    let expected = [
        1, 2, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, // head
        3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0, 0x55, 0, 0, 0, 0, 0, 0, 0, // a move
        1, 0, 0, 0, 2, 0, 0, 0,
    ];
    assert_eq!(trailer.encode(), expected);
    assert_eq!(Trailer::decode(&expected, 8192), Ok(trailer));
}

#[test]
fn the_records_must_account_for_the_data() {
    let bytes = Trailer::Hot { sequence: 1, records: vec![WriteRecord { first: 0, count: 1, crcs: Some(vec![1]) }] }.encode();
    assert_eq!(Trailer::decode(&bytes, 8192), Err(DecodeError("block count")));
}

#[test]
fn a_small_write_costs_one_sector_beside_its_data() {
    let trailer = Trailer::Hot { sequence: 1, records: vec![WriteRecord { first: 0, count: 1, crcs: Some(vec![1]) }] };
    assert!(trailer.encode().len() as u32 + api_types::unit::FOOTER_BYTES <= 512);
}

#[test]
fn a_later_record_of_a_unit_comes_after_an_earlier_one() {
    let records = [
        WriteRecord { first: 5, count: 2, crcs: Some(vec![1, 2]) },
        WriteRecord { first: 6, count: 1, crcs: None },
        WriteRecord { first: 5, count: 1, crcs: Some(vec![3]) },
    ];
    let mut changes = Vec::new();
    walk_writes(&records, ChunkId(8), 512, |change| changes.push(change));
    let at = |offset, crc| Location { chunk: ChunkId(8), offset, crc };
    let expected =
        [Change::Set(5, at(512, 1)), Change::Set(6, at(512 + 4096, 2)), Change::Clear(6, 1), Change::Set(5, at(512 + 8192, 3))];
    assert_eq!(changes, expected);
}

fn writes() -> impl Strategy<Value = Vec<WriteRecord>> {
    let record = (0..BLOCK_MAX - 1000, 1u32..4, any::<bool>()).prop_map(|(first, count, zero)| {
        let crcs = (!zero).then(|| (0..count).map(|step| step.wrapping_mul(first as u32)).collect());
        WriteRecord { first, count, crcs }
    });
    proptest::collection::vec(record, 0..32)
}

fn moves() -> impl Strategy<Value = Vec<MoveRecord>> {
    let record = (0..BLOCK_MAX - 1000, 1u64.., 0u32..1 << 30, proptest::collection::vec(any::<u32>(), 1..4));
    let record = record.prop_map(|(first, chunk, source_offset, crcs)| MoveRecord {
        first,
        source_chunk: ChunkId(chunk),
        source_offset,
        crcs,
    });
    proptest::collection::vec(record, 0..32)
}

proptest! {
    #[test]
    fn any_trailer_reads_back_and_no_bytes_make_it_panic(
        hot in writes(),
        cold in moves(),
        sequence in any::<u64>(),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        flip in any::<proptest::sample::Index>(),
    ) {
        let hot_blocks: u32 = hot.iter().filter(|record| record.crcs.is_some()).map(|record| record.count).sum();
        let cold_blocks: u32 = cold.iter().map(|record| record.crcs.len() as u32).sum();
        let hot = Trailer::Hot { sequence, records: hot };
        let cold = Trailer::Cold { sequence, records: cold };
        for (trailer, blocks) in [(hot, hot_blocks), (cold, cold_blocks)] {
            let mut bytes = trailer.encode();
            prop_assert_eq!(Trailer::decode(&bytes, blocks * BLOCK_BYTES), Ok(trailer));
            let place = flip.index(bytes.len());
            bytes[place] ^= 0x81;
            let _ = Trailer::decode(&bytes, blocks * BLOCK_BYTES);
        }
        let _ = Trailer::decode(&noise, 4096);
    }
}
