//! The core alone: the tests are the shell, and decide when writes and commits come back.

use super::*;
use crate::record::tests::shape as shape_of;
use api_types::checksum::FooterSeed;
use api_types::chunk::{Append, Seal, Sealed};
use api_types::unit::{ChunkShape, Footer, finish_unit};
use proptest::prelude::*;

const SEED: FooterSeed = FooterSeed(0);
const BLOCK: u32 = 4096;
const CHUNK: ChunkId = ChunkId(5);

/// A core and what it wants.
struct Bench {
    core: Core,
    image: Image,
    writes: Vec<UnitWrite>,
    records: Vec<Record>,
    /// How many records are durable.
    committed: usize,
    answers: BTreeMap<OpId, Result<Response, Error>>,
    refills: usize,
    next_op: OpId,
}

fn shape() -> ChunkShape {
    shape_of(CHUNK.0)
}

impl Bench {
    fn new(extents: u32) -> Bench {
        let limits =
            Limits { block_bytes: 4096, append_bytes_max: 64 << 20, append_limit: Duration::from_secs(10), floors_max: 2 };
        let core = Core::new(&Image::default(), extents, 4, false, limits).unwrap();
        let mut bench = Bench {
            core,
            image: Image::default(),
            writes: Vec::new(),
            records: Vec::new(),
            committed: 0,
            answers: BTreeMap::new(),
            refills: 0,
            next_op: 0,
        };
        let extents = bench.core.take_refill();
        bench.core.reserve(extents);
        bench.pump();
        bench.commit();
        bench
    }

    fn pump(&mut self) {
        while let Some(effect) = self.core.next_effect() {
            match effect {
                Effect::Write(write) => self.writes.push(write),
                Effect::Record(record) => {
                    self.image.apply(&record).unwrap();
                    self.records.push(record);
                }
                Effect::Answer(op, answer) => assert!(self.answers.insert(op, answer).is_none(), "answered twice"),
                Effect::Compare { op, plan, length, .. } => {
                    self.core.finish_ticket(plan.ticket);
                    self.answers.insert(op, Ok(Response::Append(length)));
                }
                Effect::Refill => self.refills += 1,
                Effect::Trim => {}
            }
        }
    }

    fn commit(&mut self) {
        self.committed = self.records.len();
        self.core.durable(self.committed as u64);
        self.pump();
    }

    fn op(&mut self) -> OpId {
        self.next_op += 1;
        self.next_op
    }

    /// Appends a unit of so many blocks.
    fn append(&mut self, offset: u32, blocks: u32) -> OpId {
        self.append_as(shape(), offset, blocks)
    }

    fn append_as(&mut self, shape: ChunkShape, offset: u32, blocks: u32) -> OpId {
        let op = self.op();
        let mut unit = vec![0; (blocks * BLOCK) as usize];
        let footer: Footer = finish_unit(&mut unit, shape, offset, (blocks - 1) * BLOCK, b"", SEED);
        let request = Append {
            chunk: shape.chunk,
            epoch: shape.epoch,
            offset,
            unit: unit.into(),
            create: offset == 0,
            qos: QosClass::Foreground,
        };
        self.core.append(op, request, &footer, Duration::ZERO);
        self.pump();
        op
    }

    fn seal(&mut self, length: Option<u32>) -> OpId {
        let op = self.op();
        let seal = Seal { chunk: CHUNK, owner: shape().owner, epoch: shape().epoch, length };
        self.core.seal(op, &seal);
        self.pump();
        op
    }

    fn written(&mut self, index: usize, whole: bool) {
        let write = self.writes.remove(index);
        self.core.written(write.chunk, write.serial, write.start, write.ticket, whole);
        self.pump();
    }

    fn acknowledged(&self, op: OpId) -> Option<u32> {
        match self.answers.get(&op) {
            Some(Ok(Response::Append(length))) => Some(*length),
            _ => None,
        }
    }

