//! A writer's process: takes the volume over, checks what it finds, then appends numbered units.

use crate::check::{Unit, bytes_of};
use crate::clock::Chance;
use crate::masters::Masters;
use crate::network::{Host, Transport};
use crate::process::Process;
use crate::world::World;
use api_types::chunk::ChunkTransport;
use api_types::master::{ChunkState, MasterClient, VolumeLease};
use api_types::{Clock, LifetimeClass, NodeName, OwnerId, QosClass, Rng, VolumeId};
use bytes::Bytes;
use client_stream::{Client, Config, Deps, Error, Position, Writer, WriterOptions};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Units that a writer has under way at most.
const UNDER_WAY_MAX: u32 = 16;

/// What a session is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) volume: VolumeId,
    pub(crate) host: Host,
    pub(crate) units: u64,
    /// Close the stream in the end.
    pub(crate) close: bool,
}

/// A running session.
pub(crate) struct Session {
    pub(crate) process: Rc<Process>,
    pub(crate) ended: Rc<Cell<bool>>,
}

struct Shared {
    world: Rc<World>,
    chance: Rc<Chance>,
    client: Client,
    masters: Rc<dyn MasterClient>,
    task: Task,
    name: String,
    under_way: Cell<u32>,
    known: RefCell<Vec<(Unit, usize, Position)>>,
}

/// Starts a session in a process of its own.
pub(crate) fn start(world: &Rc<World>, task: Task) -> Session {
    let process = Process::start(world);
    let ended = Rc::new(Cell::new(false));
    let (world, chance, done) = (Rc::clone(world), world.chance.fork(), Rc::clone(&ended));
    process.spawn(async move {
        let shared = share(&world, chance, task);
        match Rc::clone(&shared).run().await {
            Ok(()) => world.tell(&format!("{} ends", shared.name)),
            Err(error) => world.tell(&format!("{} ends: {error}", shared.name)),
        }
        done.set(true);
    });
    Session { process, ended }
}

fn share(world: &Rc<World>, chance: Rc<Chance>, task: Task) -> Rc<Shared> {
    let transport: Rc<dyn ChunkTransport> = Rc::new(Transport { world: Rc::downgrade(world), host: task.host });
    let masters: Rc<dyn MasterClient> = Rc::new(Masters { world: Rc::downgrade(world), chance: chance.fork() });
    let deps = Deps {
        transport,
        master: Rc::clone(&masters),
        clock: Rc::new(world.time.clone()),
        rng: chance.fork(),
        seed: world.seed(),
    };
    let node = NodeName(format!("n{}", task.host.0));
    let config = Config {
        node: Some(node),
        chase_bytes_max: 256 << 10,
        chase_rest_max: 64 << 10,
        recover_limit: Duration::from_secs(60),
        ..Config::default()
    };
    let client = Client::new(deps, config);
    let world = Rc::clone(world);
    Rc::new(Shared {
        world,
        chance,
        client,
        masters,
        task,
        name: format!("writer on n{}", task.host.0),
        under_way: Cell::new(0),
        known: RefCell::default(),
    })
}

