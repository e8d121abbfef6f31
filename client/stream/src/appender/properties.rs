//! Whatever stores, masters and time do, in whatever order: what an appender promises holds.

use super::*;
use api_types::chunk::{Append, Error as StoreError, Seal, Sealed};
use api_types::master::{ChunkState, Copy, Replication, Role, SealChunk};
use api_types::unit::{Alignment, ChunkShape, trailer_of, verify_unit};
use api_types::{ChunkId, DeviceId, Epoch, LifetimeClass, OwnerId, QosClass};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SEED: FooterSeed = FooterSeed(11);
const CHUNK_BYTES: u32 = 1 << 20;
const REPLICATION: Replication = Replication { max_copy: 3, min_copy: 2 };
const DEVICES: u64 = 6;

/// What becomes of a request to a store.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Served,
    /// Neither done nor answered.
    LostBefore,
    /// Done, and not answered.
    LostAfter,
    Busy,
    Full,
    Broken,
    /// The store was restarted in between: what was open is sealed.
    Restarted,
}

/// What happens next. `pick` says to which of the requests that wait for an answer.
#[derive(Debug, Clone, Copy)]
enum Step {
    Append { bytes: usize },
    Store { pick: usize, fate: Fate },
    Seal { pick: usize, fate: Fate },
    Grant { first: u64, fate: Fate },
    Record { pick: usize, fate: Fate },
    Delete { fate: Fate },
    Pass { ms: u64 },
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Served),
        1 => Just(Fate::LostBefore),
        1 => Just(Fate::LostAfter),
        1 => Just(Fate::Busy),
        1 => Just(Fate::Full),
        1 => Just(Fate::Broken),
        1 => Just(Fate::Restarted),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (8_usize..6000).prop_map(|bytes| Step::Append { bytes }),
        1 => (100_000_usize..400_000).prop_map(|bytes| Step::Append { bytes }),
        24 => (any::<usize>(), fates()).prop_map(|(pick, fate)| Step::Store { pick, fate }),
        4 => (any::<usize>(), fates()).prop_map(|(pick, fate)| Step::Seal { pick, fate }),
        4 => (0..DEVICES, fates()).prop_map(|(first, fate)| Step::Grant { first, fate }),
        2 => (any::<usize>(), fates()).prop_map(|(pick, fate)| Step::Record { pick, fate }),
        1 => fates().prop_map(|fate| Step::Delete { fate }),
        4 => (0_u64..3000).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// A copy as its store has it.
#[derive(Default)]
struct Stored {
    bytes: Vec<u8>,
    sealed: bool,
}

/// The appender, everything around it, and what it has promised so far.
struct World {
    appender: Appender,
    config: Config,
    now: Duration,
    appends: Vec<(DeviceId, Ticket, Append)>,
    seals: Vec<(DeviceId, Seal)>,
    grants: Vec<Grant>,
    records: Vec<SealChunk>,
    deletes: Vec<ChunkId>,
    stores: BTreeMap<(ChunkId, DeviceId), Stored>,
    granted: u64,
    /// The name of the next append, and of the next that has to complete.
    next: u64,
    ends: u64,
    committed: BTreeMap<ChunkId, u32>,
    last: Option<Position>,
    recorded: BTreeMap<ChunkId, u32>,
    closed: Option<Result<(), Error>>,
}

impl World {
    fn new() -> Self {
        let config = Config {
            chase_bytes_max: 64 << 10,
            chase_rest_max: 8 << 10,
            in_flight_units_max: 8,
            copy_units_max: 16,
            closing_max: 2,
            ..Config::default()
        };
        let options = WriterOptions {
            owner: OwnerId(1),
            epoch: Epoch(3),
            replication: REPLICATION,
            chunk_bytes: CHUNK_BYTES,
            class: LifetimeClass::Short,
            qos: QosClass::Foreground,
        };
        World {
            appender: Appender::new(StreamId(5), options, config.clone(), SEED, Duration::ZERO),
            config,
            now: Duration::ZERO,
            appends: Vec::new(),
            seals: Vec::new(),
            grants: Vec::new(),
            records: Vec::new(),
            deletes: Vec::new(),
            stores: BTreeMap::new(),
            granted: 0,
            next: 0,
            ends: 0,
            committed: BTreeMap::new(),
            last: None,
            recorded: BTreeMap::new(),
            closed: None,
        }
    }

    fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        self.appender.handle(self.now, event, &mut out);
        for command in out {
            match command {
                Command::Append { device, ticket, append } => self.appends.push((device, ticket, append)),
                Command::Seal { device, seal } => {
                    assert_eq!(seal.length, Some(self.committed(seal.chunk)), "cut somewhere else than at what is committed");
                    self.seals.push((device, seal));
                }
                Command::Grant(grant) => self.grants.push(grant),
                Command::Record(seal) => self.record(seal),
                Command::Delete(chunk) => {
                    assert_eq!(self.committed(chunk), 0, "deletes what holds committed bytes");
                    self.deletes.push(chunk);
                }
                Command::Complete { id, result } => self.complete(id, result),
                Command::Closed(result) => assert!(self.closed.replace(result).is_none(), "closed twice"),
                Command::Suspect(_) | Command::Opened(_) | Command::Finished(_) => {}
            }
        }
        assert!(self.appender.deadline().is_none_or(|deadline| deadline > self.now), "the timer would spin");
        assert!(self.appender.stats().chased_bytes <= self.config.chase_bytes_max, "memory for chasing isn't bounded");
        assert_eq!(self.appender.stopped(), None);
    }

    fn committed(&self, chunk: ChunkId) -> u32 {
        self.committed.get(&chunk).copied().unwrap_or(0)
    }

    /// Appends complete once, in order; those that succeed follow one another in their chunk, on enough devices.
    fn complete(&mut self, id: u64, result: Result<Position, Error>) {
        assert_eq!(id, self.ends, "completed out of order, or twice");
        self.ends += 1;
        let Ok(position) = result else { return };
        assert!(self.last.is_none_or(|last| (last.index, last.offset) < (position.index, position.offset)));
        assert_eq!(position.offset, self.committed(position.chunk), "a hole before a committed unit");
        assert!(!self.recorded.contains_key(&position.chunk), "a commit in a chunk that was closed");
        let range = position.offset as usize..position.end as usize;
        let stores = self.stores.iter().filter(|((chunk, _), _)| *chunk == position.chunk);
        let units: Vec<&[u8]> = stores.filter_map(|(_, stored)| stored.bytes.get(range.clone())).collect();
        assert!(units.len() >= usize::from(REPLICATION.min_copy), "committed on {} devices", units.len());
        for unit in units {
            let footer = verify_unit(unit, SEED).unwrap();
            assert_eq!((footer.start, footer.shape.chunk), (position.offset, position.chunk));
            assert_eq!((&unit[..8], trailer_of(unit, &footer)), (&id.to_le_bytes()[..], &id.to_be_bytes()[..]));
        }
        self.committed.insert(position.chunk, position.end);
        self.last = Some(position);
    }

    fn record(&mut self, seal: SealChunk) {
        assert_eq!(seal.length, self.committed(seal.chunk), "recorded with another length than is committed");
        for device in &seal.whole {
            let has = self.stores.get(&(seal.chunk, *device)).map_or(0, |stored| stored.bytes.len());
            assert!(has >= seal.length as usize, "{device} isn't whole");
        }
        self.records.push(seal);
    }

    /// What a store does with an append: `docs/protocol.md`, replica.
    fn store(&mut self, device: DeviceId, append: &Append) -> Result<u32, StoreError> {
        let key = (append.chunk, device);
        if append.create {
            self.stores.entry(key).or_default();
        }
        let stored = self.stores.get_mut(&key).ok_or(StoreError::Unknown)?;
        let (start, length) = (append.offset as usize, stored.bytes.len());
        if stored.sealed {
            return Err(StoreError::Sealed { length: length as u32 });
        }
        if let Some(there) = stored.bytes.get(start..start + append.unit.len()) {
            assert_eq!(there, &append.unit[..], "other bytes for a place that was written");
        } else if start == length {
            stored.bytes.extend_from_slice(&append.unit);
        } else {
            return Err(StoreError::WrongOffset { expected: length as u32 });
        }
        Ok(stored.bytes.len() as u32)
    }

    fn answer_append(&mut self, pick: usize, fate: Fate) {
        if self.appends.is_empty() {
            return;
        }
        let (device, ticket, append) = self.appends.remove(pick % self.appends.len());
        let result = match fate {
            Fate::Served => self.store(device, &append),
            Fate::LostBefore => Err(StoreError::Unreachable("lost".to_owned())),
            Fate::LostAfter => {
                let _ = self.store(device, &append);
                Err(StoreError::Deadline)
            }
            Fate::Busy => Err(StoreError::Busy),
            Fate::Full => Err(StoreError::Full),
            Fate::Broken => Err(StoreError::Io("broken".to_owned())),
            Fate::Restarted => {
                for (_, stored) in self.stores.iter_mut().filter(|((_, at), _)| *at == device) {
                    stored.sealed = true;
                }
                self.store(device, &append)
            }
        };
        self.handle(Event::Appended { ticket, result });
    }

    fn answer_seal(&mut self, pick: usize, fate: Fate) {
        if self.seals.is_empty() {
            return;
        }
        let (device, seal) = self.seals.remove(pick % self.seals.len());
        let mut sealed = Sealed::Absent;
        if !matches!(fate, Fate::LostBefore | Fate::Busy | Fate::Broken)
            && let Some(stored) = self.stores.get_mut(&(seal.chunk, device))
        {
            stored.sealed = true;
            stored.bytes.truncate(seal.length.unwrap() as usize);
            sealed = Sealed::At(stored.bytes.len() as u32);
        }
        let result = match fate {
            Fate::Served | Fate::Full | Fate::Restarted => Ok(sealed),
            Fate::LostBefore => Err(StoreError::Unreachable("lost".to_owned())),
            Fate::LostAfter => Err(StoreError::Deadline),
            Fate::Busy => Err(StoreError::Busy),
            Fate::Broken => Err(StoreError::Io("broken".to_owned())),
        };
        self.handle(Event::Sealed { chunk: seal.chunk, device, result });
    }

    fn answer_grant(&mut self, first: u64, fate: Fate) {
        let Some(grant) = self.grants.pop() else { return };
        assert!(self.grants.is_empty(), "asked for chunks twice at once");
        let result = match fate {
            Fate::Full => Err(master::Error::NoSpace("full".to_owned())),
            Fate::LostBefore | Fate::Busy => Err(master::Error::Unavailable("no leader".to_owned())),
            _ => Ok((0..grant.count).map(|_| self.chunk(first)).collect()),
        };
        self.handle(Event::Granted(result));
    }

    fn chunk(&mut self, first: u64) -> ChunkRecord {
        self.granted += 1;
        let devices = (first..first + 3).map(|device| DeviceId(device % DEVICES));
        ChunkRecord {
            shape: ChunkShape {
                chunk: ChunkId(100 + self.granted),
                owner: OwnerId(1),
                epoch: Epoch(3),
                capacity: CHUNK_BYTES,
                alignment: Alignment::B512,
                class: LifetimeClass::Short,
            },
            stream: StreamId(5),
            index: self.granted,
            state: ChunkState::Granted,
            copies: devices.map(|device| Copy { device, role: Role::Replica, whole: false }).collect(),
        }
    }

    fn answer_record(&mut self, pick: usize, fate: Fate) {
        if self.records.is_empty() {
            return;
        }
        let seal = self.records.remove(pick % self.records.len());
        let result = match fate {
            Fate::LostBefore | Fate::Busy => Err(master::Error::Unavailable("no leader".to_owned())),
            _ => Ok(*self.recorded.entry(seal.chunk).or_insert(seal.length)),
        };
        self.handle(Event::Recorded { chunk: seal.chunk, result });
    }

    fn answer_delete(&mut self, fate: Fate) {
        let Some(chunk) = self.deletes.pop() else { return };
        let result = match fate {
            Fate::LostBefore | Fate::Busy => Err(master::Error::Unavailable("no leader".to_owned())),
            _ => Ok(()),
        };
        self.handle(Event::Deleted { chunk, result });
    }

    fn append(&mut self, bytes: usize) {
        let id = self.next;
        self.next += 1;
        let mut data = id.to_le_bytes().to_vec();
        data.resize(bytes.max(8), 7);
        self.handle(Event::Append { id, data: vec![data.into()], trailer: Bytes::copy_from_slice(&id.to_be_bytes()) });
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.appender.deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline;
            self.handle(Event::Tick);
        }
        self.now = end;
        self.handle(Event::Tick);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append { bytes } => self.append(bytes),
            Step::Store { pick, fate } => self.answer_append(pick, fate),
            Step::Seal { pick, fate } => self.answer_seal(pick, fate),
            Step::Grant { first, fate } => self.answer_grant(first, fate),
            Step::Record { pick, fate } => self.answer_record(pick, fate),
            Step::Delete { fate } => self.answer_delete(fate),
            Step::Pass { ms } => self.pass(Duration::from_millis(ms)),
        }
    }

    fn waits(&self) -> usize {
        self.appends.len() + self.seals.len() + self.grants.len() + self.records.len() + self.deletes.len()
    }

    /// Everything is well from now on: all that is under way comes to its end.
    fn settle(&mut self, done: impl Fn(&World) -> bool) {
        for round in 0..1000 {
            while self.waits() > 0 {
                self.answer_append(0, Fate::Served);
                self.answer_seal(0, Fate::Served);
                self.answer_grant(round, Fate::Served);
                self.answer_record(0, Fate::Served);
                self.answer_delete(Fate::Served);
            }
            if done(self) {
                return;
            }
            self.pass(Duration::from_millis(100));
        }
        panic!("{} of {} appends have ended, closed: {:?}", self.ends, self.next, self.closed);
    }

    /// All copies of a chunk are prefixes of the longest.
    fn check_prefixes(&self) {
        let mut longest: BTreeMap<ChunkId, &[u8]> = BTreeMap::new();
        for ((chunk, _), stored) in &self.stores {
            let other = longest.entry(*chunk).or_insert(&stored.bytes);
            let length = other.len().min(stored.bytes.len());
            assert_eq!(other[..length], stored.bytes[..length], "copies of {chunk} differ");
            if stored.bytes.len() > length {
                *other = &stored.bytes;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_whatever_is_answered_and_in_whatever_order(steps in prop::collection::vec(steps(), 1..250)) {
        let mut world = World::new();
        world.handle(Event::Tick);
        world.answer_grant(0, Fate::Served);
        for step in steps {
            world.step(step);
        }
        world.check_prefixes();
        world.settle(|world| world.ends == world.next);
        let id = world.next;
        world.append(100);
        world.settle(|world| world.ends == world.next);
        prop_assert!(world.last.is_some_and(|last| last.end > 0), "append {} found no place though all is well", id);
        world.handle(Event::Close);
        world.settle(|world| world.closed.is_some());
        prop_assert_eq!(world.closed.take(), Some(Ok(())));
        world.check_prefixes();
        let open = (1..=world.granted).map(|granted| ChunkId(100 + granted)).find(|chunk| !world.recorded.contains_key(chunk));
        prop_assert_eq!(open, None, "a chunk was left open");
    }
}
