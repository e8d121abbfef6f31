use super::*;
use crate::testing::{MemoryBlock, context};
use api_types::VolumeId;
use futures::executor::block_on;
use proptest::prelude::*;

const SIZE: u64 = 64 * BLOCK;

fn flat(parts: &[Bytes]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    Zero(u64, u64),
    Discard(u64, u64),
    Read(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE, 0..5 * BLOCK).prop_map(|(at, n)| (at, n.min(SIZE - at)));
    prop_oneof![
        (range.clone(), any::<u8>()).prop_map(|((at, n), fill)| Step::Write(at, vec![fill; n as usize])),
        range.clone().prop_map(|(at, n)| Step::Zero(at, n)),
        range.clone().prop_map(|(at, n)| Step::Discard(at, n)),
        range.prop_map(|(at, n)| Step::Read(at, n)),
    ]
}

proptest! {
    #[test]
    fn any_bytes_behave_as_a_plain_array(steps in proptest::collection::vec(step(), 1..40)) {
        let adapter = Adapter::new(VolumeId(1), MemoryBlock::new(SIZE).device(), context());
        let mut model = vec![0u8; SIZE as usize];
        block_on(async {
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                        adapter.write(at, data.into()).await.unwrap();
                    }
                    Step::Zero(at, n) => {
                        model[at as usize..(at + n) as usize].fill(0);
                        adapter.write_zeroes(at, n).await.unwrap();
                    }
                    Step::Discard(at, n) => {
                        model[at as usize..(at + n) as usize].fill(0);
                        adapter.discard(at, n).await.unwrap();
                    }
                    Step::Read(at, n) => {
                        let got = flat(&adapter.read(at, n as u32).await.unwrap());
                        assert_eq!(got, model[at as usize..(at + n) as usize]);
                    }
                }
            }
            assert_eq!(flat(&adapter.read(0, SIZE as u32).await.unwrap()), model);
        });
    }

    #[test]
    fn pieces_cover_a_range_without_gaps(start in 0u64..10_000_000, length in 0u64..40_000_000) {
        let mut at = start;
        for piece in pieces(start..start + length) {
            prop_assert_eq!(piece.start, at);
            prop_assert!(piece.end > piece.start);
            prop_assert!(widened(&piece).end - widened(&piece).start <= PIECE_BYTES + BLOCK);
            at = piece.end;
        }
        prop_assert_eq!(at, start + length);
    }
}

#[test]
fn parts_of_one_block_written_at_once_all_stay() {
    let block = MemoryBlock::new(SIZE);
    let adapter = Adapter::new(VolumeId(1), block.device(), context());
    block_on(async {
        let writes = (0..64u64).map(|i| adapter.write(i * 100, vec![i as u8 + 1; 100].into()));
        try_join_all(writes).await.unwrap();
    });
    for i in 0..64u64 {
        assert_eq!(block.peek(i * 100, 100), vec![i as u8 + 1; 100]);
    }
}

#[test]
fn beyond_the_end_is_refused_before_the_device_sees_it() {
    let adapter = Adapter::new(VolumeId(1), MemoryBlock::new(SIZE).device(), context());
    block_on(async {
        for (at, n) in [(SIZE, 1u32), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            assert!(matches!(adapter.read(at, n).await, Err(BlockError::Invalid(_))));
            assert!(matches!(adapter.discard(at, n.into()).await, Err(BlockError::Invalid(_))));
        }
        assert!(matches!(adapter.write(SIZE - 1, vec![0; 2].into()).await, Err(BlockError::Invalid(_))));
        assert!(adapter.read(SIZE, 0).await.unwrap().is_empty());
    });
}