impl Shared {
    async fn run(self: Rc<Self>) -> Result<(), Error> {
        let node = NodeName(format!("n{}", self.task.host.0));
        let lease = loop {
            match self.masters.open_volume(self.task.volume, node.clone()).await {
                Ok(lease) => break lease,
                Err(api_types::master::Error::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let epoch = lease.volume.epoch;
        self.world.tell(&format!("{} is {epoch}", self.name));
        let number = self.take_over(&lease).await?;
        let options = WriterOptions {
            owner: OwnerId::from(self.task.volume),
            epoch,
            replication: lease.replication,
            chunk_bytes: lease.chunk_bytes,
            class: LifetimeClass::Short,
            qos: QosClass::Foreground,
        };
        let writer = self.client.writer(lease.volume.streams.hot, options);
        self.append_all(&writer, epoch, number).await?;
        if self.task.close {
            writer.close().await?;
            self.world.tell(&format!("{} closed {epoch}", self.name));
        }
        Ok(())
    }

    /// Recovers the stream and reads all of it; returns the number of the next unit.
    async fn take_over(&self, lease: &VolumeLease) -> Result<u64, Error> {
        let (stream, epoch) = (lease.volume.streams.hot, lease.volume.epoch);
        let chunks = loop {
            match self.client.recover(stream, epoch, lease.replication).await {
                Ok(chunks) => break chunks,
                Err(Error::Unavailable(why)) => self.world.tell(&format!("{epoch} can't recover yet: {why}")),
                Err(error) => return Err(error),
            }
        };
        let recovered_at = self.world.time.now();
        let mut units: Vec<Unit> = Vec::new();
        for chunk in &chunks {
            let ChunkState::Sealed { length } = chunk.state else {
                self.fail(format!("recovery left {chunk:?} open"));
                continue;
            };
            let mut scan = self.client.scan(chunk.shape.chunk, 0, length, true, QosClass::Foreground);
            while let Some(found) = scan.next().await? {
                let Some(unit) = Unit::from_trailer(&found.trailer) else {
                    self.fail(format!("a foreign unit at {} of {}", found.footer.start, chunk.shape.chunk));
                    continue;
                };
                let data = found.data.unwrap_or_default();
                self.check(self.world.checks.borrow().committed.verify(unit, &data));
                if units.last().is_none_or(|last| last.number < unit.number) {
                    units.push(unit);
                }
            }
        }
        self.world.tell(&format!("{epoch} recovered {} units in {} chunks", units.len(), chunks.len()));
        let result = self.world.checks.borrow_mut().committed.recovered(epoch, &units);
        self.check(result);
        self.world.checks.borrow_mut().one_writer.recovered(epoch, recovered_at);
        Ok(units.last().map_or(1, |unit| unit.number + 1 + self.chance.below(3)))
    }

    async fn append_all(self: &Rc<Self>, writer: &Writer, epoch: api_types::Epoch, first: u64) -> Result<(), Error> {
        for number in first..first + self.task.units {
            while self.under_way.get() >= UNDER_WAY_MAX {
                self.world.time.sleep(Duration::from_millis(1)).await;
            }
            if let Some(error) = writer.stopped() {
                return Err(error);
            }
            self.append(writer, Unit { epoch, number });
            if self.chance.percent(60) {
                self.world.time.sleep(self.chance.between(Duration::ZERO, Duration::from_millis(30))).await;
            }
            if self.chance.percent(20) {
                self.read_one().await;
            }
        }
        while self.under_way.get() > 0 {
            self.world.time.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn append(self: &Rc<Self>, writer: &Writer, unit: Unit) {
        let length = match self.chance.below(10) {
            0 => self.chance.below(200_000),
            1 => 0,
            _ => 4096 * (1 + self.chance.below(8)),
        } as usize;
        self.world.checks.borrow_mut().committed.appended(unit, length);
        let appended_at = self.world.time.now();
        let bytes = Bytes::from(bytes_of(unit, length));
        let parts = vec![bytes.slice(..length / 2), bytes.slice(length / 2..)];
        let answer = writer.append(parts, Bytes::from(unit.trailer()));
        self.under_way.set(self.under_way.get() + 1);
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let answer = answer.await;
            this.under_way.set(this.under_way.get() - 1);
            match answer {
                Ok(position) => this.acknowledged(unit, length, position, appended_at),
                Err(error) => this.world.tell(&format!("{unit:?} fails: {error}")),
            }
        });
    }

    fn acknowledged(&self, unit: Unit, length: usize, position: Position, appended_at: Duration) {
        self.world.tell(&format!("{} {} at {} {}", unit.epoch, unit.number, position.chunk, position.offset));
        let result = self.world.checks.borrow_mut().committed.acknowledge(unit);
        self.check(result);
        let result = self.world.checks.borrow().one_writer.acknowledge(unit.epoch, appended_at);
        self.check(result);
        self.known.borrow_mut().push((unit, length, position));
    }

    /// Reads a unit that was acknowledged and looks at its bytes.
    async fn read_one(&self) {
        let (unit, length, position) = {
            let known = self.known.borrow();
            if known.is_empty() {
                return;
            }
            known[self.chance.below(known.len() as u64) as usize]
        };
        if length == 0 {
            return;
        }
        let expected = bytes_of(unit, length);
        let verify = |bytes: &[u8]| bytes == expected;
        let read = self.client.read(position.chunk, position.offset, length as u32, QosClass::Foreground, &verify).await;
        match read {
            Ok(_) => {}
            // A newer owner may have deleted nothing here, but a writer that is cut off can't reach anyone.
            Err(Error::Unavailable(why)) => self.world.tell(&format!("{unit:?} can't be read: {why}")),
            Err(error) => self.fail(format!("{unit:?} was acknowledged and can't be read: {error}")),
        }
    }

    fn check(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(what);
        }
    }

    fn fail(&self, what: String) {
        self.world.tell(&format!("BROKEN {what}"));
        self.world.checks.borrow_mut().fail(what);
    }
}