    /// The journal knows what the core knows.
    fn check_image(&self) {
        for (id, chunk) in self.core.chunks.iter().filter(|(_, chunk)| chunk.is_journaled) {
            assert_eq!(self.image.chunks[id].runs, chunk.runs, "{id}");
        }
        FreeExtentsCheck::run(&self.image);
    }
}

struct FreeExtentsCheck;

impl FreeExtentsCheck {
    fn run(image: &Image) {
        let mut held = image.held();
        crate::extent::FreeExtents::all_but(1 << 20, &mut held).unwrap();
    }
}

#[test]
fn creating_and_appending_is_one_write_and_no_record() {
    let mut bench = Bench::new(64);
    let records = bench.records.len();
    let op = bench.append(0, 1);
    assert_eq!(bench.writes.len(), 1);
    assert_eq!(bench.writes[0].pieces.len(), 1);
    assert_eq!(bench.records.len(), records);
    assert_eq!(bench.acknowledged(op), None);
    bench.written(0, true);
    assert_eq!(bench.acknowledged(op), Some(BLOCK));
}

#[test]
fn acknowledgements_come_in_order_whatever_order_writes_come_back_in() {
    let mut bench = Bench::new(64);
    let ops = [bench.append(0, 1), bench.append(BLOCK, 1), bench.append(2 * BLOCK, 1)];
    bench.written(2, true);
    bench.written(1, true);
    assert!(ops.iter().all(|op| bench.acknowledged(*op).is_none()));
    bench.written(0, true);
    assert!(ops.iter().all(|op| bench.acknowledged(*op) == Some(3 * BLOCK)));
}

#[test]
fn the_next_run_is_bound_before_it_is_needed() {
    let mut bench = Bench::new(64);
    let mut at = 0;
    // Up to where less than a unit's room is left in the first extent.
    while at + BLOCK <= 480 << 10 {
        bench.append(at, 1);
        bench.written(0, true);
        at += BLOCK;
    }
    assert!(!bench.records.iter().any(|record| matches!(record, Record::Extend { .. })));
    while at < 600 << 10 {
        bench.append(at, 1);
        bench.written(0, true);
        at += BLOCK;
    }
    let extends = bench.records.iter().filter(|record| matches!(record, Record::Extend { .. })).count();
    assert_eq!(extends, 1);
    bench.check_image();
}

#[test]
fn a_unit_that_needs_an_unbound_run_waits_for_the_commit_and_may_be_two_writes() {
    let mut bench = Bench::new(64);
    let first = bench.append(0, 129);
    let second = bench.append(129 * BLOCK, 129);
    assert_eq!(bench.writes.len(), 1, "the second has no durable place yet");
    bench.commit();
    assert_eq!(bench.writes.len(), 2);
    // Both extents may lie side by side; what counts is that all bytes are written.
    let bytes: usize = bench.writes[1].pieces.iter().map(|(_, data)| data.len()).sum();
    assert_eq!(bytes, 129 * BLOCK as usize);
    bench.written(0, true);
    bench.written(0, true);
    assert!(bench.acknowledged(first).is_some() && bench.acknowledged(second).is_some());
}

#[test]
fn with_a_dry_pool_a_chunk_begins_in_the_journal() {
    let mut bench = Bench::new(64);
    while bench.core.space.take_reserved().is_some() {}
    let op = bench.append(0, 1);
    assert!(bench.writes.is_empty());
    assert!(matches!(bench.records.last(), Some(Record::Create { length: 0, .. })));
    bench.commit();
    bench.written(0, true);
    assert_eq!(bench.acknowledged(op), Some(BLOCK));
    bench.check_image();
}

