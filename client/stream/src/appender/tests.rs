use super::*;
use api_types::chunk::{Append, Error as StoreError, Seal, Sealed};
use api_types::master::{ChunkState, Copy, Replication, Role, SealChunk};
use api_types::unit::{Alignment, ChunkShape, verify_unit};
use api_types::{ChunkId, DeviceId, Epoch, LifetimeClass, OwnerId, QosClass};
use std::collections::{BTreeMap, BTreeSet};

const SEED: FooterSeed = FooterSeed(7);

/// An appender, what it asked for and hasn't been answered, and what it completed.
struct Bench {
    appender: Appender,
    now: Duration,
    appends: Vec<(DeviceId, Ticket, Append)>,
    seals: Vec<(DeviceId, Seal)>,
    grants: Vec<Grant>,
    records: Vec<SealChunk>,
    deletes: Vec<ChunkId>,
    done: BTreeMap<u64, Result<Position, Error>>,
    order: Vec<u64>,
    closed: Option<Result<(), Error>>,
    granted: u64,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config() -> Config {
    Config { chase_bytes_max: 64 << 10, chase_rest_max: 8 << 10, ..Config::default() }
}

impl Bench {
    fn new(config: Config) -> Self {
        let options = WriterOptions {
            owner: OwnerId(1),
            epoch: Epoch(3),
            replication: Replication { max_copy: 3, min_copy: 2 },
            chunk_bytes: 1 << 20,
            class: LifetimeClass::Short,
            qos: QosClass::Foreground,
        };
        let appender = Appender::new(StreamId(5), options, config, SEED, Duration::ZERO);
        let mut bench = Bench {
            appender,
            now: Duration::ZERO,
            appends: Vec::new(),
            seals: Vec::new(),
            grants: Vec::new(),
            records: Vec::new(),
            deletes: Vec::new(),
            done: BTreeMap::new(),
            order: Vec::new(),
            closed: None,
            granted: 0,
        };
        bench.tick();
        bench
    }

    /// One that was granted its spares on devices 1 to 3.
    fn ready() -> Self {
        let mut bench = Bench::new(config());
        bench.grant(&[1, 2, 3]);
        bench
    }

    fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        self.appender.handle(self.now, event, &mut out);
        for command in out {
            match command {
                Command::Append { device, ticket, append } => self.appends.push((device, ticket, append)),
                Command::Seal { device, seal } => self.seals.push((device, seal)),
                Command::Grant(grant) => self.grants.push(grant),
                Command::Record(seal) => self.records.push(seal),
                Command::Delete(chunk) => self.deletes.push(chunk),
                Command::Complete { id, result } => {
                    assert!(self.done.insert(id, result).is_none(), "append {id} completed twice");
                    self.order.push(id);
                }
                Command::Closed(result) => self.closed = Some(result),
                Command::Suspect(_) | Command::Opened(_) | Command::Finished(_) => {}
            }
        }
        assert!(self.appender.deadline().is_none_or(|deadline| deadline > self.now), "the timer would spin");
    }

    fn tick(&mut self) {
        self.handle(Event::Tick);
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.appender.deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline;
            self.tick();
        }
        self.now = end;
        self.tick();
    }

    /// Answers the oldest grant with chunks on these devices.
    fn grant(&mut self, devices: &[u64]) {
        let count = self.grants.remove(0).count;
        let records = (0..count).map(|_| self.record(devices)).collect();
        self.handle(Event::Granted(Ok(records)));
    }

    fn record(&mut self, devices: &[u64]) -> ChunkRecord {
        self.granted += 1;
        let copy = |device: &u64| Copy { device: DeviceId(*device), role: Role::Replica, whole: false };
        ChunkRecord {
            shape: ChunkShape {
                chunk: ChunkId(100 + self.granted),
                owner: OwnerId(1),
                epoch: Epoch(3),
                capacity: 1 << 20,
                alignment: Alignment::B512,
                class: LifetimeClass::Short,
            },
            stream: StreamId(5),
            index: self.granted,
            state: ChunkState::Granted,
            copies: devices.iter().map(copy).collect(),
        }
    }

    fn append(&mut self, id: u64, bytes: usize) {
        let data = vec![Bytes::from(vec![id as u8; bytes])];
        self.handle(Event::Append { id, data, trailer: Bytes::from_static(b"trailer") });
    }

    /// Answers what is under way to a device now.
    fn answer(&mut self, device: u64, error: Option<StoreError>) {
        let device = DeviceId(device);
        let (mine, others) = std::mem::take(&mut self.appends).into_iter().partition(|(to, ..)| *to == device);
        self.appends = others;
        let mine: Vec<(DeviceId, Ticket, Append)> = mine;
        for (_, ticket, append) in mine {
            let result = error.clone().map_or(Ok(append.offset + append.unit.len() as u32), Err);
            self.handle(Event::Appended { ticket, result });
        }
    }

    fn ok(&mut self, device: u64) {
        self.answer(device, None);
    }

    fn seal_answer(&mut self, device: u64, sealed: Sealed) {
        let at = self.seals.iter().position(|(to, _)| *to == DeviceId(device)).unwrap();
        let (device, seal) = self.seals.remove(at);
        self.handle(Event::Sealed { chunk: seal.chunk, device, result: Ok(sealed) });
    }

    fn open_chunk(&self) -> u64 {
        self.appender.open_chunk().unwrap().0.shape.chunk.0
    }
}

