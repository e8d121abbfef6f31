use super::*;
use api_types::LifetimeClass;
use api_types::unit::Alignment;
use proptest::prelude::*;

pub(crate) fn shape(chunk: u64) -> ChunkShape {
    ChunkShape {
        chunk: ChunkId(chunk),
        owner: OwnerId(0x0202),
        epoch: Epoch(3),
        capacity: 64 << 20,
        alignment: Alignment::B4096,
        class: LifetimeClass::Medium,
    }
}

fn hex(record: &Record) -> String {
    let mut out = Vec::new();
    record.encode(&mut out);
    assert!(out.len() <= RECORD_BYTES_MAX);
    let mut reader = Reader(&out);
    assert_eq!(Record::decode(&mut reader).as_ref(), Ok(record));
    assert!(reader.0.is_empty());
    out.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_these() {
    let chunk = ChunkId(0x0101);
    let run = Run { start: 7, count: 2 };
    let shape_hex = "010100000000000002020000000000000300000000000000000000040c01";
    assert_eq!(hex(&Record::Reserve { extent: 7 }), "0107000000");
    assert_eq!(hex(&Record::Create { shape: shape(0x0101), extent: 7, length: 4096 }), format!("02{shape_hex}0700000000100000"));
    assert_eq!(hex(&Record::Extend { chunk, run }), "0301010000000000000700000002000000");
    assert_eq!(hex(&Record::Progress { chunk, length: 4096 }), "04010100000000000000100000");
    assert_eq!(hex(&Record::Seal { chunk, length: 4096, end: End::Final }), "0501010000000000000010000002");
    assert_eq!(hex(&Record::Delete { chunk }), "060101000000000000");
    assert_eq!(hex(&Record::Floor { owner: OwnerId(9), epoch: Epoch(4) }), "0709000000000000000400000000000000");
    assert_eq!(hex(&Record::RestoreRun { chunk, run }), "0801010000000000000700000002000000");
    assert_eq!(hex(&Record::Restored { shape: shape(0x0101), length: 4096 }), format!("09{shape_hex}00100000"));
    assert_eq!(hex(&Record::RestoreDrop { chunk }), "0a0101000000000000");
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Record::decode(&mut Reader(&bytes));
    }
}
