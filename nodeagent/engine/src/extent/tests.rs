use super::*;
use proptest::prelude::*;

const MIB: u32 = EXTENT_BYTES;

fn run(start: u32, count: u32) -> Run {
    Run { start, count }
}

fn runs(list: &[Run]) -> Runs {
    let mut runs = Runs::default();
    list.iter().for_each(|run| runs.push(*run));
    runs
}

#[test]
fn runs_double_up_to_64_and_never_exceed_the_capacity() {
    let mut chunk = Runs::default();
    let mut counts = Vec::new();
    let mut at = 0;
    loop {
        let count = chunk.next_count(300 * MIB);
        if count == 0 {
            break;
        }
        chunk.push(run(at, count));
        at += count + 1;
        counts.push(count);
    }
    assert_eq!(counts, [1, 1, 2, 4, 8, 16, 32, 64, 64, 64, 44]);
    assert_eq!(chunk.extents(), 300);
}

#[test]
fn a_range_that_crosses_a_border_lies_in_two_pieces_and_neighbours_are_one() {
    let chunk = runs(&[run(10, 1), run(20, 1), run(21, 2)]);
    let mib = u64::from(MIB);
    assert_eq!(chunk.pieces(0, 4096), [Piece { at: 10 * mib, bytes: 4096 }]);
    assert_eq!(chunk.pieces(MIB - 4096, 8192), [Piece { at: 11 * mib - 4096, bytes: 4096 }, Piece { at: 20 * mib, bytes: 4096 }]);
    assert_eq!(chunk.pieces(2 * MIB - 512, 1024), [Piece { at: 21 * mib - 512, bytes: 1024 }]);
    assert_eq!(chunk.pieces(4 * MIB - 512, 512), [Piece { at: 23 * mib - 512, bytes: 512 }]);
}

#[test]
fn shrinking_keeps_what_the_bytes_need_and_at_least_one_extent() {
    let mut chunk = runs(&[run(10, 1), run(20, 1), run(30, 4)]);
    assert_eq!(chunk.shrink_to(3 * MIB - 1), [run(31, 3)]);
    assert_eq!(chunk.as_slice(), [run(10, 1), run(20, 1), run(30, 1)]);
    assert_eq!(chunk.shrink_to(0), [run(30, 1), run(20, 1)]);
    assert_eq!(chunk.as_slice(), [run(10, 1)]);
    assert_eq!(chunk.shrink_to(0), []);
}

#[test]
fn a_fragmented_device_gives_the_longest_run_it_has() {
    let mut free = FreeExtents::all_but(16, &mut [run(0, 2), run(5, 1), run(10, 1)]).unwrap();
    assert_eq!(free.total(), 12);
    assert_eq!(free.take(8), Some(run(11, 5)));
    assert_eq!(free.take(3), Some(run(2, 3)));
    assert_eq!(free.take(3), Some(run(6, 3)));
    assert_eq!(free.take(3), Some(run(9, 1)));
    assert_eq!(free.take(1), None);
}

#[test]
fn two_owners_of_one_extent_are_found() {
    assert_eq!(FreeExtents::all_but(16, &mut [run(4, 4), run(7, 2)]).unwrap_err(), TwoOwners(run(7, 2)));
    assert_eq!(FreeExtents::all_but(16, &mut [run(15, 2)]).unwrap_err(), TwoOwners(run(15, 2)));
    let mut free = FreeExtents::all_but(16, &mut [run(4, 4)]).unwrap();
    assert_eq!(free.give(run(6, 4)), Err(TwoOwners(run(6, 4))));
    assert_eq!(free.give(run(3, 2)), Err(TwoOwners(run(3, 2))));
    assert_eq!(free.total(), 12);
}

proptest! {
    #[test]
    fn no_extent_is_ever_given_twice_or_lost(steps in prop::collection::vec((any::<bool>(), 1u32..20, any::<prop::sample::Index>()), 1..200)) {
        const EXTENTS: u32 = 128;
        let mut free = FreeExtents::all_but(EXTENTS, &mut []).unwrap();
        let mut held: Vec<Run> = Vec::new();
        for (take, want, index) in steps {
            if take {
                if let Some(taken) = free.take(want) {
                    prop_assert!(taken.count >= 1 && taken.count <= want && taken.end() <= EXTENTS);
                    prop_assert!(held.iter().all(|other| other.end() <= taken.start || taken.end() <= other.start));
                    held.push(taken);
                }
            } else if !held.is_empty() {
                let given = held.swap_remove(index.index(held.len()));
                free.give(given).unwrap();
            }
            let sum: u32 = held.iter().map(|run| run.count).sum();
            prop_assert_eq!(free.total() + sum, EXTENTS);
            let rebuilt = FreeExtents::all_but(EXTENTS, &mut held.clone()).unwrap();
            prop_assert_eq!(&rebuilt.by_start, &free.by_start);
            prop_assert_eq!(&rebuilt.by_count, &free.by_count);
        }
    }

    #[test]
    fn pieces_cover_a_range_exactly(counts in prop::collection::vec(1u32..9, 1..12), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let mut chunk = Runs::default();
        let mut at = 0;
        for count in counts {
            chunk.push(run(at, count));
            at += count + 3;
        }
        let total = usize::try_from(chunk.bytes()).unwrap() / 512;
        let (a, b) = (a.index(total) as u32 * 512, b.index(total) as u32 * 512);
        let (offset, length) = (a.min(b), a.abs_diff(b) + 512);
        let pieces = chunk.pieces(offset, length);
        prop_assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u32>(), length);
        let first = chunk.pieces(offset, 512)[0].at;
        let last = chunk.pieces(offset + length - 512, 512)[0].at;
        prop_assert_eq!(pieces[0].at, first);
        prop_assert_eq!(pieces.last().unwrap().at + u64::from(pieces.last().unwrap().bytes), last + 512);
    }
}