#[test]
fn a_writer_asks_for_its_spares_before_the_first_append() {
    let bench = Bench::new(config());
    assert_eq!(bench.grants[0].count, 2);
}

#[test]
fn an_append_is_committed_by_min_copy_answers_and_completes_once() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    assert_eq!(bench.appends.len(), 3);
    assert!(bench.appends.iter().all(|(_, _, append)| append.create && verify_unit(&append.unit, SEED).is_ok()));
    bench.ok(1);
    assert!(bench.done.is_empty());
    bench.ok(3);
    let position = bench.done[&1].clone().unwrap();
    assert_eq!((position.chunk, position.offset), (ChunkId(101), 0));
    bench.ok(2);
    assert_eq!(bench.appender.stats().chased_bytes, 0);
}

#[test]
fn appends_complete_in_the_order_of_their_calls() {
    let mut bench = Bench::ready();
    for id in 1..=5 {
        bench.append(id, 4096);
    }
    bench.ok(1);
    bench.ok(2);
    assert_eq!(bench.order, [1, 2, 3, 4, 5]);
}

#[test]
fn a_late_copy_is_chased_and_neither_left_nor_given_up() {
    let mut bench = Bench::ready();
    for id in 1..=50 {
        bench.append(id, 1000);
        bench.ok(1);
        bench.ok(2);
        bench.pass(ms(200));
        bench.ok(3);
    }
    assert_eq!(bench.order.len(), 50);
    assert_eq!((bench.open_chunk(), bench.appender.stats().copies_given_up, bench.records.len()), (101, 0, 0));
}

#[test]
fn memory_for_a_copy_that_is_behind_is_bounded() {
    let mut bench = Bench::ready();
    for id in 1..=100 {
        bench.append(id, 4096);
        bench.ok(1);
        bench.ok(2);
        assert!(bench.appender.stats().chased_bytes <= config().chase_bytes_max);
    }
    assert_eq!(bench.order.len(), 100);
    assert_eq!(bench.appender.stats().copies_given_up, 1);
}

#[test]
fn a_device_that_goes_away_is_left_for_a_spare_without_it() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.ok(1);
    bench.ok(2);
    bench.grant(&[2, 3, 4]);
    bench.handle(Event::Listed(BTreeSet::from([DeviceId(3)])));
    bench.answer(3, Some(StoreError::Unreachable("gone".to_owned())));
    assert_eq!(bench.open_chunk(), 101);
    assert_eq!(bench.grants[0].avoid, [DeviceId(3)]);
    bench.append(2, 100);
    bench.grant(&[1, 2, 4]);
    assert!(bench.open_chunk() > 102, "the spares that were granted before have a copy on the device");
    let resent: Vec<_> = bench.appends.iter().filter(|(_, _, append)| append.chunk.0 == bench.open_chunk()).collect();
    assert_eq!(resent.len(), 3);
    assert_eq!(resent[0].2.offset, 0);
    assert_eq!(verify_unit(&resent[0].2.unit, SEED).unwrap().shape.chunk.0, bench.open_chunk());
}

#[test]
fn a_unit_that_was_not_committed_moves_and_late_answers_do_not_commit_it_twice() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    let stale = bench.appends.clone();
    bench.answer(1, Some(StoreError::Sealed { length: 0 }));
    assert_eq!(bench.open_chunk(), 102);
    for (_, ticket, _) in stale {
        bench.handle(Event::Appended { ticket, result: Ok(1024) });
    }
    assert!(bench.done.is_empty());
    bench.ok(2);
    bench.ok(3);
    assert_eq!(bench.done[&1].clone().unwrap().chunk, ChunkId(102));
}