#[test]
fn a_seal_waits_for_the_writes_under_way_and_cuts_them() {
    let mut bench = Bench::new(64);
    let ops = [bench.append(0, 1), bench.append(BLOCK, 1), bench.append(2 * BLOCK, 1)];
    let seal = bench.seal(Some(BLOCK));
    let late = bench.append(3 * BLOCK, 1);
    bench.written(1, true);
    bench.written(1, true);
    assert!(!bench.answers.contains_key(&seal));
    bench.written(0, true);
    assert_eq!(bench.acknowledged(ops[0]), Some(3 * BLOCK));
    assert!(!bench.answers.contains_key(&seal), "the journal doesn't know yet");
    bench.commit();
    assert_eq!(bench.answers[&seal], Ok(Response::Seal(Sealed::At(BLOCK))));
    for op in [ops[1], ops[2], late] {
        assert_eq!(bench.answers[&op], Err(Error::Sealed { length: BLOCK }));
    }
    let again = bench.seal(Some(0));
    bench.commit();
    assert_eq!(bench.answers[&again], Ok(Response::Seal(Sealed::At(BLOCK))));
    bench.check_image();
}

#[test]
fn a_failed_write_ends_the_chunk_only_when_the_journal_knows() {
    let mut bench = Bench::new(64);
    let ops = [bench.append(0, 1), bench.append(BLOCK, 1), bench.append(2 * BLOCK, 1)];
    bench.written(1, false);
    bench.written(0, true);
    assert_eq!(bench.acknowledged(ops[0]), Some(BLOCK));
    bench.written(0, true);
    assert!(!bench.answers.contains_key(&ops[1]));
    bench.commit();
    assert_eq!(bench.answers[&ops[1]], Err(Error::Sealed { length: BLOCK }));
    assert_eq!(bench.answers[&ops[2]], Err(Error::Sealed { length: BLOCK }));
    assert_eq!(bench.image.chunks[&CHUNK].length, BLOCK);
}

#[test]
fn a_chunk_deleted_with_writes_under_way_frees_its_extents_only_after_them() {
    let mut bench = Bench::new(64);
    let append = bench.append(0, 1);
    let before = bench.core.space.available();
    let op = bench.op();
    bench.core.delete(op, CHUNK);
    bench.pump();
    assert_eq!(bench.answers[&append], Err(Error::Unknown));
    bench.commit();
    assert_eq!(bench.answers[&op], Ok(Response::Delete));
    assert_eq!(bench.core.space.available(), before);
    bench.written(0, true);
    assert_eq!(bench.core.space.available(), before + 1);
}

#[test]
fn a_full_device_refuses_what_has_no_place_and_takes_it_when_there_is_space() {
    let mut bench = Bench::new(18);
    let mut other = 100;
    while bench.core.space.available() > 1 {
        bench.append_as(shape_of(other), 0, 1);
        other += 1;
        bench.commit();
    }
    bench.append(0, 1);
    bench.append(BLOCK, 127);
    let unplaced = bench.append(128 * BLOCK, 129);
    bench.commit();
    let refused = bench.append(128 * BLOCK, 129);
    assert!(bench.answers[&unplaced] == Err(Error::Full) || bench.answers[&refused] == Err(Error::Full));
    while !bench.writes.is_empty() {
        bench.written(0, true);
    }
    let op = bench.op();
    bench.core.delete(op, ChunkId(100));
    bench.pump();
    bench.commit();
    let again = bench.append(128 * BLOCK, 129);
    bench.commit();
    while !bench.writes.is_empty() {
        bench.written(0, true);
    }
    assert_eq!(bench.acknowledged(again), Some(257 * BLOCK));
}

#[test]
fn a_failed_journal_answers_everybody_and_refuses_changes() {
    let mut bench = Bench::new(64);
    let seal = bench.seal(None);
    bench.core.fail("broken".into());
    bench.pump();
    assert!(matches!(bench.answers[&seal], Err(Error::Io(_))));
    let append = bench.append(0, 1);
    assert!(matches!(bench.answers[&append], Err(Error::Io(_))));
}

#[test]
fn floors_are_bounded() {
    let mut bench = Bench::new(64);
    for owner in 1..4 {
        let op = bench.op();
        bench.core.seal(op, &Seal { chunk: ChunkId(owner), owner: OwnerId(owner), epoch: Epoch(1), length: None });
        bench.pump();
        bench.commit();
        assert_eq!(bench.answers[&op].is_ok(), owner < 3);
    }
}

