use super::*;
use proptest::prelude::*;

const SEED: FooterSeed = FooterSeed(0x1234_5678);

fn shape(alignment: Alignment) -> ChunkShape {
    ChunkShape {
        chunk: ChunkId(7),
        owner: OwnerId(3),
        epoch: Epoch(2),
        capacity: CHUNK_BYTES_MIN,
        alignment,
        class: LifetimeClass::Short,
    }
}

fn build(data: &[u8], trailer: &[u8], start: u32, alignment: Alignment) -> Vec<u8> {
    let data_bytes = data.len() as u32;
    let mut unit = vec![0xee; unit_bytes(data_bytes, trailer.len() as u32, alignment) as usize];
    unit[..data.len()].copy_from_slice(data);
    finish_unit(&mut unit, shape(alignment), start, data_bytes, trailer, SEED);
    unit
}

#[test]
fn the_footer_has_its_golden_bytes() {
    let footer =
        Footer { shape: shape(Alignment::B512), start: 512, data_bytes: 4096, trailer_bytes: 24, data_crc: 1, trailer_crc: 2 };
    let bytes = footer.encode(SEED);
    let expected = [
        0x42, 0x53, 0x4c, 0x55, 1, 9, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0,
        0, 0x10, 0, 0, 24, 0, 0, 0, 0, 0, 0x10, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[..60], expected);
    assert_eq!(Footer::decode(&bytes, SEED), Ok(footer));
}

#[test]
fn a_footer_of_another_cluster_does_not_verify() {
    let unit = build(&[1; 4096], b"t", 0, Alignment::B512);
    assert_eq!(verify_unit(&unit, FooterSeed(1)), Err(UnitError::NoFooter));
}

#[test]
fn a_footer_inside_the_data_does_not_end_the_unit_early() {
    // A guest that copies a whole unit (another start, another chunk) into its own block.
    let inner = build(&[1; 512 - 64], b"", 512, Alignment::B512);
    let mut data = vec![0; 4096];
    data[..inner.len()].copy_from_slice(&inner);
    let unit = build(&data, b"trailer", 0, Alignment::B512);
    let Head::Unit(footer) = find_unit(&unit, 0, Alignment::B512, None, SEED) else { unreachable!("the unit was not found") };
    assert_eq!(footer.data_bytes, 4096);
}

proptest! {
    #[test]
    fn any_unit_is_found_and_any_flipped_bit_is_noticed(
        data in proptest::collection::vec(any::<u8>(), 0..9000),
        trailer in proptest::collection::vec(any::<u8>(), 0..700),
        large in any::<bool>(),
        flip in any::<proptest::sample::Index>(),
    ) {
        let alignment = if large { Alignment::B4096 } else { Alignment::B512 };
        let start = alignment.bytes() * 3;
        let mut unit = build(&data, &trailer, start, alignment);
        let footer = verify_unit(&unit, SEED).unwrap();
        prop_assert_eq!(find_unit(&unit, start, alignment, Some(ChunkId(7)), SEED), Head::Unit(footer));
        prop_assert_eq!(find_unit(&unit, 0, alignment, None, SEED), Head::More);
        prop_assert_eq!(trailer_of(&unit, &footer), &trailer[..]);
        let bit = flip.index(unit.len() * 8);
        unit[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(verify_unit(&unit, SEED).is_err());
    }
}
