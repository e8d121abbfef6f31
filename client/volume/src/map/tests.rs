use super::*;
use crate::map::leaf::Leaf;
use api_types::ChunkId;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn at(chunk: u64, offset: u32, crc: u32) -> Location {
    Location { chunk: ChunkId(chunk), offset, crc }
}

fn pointer(offset: u32) -> NodePointer {
    NodePointer { chunk: ChunkId(9), offset, length: 100, crc: 1 }
}

/// Pretends to write what a frozen map says must be written; returns the node of each pointer.
fn write_all(map: &mut Map, store: &mut BTreeMap<u32, Leaf>) {
    let frozen = map.freeze();
    let mut written = Vec::new();
    for (index, leaf) in frozen.dirty_leaves() {
        let place = store.len() as u32 * 512 + 512;
        store.insert(place, Leaf::decode(&leaf.encode()).unwrap());
        let pointer = (!leaf.is_empty()).then(|| pointer(place));
        written.push(WrittenLeaf { index, leaf, pointer });
    }
    let branches: Vec<(u64, Option<NodePointer>)> = frozen
        .dirty_branches(&written)
        .into_iter()
        .map(|(number, leaves)| (number, (!leaves.is_empty()).then(|| pointer(number as u32))))
        .collect();
    drop(frozen);
    map.checkpointed(written, &branches);
}

fn load(map: &mut Map, store: &BTreeMap<u32, Leaf>, leaf: u64) {
    if let State::Absent(pointer) = map.state(leaf) {
        map.install(leaf, pointer, store[&pointer.offset].clone());
    }
}

#[test]
fn a_leaf_has_its_golden_bytes() {
    let mut leaf = Leaf::empty();
    leaf.set(1, Some(at(5, 512, 0x0102_0304)));
    leaf.set(2, Some(at(5, 512 + 4096, 0x0506_0708)));
    leaf.set(255, Some(at(0x1_0000, 1 << 20, 0xffff_ffff)));
    #[rustfmt::skip]
    let expected = [
        1, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, // version, chunks
        2, 1, 1, 0, 1, 255, 0, 1, 0x80, 0x10, // runs
        4, 3, 2, 1, 8, 7, 6, 5, 0xff, 0xff, 0xff, 0xff, // checksums
    ];
    assert_eq!(leaf.encode(), expected);
    assert!(Leaf::decode(&expected).unwrap() == leaf);
}

#[test]
fn a_branch_has_its_golden_bytes() {
    let pointers = [(3, NodePointer { chunk: ChunkId(7), offset: 512, length: 30, crc: 9 }), (1023, pointer(0))];
    #[rustfmt::skip]
    let expected = [
        1, 2, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 30, 0, 0, 0, 9, 0, 0, 0,
        0xfb, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0,
    ];
    assert_eq!(encode_branch(&pointers), expected);
    assert_eq!(decode_branch(&expected).unwrap(), pointers);
}

#[test]
fn a_sequential_megabyte_takes_about_a_kilobyte() {
    let mut leaf = Leaf::empty();
    for block in 0..LEAF_BLOCKS {
        leaf.set(block, Some(at(7, 4096 * block, block)));
    }
    assert_eq!(leaf.encode().len(), 1 + 1 + 8 + 1 + 4 + 1024);
}

#[test]
fn a_change_after_the_freeze_keeps_the_leaf_dirty() {
    let mut map = Map::new();
    map.set(5, Some(at(1, 0, 1)));
    let frozen = map.freeze();
    let dirty = frozen.dirty_leaves();
    map.set(5, Some(at(2, 0, 2)));
    assert_eq!(dirty[0].1.get(5), Some(at(1, 0, 1)), "the frozen leaf doesn't change");
    let written = dirty.into_iter().map(|(index, leaf)| WrittenLeaf { index, leaf, pointer: Some(pointer(512)) }).collect();
    drop(frozen);
    map.checkpointed(written, &[(0, Some(pointer(0)))]);
    assert_eq!(map.dirty(), 1);
    assert_eq!(map.freeze().dirty_leaves().len(), 1);
}

#[test]
fn pinned_and_changed_leaves_stay_in_memory() {
    let mut map = Map::new();
    let mut store = BTreeMap::new();
    for leaf in 0..4 {
        map.set(leaf * 256, Some(at(1, 0, 1)));
    }
    write_all(&mut map, &mut store);
    map.pin(0);
    map.set(256, Some(at(2, 0, 1)));
    for _ in 0..3 {
        map.shrink(0);
    }
    assert_eq!(map.state(0), State::Resident);
    assert_eq!(map.state(1), State::Resident);
    assert!(matches!(map.state(2), State::Absent(_)));
    map.unpin(0);
    map.shrink(0);
    assert!(matches!(map.state(0), State::Absent(_)));
}

#[derive(Debug, Clone)]
enum Step {
    Set(u64, u64, u32),
    Clear(u64, u64),
    Checkpoint,
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    // A few leaves at both ends of two branches.
    let block = prop_oneof![0u64..600, 262_000u64..262_400];
    prop_oneof![
        8 => (block.clone(), 1u64..5, 0u32..1000).prop_map(|(block, chunk, place)| Step::Set(block, chunk, place * 512)),
        2 => (block, 1u64..700).prop_map(|(first, count)| Step::Clear(first, count)),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #[test]
    fn the_map_is_a_plain_table_whatever_is_written_and_dropped(steps in proptest::collection::vec(step(), 1..120)) {
        let mut map = Map::new();
        let mut store = BTreeMap::new();
        let mut plain: BTreeMap<u64, Location> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(block, chunk, offset) => {
                    load(&mut map, &store, leaf_of(block));
                    let location = at(chunk, offset, block as u32);
                    prop_assert_eq!(map.set(block, Some(location)), plain.insert(block, location));
                }
                Step::Clear(first, count) => {
                    for leaf in map.leaves_in(first, count) {
                        load(&mut map, &store, leaf);
                    }
                    let mut forgotten = Vec::new();
                    map.clear(first, count, |old| forgotten.push(old));
                    let mut kept = plain.split_off(&first);
                    let mut rest = kept.split_off(&(first + count));
                    prop_assert_eq!(forgotten, kept.into_values().collect::<Vec<_>>());
                    plain.append(&mut rest);
                }
                Step::Checkpoint => {
                    write_all(&mut map, &mut store);
                    prop_assert_eq!(map.dirty(), 0);
                }
                Step::Shrink => map.shrink(1),
            }
        }
        for block in (0..1400).chain(261_900..263_200) {
            load(&mut map, &store, leaf_of(block));
            prop_assert_eq!(map.get(block), plain.get(&block).copied());
        }
    }

    #[test]
    fn any_leaf_reads_back_and_no_bytes_make_it_panic(
        blocks in proptest::collection::btree_map(0u32..256, (1u64..4, 0u32..4_000_000, any::<u32>()), 0..256),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
        flip in any::<proptest::sample::Index>(),
    ) {
        let mut leaf = Leaf::empty();
        for (block, (chunk, place, crc)) in blocks {
            leaf.set(block, Some(at(chunk, place * 512, crc)));
        }
        let mut bytes = leaf.encode();
        prop_assert!(Leaf::decode(&bytes).unwrap() == leaf);
        let _ = Leaf::decode(&noise);
        let place = flip.index(bytes.len());
        bytes[place] ^= 0x41;
        let _ = Leaf::decode(&bytes);
        let _ = decode_branch(&bytes);
        bytes.pop();
        let _ = Leaf::decode(&bytes);
    }
}