#[test]
fn the_chunk_that_was_left_is_sealed_at_what_was_committed_and_says_who_is_whole() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.ok(1);
    bench.ok(2);
    let end = bench.done[&1].clone().unwrap().end;
    bench.answer(3, Some(StoreError::Sealed { length: 0 }));
    assert!(bench.seals.iter().all(|(_, seal)| seal.length == Some(end)));
    bench.seal_answer(1, Sealed::At(end));
    bench.seal_answer(2, Sealed::At(end));
    assert!(bench.records.is_empty());
    bench.seal_answer(3, Sealed::Absent);
    assert_eq!((bench.records[0].length, bench.records[0].whole.clone()), (end, vec![DeviceId(1), DeviceId(2)]));
}

#[test]
fn a_stall_moves_the_writer_without_an_error() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.ok(1);
    bench.pass(ms(701));
    assert!(!bench.grants.is_empty());
    bench.grant(&[1, 4, 5]);
    bench.pass(ms(701));
    assert!(bench.open_chunk() > 102);
    bench.ok(4);
    bench.ok(5);
    assert!(bench.done[&1].is_ok());
}

#[test]
fn fenced_is_for_ever() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.append(2, 100);
    bench.answer(2, Some(StoreError::Fenced { floor: Epoch(4) }));
    assert_eq!((bench.done[&1].clone(), bench.done[&2].clone()), (Err(Error::Fenced), Err(Error::Fenced)));
    bench.append(3, 100);
    assert_eq!(bench.done[&3], Err(Error::Fenced));
    assert_eq!(bench.appender.deadline(), None);
}

#[test]
fn another_recorded_length_means_a_newer_writer() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.ok(1);
    bench.ok(2);
    bench.answer(3, Some(StoreError::Sealed { length: 0 }));
    let end = bench.done[&1].clone().unwrap().end;
    for device in [1, 2, 3] {
        bench.seal_answer(device, Sealed::At(end));
    }
    let chunk = bench.records[0].chunk;
    bench.handle(Event::Recorded { chunk, result: Ok(end + 512) });
    assert_eq!(bench.appender.stopped(), Some(&Error::Fenced));
}

#[test]
fn no_space_fails_what_waits_and_later_appends_are_tried_afresh() {
    let mut bench = Bench::new(config());
    bench.append(1, 100);
    bench.grants.clear();
    bench.handle(Event::Granted(Err(master::Error::NoSpace("full".to_owned()))));
    assert!(matches!(bench.done[&1], Err(Error::NoSpace(_))));
    bench.append(2, 100);
    bench.pass(ms(20));
    bench.grant(&[1, 2, 3]);
    bench.ok(1);
    bench.ok(2);
    assert!(bench.done[&2].is_ok());
}

#[test]
fn a_full_chunk_is_followed_by_the_next_spare_in_order() {
    let mut bench = Bench::ready();
    for id in 1..=12 {
        bench.append(id, 100 << 10);
        for device in [1, 2, 3] {
            bench.ok(device);
        }
    }
    assert_eq!(bench.order.len(), 12);
    assert_eq!(bench.open_chunk(), 102);
    assert!(bench.done[&12].clone().unwrap().index > bench.done[&1].clone().unwrap().index);
}

#[test]
fn nothing_reachable_is_an_error_only_after_the_long_bound() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.pass(config().append_give_up - ms(1));
    assert!(bench.done.is_empty());
    bench.pass(ms(2));
    assert!(matches!(bench.done[&1], Err(Error::Unavailable(_))));
}

#[test]
fn what_is_too_large_is_refused() {
    let mut bench = Bench::ready();
    bench.append(1, UNIT_DATA_BYTES_MAX as usize + 1);
    assert!(matches!(bench.done[&1], Err(Error::Invalid(_))));
}

#[test]
fn closing_seals_the_open_chunk_and_gives_the_spares_back() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.handle(Event::Close);
    for device in [1, 2, 3] {
        bench.ok(device);
    }
    let end = bench.done[&1].clone().unwrap().end;
    for device in [1, 2, 3] {
        bench.seal_answer(device, Sealed::At(end));
    }
    while !bench.grants.is_empty() {
        bench.grant(&[1, 2, 3]);
    }
    while let Some(seal) = bench.records.pop() {
        bench.handle(Event::Recorded { chunk: seal.chunk, result: Ok(seal.length) });
    }
    while let Some(chunk) = bench.deletes.pop() {
        bench.handle(Event::Deleted { chunk, result: Ok(()) });
    }
    assert_eq!(bench.closed, Some(Ok(())));
}

#[test]
fn a_chunk_that_is_left_with_its_appends_failed_is_sealed_at_once() {
    let mut bench = Bench::ready();
    bench.append(1, 100);
    bench.pass(config().append_give_up);
    assert!(matches!(bench.done[&1], Err(Error::Unavailable(_))));
    assert_eq!(bench.seals.iter().map(|(_, seal)| seal.length).collect::<Vec<_>>(), [Some(0); 3]);
}
