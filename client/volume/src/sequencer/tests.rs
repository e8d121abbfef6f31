use super::*;
use api_types::ChunkId;
use proptest::prelude::*;

fn data(blocks: usize) -> Bytes {
    Bytes::from(vec![7; blocks * BLOCK_BYTES as usize])
}

fn place(sequence: u64) -> Position {
    Position { chunk: ChunkId(1), index: 0, offset: sequence as u32 * 8192, end: sequence as u32 * 8192 + 8192 }
}

fn all(sequencer: &mut Sequencer) -> Vec<Command> {
    std::iter::from_fn(|| sequencer.next()).collect()
}

/// Sequence and requests of the units that were sent.
fn sent(commands: &[Command]) -> Vec<(u64, Vec<u64>)> {
    let unit = |command: &Command| match command {
        Command::Send { sequence, requests, .. } => Some((*sequence, requests.clone())),
        _ => None,
    };
    commands.iter().filter_map(unit).collect()
}

fn answers(commands: &[Command]) -> Vec<(u64, Result<(), BlockError>)> {
    let answer = |command: &Command| match command {
        Command::Answer { request, result } => Some((*request, result.clone())),
        _ => None,
    };
    commands.iter().filter_map(answer).collect()
}

#[test]
fn a_write_that_comes_alone_is_sent_at_once_and_alone() {
    let mut sequencer = Sequencer::new(10, 2);
    sequencer.write(1, 0, &data(1));
    assert_eq!(sent(&all(&mut sequencer)), [(11, vec![1])]);
    sequencer.resolved(11, Outcome::Written(place(11)));
    let commands = all(&mut sequencer);
    assert!(matches!(commands[..], [Command::Apply { .. }, Command::Answer { request: 1, result: Ok(()) }]));
    assert!(sequencer.is_idle());
}

#[test]
fn writes_that_wait_share_a_unit() {
    let mut sequencer = Sequencer::new(0, 1);
    for request in 1..=5 {
        sequencer.write(request, request * 10, &data(1));
    }
    assert_eq!(sent(&all(&mut sequencer)), [(1, vec![1])]);
    sequencer.resolved(1, Outcome::Written(place(1)));
    assert_eq!(sent(&all(&mut sequencer)), [(2, vec![2, 3, 4, 5])]);
}

#[test]
fn units_are_applied_in_their_order_though_they_come_back_in_another() {
    let mut sequencer = Sequencer::new(0, 3);
    for request in 1..=3 {
        sequencer.write(request, 0, &data(1));
    }
    all(&mut sequencer);
    sequencer.resolved(3, Outcome::Written(place(3)));
    sequencer.resolved(2, Outcome::Written(place(2)));
    assert_eq!(all(&mut sequencer), []);
    assert_eq!(sequencer.resolved_sequence(), 0);
    sequencer.resolved(1, Outcome::Written(place(1)));
    let order: Vec<u64> = answers(&all(&mut sequencer)).into_iter().map(|(request, _)| request).collect();
    assert_eq!(order, [1, 2, 3]);
    assert_eq!(sequencer.resolved_sequence(), 3);
}

#[test]
fn a_long_write_is_cut_and_answered_once() {
    let mut sequencer = Sequencer::new(0, 8);
    sequencer.write(1, 100, &data(UNIT_BLOCKS_MAX as usize + 3));
    assert_eq!(sent(&all(&mut sequencer)), [(1, vec![1]), (2, vec![1])]);
    sequencer.resolved(1, Outcome::Failed(BlockError::Closed));
    assert_eq!(answers(&all(&mut sequencer)), []);
    sequencer.resolved(2, Outcome::Written(place(2)));
    assert_eq!(answers(&all(&mut sequencer)), [(1, Err(BlockError::Closed))]);
}

#[test]
fn what_finds_no_space_is_sent_again_in_order_with_new_sequences() {
    let mut sequencer = Sequencer::new(0, 2);
    for request in 1..=3 {
        sequencer.write(request, 0, &data(1));
    }
    all(&mut sequencer);
    sequencer.resolved(1, Outcome::Full);
    assert_eq!(all(&mut sequencer), [Command::Stalled]);
    sequencer.resolved(2, Outcome::Full);
    assert_eq!(all(&mut sequencer), []);
    assert_eq!(sequencer.queued_bytes(), 3 * u64::from(BLOCK_BYTES));
    sequencer.resume();
    assert_eq!(sent(&all(&mut sequencer)), [(3, vec![1, 2, 3])]);
    assert_eq!(sequencer.queued_bytes(), 0);
}

