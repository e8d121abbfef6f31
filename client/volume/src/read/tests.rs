use super::*;

fn at(chunk: u64, offset: u32) -> Option<Location> {
    Some(Location { chunk: ChunkId(chunk), offset, crc: 0 })
}

/// Chunk, offset, length and first block of each run.
fn shape(locations: &[Option<Location>]) -> Vec<(u64, u32, u32, usize)> {
    runs(locations, 4096).iter().map(|run| (run.chunk.0, run.offset, run.length, run.first)).collect()
}

#[test]
fn neighbours_are_read_together() {
    assert_eq!(shape(&[at(1, 0), at(1, 4096), at(1, 8192)]), [(1, 0, 12288, 0)]);
}

#[test]
fn a_trailer_between_two_blocks_is_read_along() {
    let locations = [at(1, 0), at(1, 4608), at(1, 9216)];
    assert_eq!(shape(&locations), [(1, 0, 13312, 0)]);
    let runs = runs(&locations, 4096);
    let bytes = Bytes::from((0..13312u32).map(|place| (place / 512) as u8).collect::<Vec<u8>>());
    let parts = assemble(&runs, &[bytes], 3);
    assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [4096, 4096, 4096]);
    assert_eq!((parts[1][0], parts[2][0]), (9, 18));
}

#[test]
fn holes_other_chunks_and_steps_back_end_a_run() {
    assert_eq!(shape(&[at(1, 0), None, at(1, 4096)]), [(1, 0, 4096, 0), (1, 4096, 4096, 2)]);
    assert_eq!(shape(&[at(1, 0), at(2, 4096)]), [(1, 0, 4096, 0), (2, 4096, 4096, 1)]);
    assert_eq!(shape(&[at(1, 8192), at(1, 4096)]), [(1, 8192, 4096, 0), (1, 4096, 4096, 1)]);
    assert_eq!(shape(&[at(1, 0), at(1, 16384)]), [(1, 0, 4096, 0), (1, 16384, 4096, 1)]);
}

#[test]
fn no_run_is_longer_than_one_read() {
    let locations: Vec<Option<Location>> = (0..300).map(|block| at(1, block * 4096)).collect();
    assert_eq!(shape(&locations), [(1, 0, READ_BYTES_MAX, 0), (1, READ_BYTES_MAX, 300 * 4096 - READ_BYTES_MAX, 256)]);
}

#[test]
fn what_is_not_mapped_reads_as_zeros() {
    let parts = assemble(&[], &[], 40);
    assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), 40 * 4096);
    assert!(parts.iter().all(|part| part.iter().all(|byte| *byte == 0)));
}
