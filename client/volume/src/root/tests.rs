use super::*;
use proptest::prelude::*;

fn pointer(offset: u32) -> NodePointer {
    NodePointer { chunk: ChunkId(9), offset, length: 5, crc: 6 }
}

#[test]
fn a_root_has_its_golden_bytes() {
    let root = Root {
        volume: VolumeId(1),
        epoch: Epoch(2),
        hot: LogState { position: LogPosition { index: 3, end: 512 }, sequence: 4 },
        cold: LogState { position: LogPosition { index: 5, end: 1024 }, sequence: 6 },
        body: vec![pointer(7)],
    };
    #[rustfmt::skip]
    let expected = [
        0x42, 0x53, 0x4c, 0x52, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, // hot
        5, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, // cold
        1, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, // body
    ];
    assert_eq!(root.encode(), expected);
    assert_eq!(Root::decode(&expected), Ok(root));
}

#[test]
fn a_body_has_its_golden_bytes() {
    let body = Body { chunks: vec![(Log::Hot, ChunkId(2), 300), (Log::Cold, ChunkId(3), 0)], branches: vec![(4, pointer(8))] };
    #[rustfmt::skip]
    let expected = [
        1, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0xac, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, // chunks
        1, 4, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, // branches
    ];
    assert_eq!(body.encode(), expected);
    assert_eq!(Body::decode(&expected), Ok(body));
}

#[test]
fn a_root_of_another_version_is_refused() {
    let mut bytes =
        Root { volume: VolumeId(1), epoch: Epoch(1), hot: LogState::default(), cold: LogState::default(), body: Vec::new() }
            .encode();
    bytes[4] = 2;
    assert_eq!(Root::decode(&bytes), Err(DecodeError("root version")));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Root::decode(&noise);
        let _ = Body::decode(&noise);
    }
}