#[test]
fn giving_up_answers_all_that_waits_and_the_next_write_tries_again() {
    let mut sequencer = Sequencer::new(0, 1);
    sequencer.write(1, 0, &data(1));
    sequencer.write(2, 0, &data(1));
    sequencer.forget(3, 0, 5);
    all(&mut sequencer);
    sequencer.resolved(1, Outcome::Full);
    assert_eq!(sequencer.take_unlogged(), [Unlogged { request: 3, first: 0, count: 5 }]);
    sequencer.give_up();
    let expected = [(1, Err(BlockError::NoSpace)), (2, Err(BlockError::NoSpace))];
    assert_eq!(answers(&all(&mut sequencer)), expected);
    sequencer.finish(3, Ok(()));
    assert_eq!(answers(&all(&mut sequencer)), [(3, Ok(()))]);
    sequencer.write(4, 0, &data(1));
    assert_eq!(sent(&all(&mut sequencer)), [(2, vec![4])]);
}

#[test]
fn failing_all_answers_what_is_under_way_and_still_applies_it() {
    let mut sequencer = Sequencer::new(0, 1);
    sequencer.write(1, 0, &data(1));
    all(&mut sequencer);
    sequencer.fail_all(&BlockError::Fenced);
    assert_eq!(all(&mut sequencer), [Command::Answer { request: 1, result: Err(BlockError::Fenced) }]);
    sequencer.resolved(1, Outcome::Written(place(1)));
    assert!(matches!(all(&mut sequencer)[..], [Command::Apply { .. }]));
}

proptest! {
    #[test]
    fn every_request_is_answered_once_and_applied_in_the_order_it_came(
        lengths in proptest::collection::vec(1usize..300, 1..40),
        window in 1usize..6,
        choices in proptest::collection::vec(any::<u8>(), 400),
    ) {
        let mut sequencer = Sequencer::new(0, window);
        let mut choices = choices.into_iter().cycle();
        let mut lengths = lengths.into_iter().enumerate();
        let (mut under_way, mut applied, mut answered) = (Vec::new(), Vec::new(), Vec::new());
        let mut next_block = 0u64;
        loop {
            let choice = choices.next().unwrap();
            if under_way.is_empty() || choice % 2 == 0 {
                match lengths.next() {
                    Some((request, length)) => {
                        sequencer.write(request as u64, next_block, &data(length));
                        next_block += length as u64;
                    }
                    None if under_way.is_empty() && !sequencer.is_stalled() => break,
                    None => sequencer.resume(),
                }
            } else {
                let sequence: u64 = under_way.swap_remove(usize::from(choice) % under_way.len());
                let outcome = if choice % 7 == 1 { Outcome::Full } else { Outcome::Written(place(sequence)) };
                sequencer.resolved(sequence, outcome);
            }
            for command in all(&mut sequencer) {
                match command {
                    Command::Send { sequence, data, .. } => {
                        let bytes: usize = data.iter().map(Bytes::len).sum();
                        prop_assert!(bytes <= (UNIT_BLOCKS_MAX * BLOCK_BYTES) as usize);
                        under_way.push(sequence);
                    }
                    Command::Apply { records, .. } => {
                        applied.extend(records.iter().map(|record| (record.first, u64::from(record.count))));
                    }
                    Command::Answer { request, result } => {
                        prop_assert_eq!(result, Ok(()));
                        answered.push(request);
                    }
                    Command::Stalled => {}
                }
            }
            prop_assert!(under_way.len() <= window);
        }
        answered.sort_unstable();
        let count = answered.len();
        answered.dedup();
        prop_assert_eq!(answered.len(), count);
        let total: u64 = applied.iter().map(|(_, count)| count).sum();
        prop_assert_eq!(total, next_block, "every block is applied exactly once");
        prop_assert!(sequencer.is_idle());
        prop_assert_eq!(sequencer.queued_bytes(), 0);
    }
}