#[test]
fn whoever_waits_too_long_is_told() {
    let mut bench = Bench::new(64);
    let first = bench.append(0, 1);
    bench.core.expire(Duration::from_secs(5));
    bench.pump();
    assert!(!bench.answers.contains_key(&first));
    bench.core.expire(Duration::from_secs(11));
    bench.pump();
    assert_eq!(bench.answers[&first], Err(Error::Deadline));
    let same = bench.append(0, 1);
    bench.written(0, true);
    assert_eq!(bench.acknowledged(same), Some(BLOCK), "the same unit, sent again");
}

#[derive(Clone, Debug)]
enum Step {
    Append(u32),
    Again(usize),
    Written(usize, bool),
    Commit,
    Seal(Option<u32>),
    Delete,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u32..130).prop_map(Step::Append),
        1 => any::<usize>().prop_map(Step::Again),
        6 => (any::<usize>(), prop::bool::weighted(0.97)).prop_map(|(index, whole)| Step::Written(index, whole)),
        2 => Just(Step::Commit),
        1 => prop::option::of(0u32..2000).prop_map(|blocks| Step::Seal(blocks.map(|blocks| blocks * BLOCK))),
        1 => Just(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn answers_never_contradict_each_other(steps in prop::collection::vec(any_step(), 1..120)) {
        let mut bench = Bench::new(64);
        // Ends of units that were sent, by who sent them; and what came back whole.
        let mut sent: BTreeMap<OpId, (u32, u32)> = BTreeMap::new();
        let mut whole: BTreeSet<u32> = BTreeSet::new();
        let mut seals = BTreeSet::new();
        let (mut end, mut is_deleted) = (0, false);
        for step in steps {
            match step {
                Step::Append(blocks) => {
                    let op = bench.append(end, blocks);
                    sent.insert(op, (end, end + blocks * BLOCK));
                    if !matches!(bench.answers.get(&op), Some(Err(_))) {
                        end += blocks * BLOCK;
                    }
                }
                Step::Again(index) if !sent.is_empty() => {
                    let (start, unit_end) = *sent.values().nth(index % sent.len()).unwrap();
                    if start < end {
                        let op = bench.append(start, (unit_end - start) / BLOCK);
                        sent.insert(op, (start, unit_end));
                    }
                }
                Step::Written(index, is_whole) if !bench.writes.is_empty() => {
                    let index = index % bench.writes.len();
                    if is_whole {
                        whole.insert(bench.writes[index].start);
                    }
                    bench.written(index, is_whole);
                }
                Step::Seal(length) => {
                    seals.insert(bench.seal(length));
                }
                Step::Delete => {
                    let op = bench.op();
                    bench.core.delete(op, CHUNK);
                    bench.pump();
                    is_deleted = true;
                }
                Step::Commit => bench.commit(),
                Step::Again(_) | Step::Written(..) => {}
            }
            bench.check_image();
        }
        while !bench.writes.is_empty() {
            whole.insert(bench.writes[0].start);
            bench.written(0, true);
            bench.commit();
        }
        bench.commit();
        while !bench.writes.is_empty() {
            bench.written(0, true);
            bench.commit();
        }
        prop_assert!(bench.core.is_idle());
        let all_asked: BTreeSet<OpId> = sent.keys().chain(&seals).copied().collect();
        prop_assert!(all_asked.iter().all(|op| bench.answers.contains_key(op)), "somebody waits for ever");
        if is_deleted {
            return Ok(());
        }
        let lengths: Vec<u32> = seals.iter().filter_map(|op| match &bench.answers[op] {
            Ok(Response::Seal(Sealed::At(length))) => Some(*length),
            _ => None,
        }).collect();
        prop_assert!(lengths.windows(2).all(|pair| pair[1] <= pair[0]), "a length grew: {lengths:?}");
        if let Ok(info) = bench.core.info(CHUNK) {
            let last = lengths.last().copied();
            prop_assert!(last.is_none_or(|last| last == info.length));
            prop_assert_eq!(bench.core.append_bytes(), 0);
        }
    }
}
