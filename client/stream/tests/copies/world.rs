//! Six stores and the masters in memory, on virtual time, each store as well or as ill as a test wants it.

use api_types::checksum::FooterSeed;
use api_types::chunk::{Append, ChunkTransport, Error as StoreError, Request, Response, Sealed, StoreStats};
use api_types::master::{
    BadCopy, ChunkRecord, ChunkState, Copy, DeviceAddress, Error as MasterError, Grant, MasterClient, Replication, Role,
    RootPointer, SealChunk, StreamRecord, VolumeLease,
};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, Clock, DeviceId, Epoch, LifetimeClass, NodeName, OwnerId, QosClass, Rng, StreamId, VolumeId};
use client_stream::{Client, Config, Deps, Writer, WriterOptions};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub(crate) const STREAM: StreamId = StreamId(5);
pub(crate) const REPLICATION: Replication = Replication { max_copy: 3, min_copy: 2 };
const OWNER: OwnerId = OwnerId(9);
/// How long a store that is well takes.
const SERVICE: Duration = Duration::from_micros(200);

/// How a store behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// Takes requests and never answers.
    Silent,
    /// Isn't there.
    Away,
    /// Answers reads with bytes that have changed.
    Rotten,
}

#[derive(Default, Clone)]
struct Stored {
    bytes: Vec<u8>,
    sealed: bool,
}

#[derive(Default)]
pub(crate) struct World {
    health: RefCell<BTreeMap<DeviceId, Health>>,
    stored: RefCell<BTreeMap<(DeviceId, ChunkId), Stored>>,
    floors: RefCell<BTreeMap<DeviceId, Epoch>>,
    /// What the masters know.
    pub(crate) chunks: RefCell<BTreeMap<ChunkId, ChunkRecord>>,
    epoch: Cell<Epoch>,
    granted: Cell<u64>,
    pub(crate) reports: RefCell<Vec<DeviceId>>,
    /// Reads that were sent to any store.
    pub(crate) reads: Cell<u64>,
}

/// Virtual time.
struct TestClock(tokio::time::Instant);

impl Clock for TestClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }
}

/// A count, stirred: enough to choose among equals.
struct Lots(Cell<u64>);

impl Rng for Lots {
    fn next_u64(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        let mixed = self.0.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

/// The way into the world.
struct Wire(Rc<World>);

/// Runs a test on virtual time.
pub(crate) fn run(test: impl AsyncFnOnce(Rc<World>)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime starts");
    runtime.block_on(tokio::task::LocalSet::new().run_until(test(Rc::default())));
}

impl World {
    pub(crate) fn client(self: &Rc<Self>) -> Client {
        let deps = Deps {
            transport: Rc::new(Wire(self.clone())),
            master: Rc::new(Wire(self.clone())),
            clock: Rc::new(TestClock(tokio::time::Instant::now())),
            rng: Rc::new(Lots(Cell::new(1))),
            seed: FooterSeed(3),
        };
        Client::new(deps, Config::default())
    }

    /// The writer of the next epoch; without the recovery that has to come first.
    pub(crate) fn writer(&self, client: &Client) -> Writer {
        let epoch = self.next_epoch();
        let options = WriterOptions {
            owner: OWNER,
            epoch,
            replication: REPLICATION,
            chunk_bytes: 1 << 20,
            class: LifetimeClass::Short,
            qos: QosClass::Foreground,
        };
        client.writer(STREAM, options)
    }

    pub(crate) fn next_epoch(&self) -> Epoch {
        self.epoch.set(self.epoch.get().next());
        self.epoch.get()
    }

    pub(crate) fn set(&self, device: u64, health: Health) {
        self.health.borrow_mut().insert(DeviceId(device), health);
    }

    /// Moves every copy to the device with a number three above, as a repair would in time.
    pub(crate) fn move_all(&self) {
        let up = |device: DeviceId| DeviceId(device.0 + 3);
        let stored = std::mem::take(&mut *self.stored.borrow_mut());
        self.stored.borrow_mut().extend(stored.into_iter().map(|((device, chunk), stored)| ((up(device), chunk), stored)));
        for copy in self.chunks.borrow_mut().values_mut().flat_map(|chunk| &mut chunk.copies) {
            copy.device = up(copy.device);
        }
    }

    fn fence(&self, device: DeviceId, epoch: Epoch) -> Result<(), StoreError> {
        let floor = self.floors.borrow().get(&device).copied().unwrap_or_default();
        if epoch < floor { Err(StoreError::Fenced { floor }) } else { Ok(()) }
    }

    fn serve(&self, device: DeviceId, request: Request) -> Result<Response, StoreError> {
        match request {
            Request::Append(append) => self.append(device, &append).map(Response::Append),
            Request::Read(read) => {
                self.reads.set(self.reads.get() + 1);
                let stored = self.stored.borrow();
                let bytes = &stored.get(&(device, read.chunk)).ok_or(StoreError::Unknown)?.bytes;
                let range = read.offset as usize..(read.offset + read.length) as usize;
                let mut bytes = bytes.get(range).ok_or_else(|| StoreError::Invalid("beyond the end".to_owned()))?.to_vec();
                if self.health(device) == Health::Rotten {
                    bytes[0] ^= 1;
                }
                Ok(Response::Read(bytes.into()))
            }
            Request::Seal(seal) => {
                self.fence(device, seal.epoch)?;
                self.floors.borrow_mut().insert(device, seal.epoch);
                let mut stored = self.stored.borrow_mut();
                let Some(stored) = stored.get_mut(&(device, seal.chunk)) else { return Ok(Response::Seal(Sealed::Absent)) };
                stored.sealed = true;
                stored.bytes.truncate(seal.length.map_or(usize::MAX, |length| length as usize));
                Ok(Response::Seal(Sealed::At(stored.bytes.len() as u32)))
            }
            Request::Probe => Ok(Response::Probe(StoreStats::default())),
            _ => Err(StoreError::Invalid("not part of this world".to_owned())),
        }
    }

    fn append(&self, device: DeviceId, append: &Append) -> Result<u32, StoreError> {
        self.fence(device, append.epoch)?;
        let mut stored = self.stored.borrow_mut();
        if append.create {
            stored.entry((device, append.chunk)).or_default();
        }
        let stored = stored.get_mut(&(device, append.chunk)).ok_or(StoreError::Unknown)?;
        let length = stored.bytes.len() as u32;
        if stored.sealed {
            return Err(StoreError::Sealed { length });
        }
        if append.offset != length {
            return Err(StoreError::WrongOffset { expected: length });
        }
        stored.bytes.extend_from_slice(&append.unit);
        Ok(stored.bytes.len() as u32)
    }

    fn health(&self, device: DeviceId) -> Health {
        self.health.borrow().get(&device).copied().unwrap_or(Health::Well)
    }

    fn grant(&self, grant: &Grant) -> Result<Vec<ChunkRecord>, MasterError> {
        self.check(grant.epoch)?;
        Ok((0..grant.count).map(|_| self.chunk(grant)).collect())
    }

    fn chunk(&self, grant: &Grant) -> ChunkRecord {
        let index = self.granted.get();
        self.granted.set(index + 1);
        let shape = ChunkShape {
            chunk: ChunkId(100 + index),
            owner: OWNER,
            epoch: grant.epoch,
            capacity: grant.capacity,
            alignment: Alignment::B512,
            class: grant.class,
        };
        let copies = (1..=3).map(|device| Copy { device: DeviceId(device), role: Role::Replica, whole: false }).collect();
        let record = ChunkRecord { shape, stream: STREAM, index, state: ChunkState::Granted, copies };
        self.chunks.borrow_mut().insert(shape.chunk, record.clone());
        record
    }

    fn seal(&self, seal: &SealChunk) -> Result<u32, MasterError> {
        self.check(seal.epoch)?;
        let mut chunks = self.chunks.borrow_mut();
        let record = chunks.get_mut(&seal.chunk).ok_or_else(|| MasterError::NotFound { what: seal.chunk.to_string() })?;
        if let ChunkState::Sealed { length } = record.state {
            return Ok(length);
        }
        record.state = ChunkState::Sealed { length: seal.length };
        for copy in &mut record.copies {
            copy.whole = seal.whole.contains(&copy.device);
        }
        Ok(seal.length)
    }

    fn check(&self, epoch: Epoch) -> Result<(), MasterError> {
        let newest = self.epoch.get();
        if epoch < newest { Err(MasterError::Fenced { epoch: newest }) } else { Ok(()) }
    }
}

fn later<T: 'static>(answer: T) -> LocalBoxFuture<'static, T> {
    async move {
        tokio::time::sleep(SERVICE).await;
        answer
    }
    .boxed_local()
}

fn not_here<T: 'static>() -> LocalBoxFuture<'static, Result<T, MasterError>> {
    ready(Err(MasterError::Invalid("not part of this world".to_owned()))).boxed_local()
}

impl ChunkTransport for Wire {
    fn call(&self, device: DeviceId, request: Request, limit: Duration) -> LocalBoxFuture<'static, Result<Response, StoreError>> {
        match self.0.health(device) {
            Health::Well | Health::Rotten => later(self.0.serve(device, request)),
            Health::Away => later(Err(StoreError::Unreachable("no such host".to_owned()))),
            Health::Silent => {
                if matches!(request, Request::Read(_)) {
                    self.0.reads.set(self.0.reads.get() + 1);
                }
                async move {
                    tokio::time::sleep(limit).await;
                    Err(StoreError::Deadline)
                }
                .boxed_local()
            }
        }
    }
}

impl MasterClient for Wire {
    fn grant(&self, grant: Grant) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, MasterError>> {
        later(self.0.grant(&grant))
    }

    fn seal(&self, seal: SealChunk) -> LocalBoxFuture<'static, Result<u32, MasterError>> {
        later(self.0.seal(&seal))
    }

    fn stream(&self, stream: StreamId) -> LocalBoxFuture<'static, Result<StreamRecord, MasterError>> {
        later(Ok(StreamRecord { stream, chunks: self.0.chunks.borrow().values().cloned().collect() }))
    }

    fn locate(&self, chunks: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, MasterError>> {
        let known = self.0.chunks.borrow();
        later(Ok(chunks.iter().filter_map(|chunk| known.get(chunk).cloned()).collect()))
    }

    fn delete_chunks(
        &self,
        _stream: StreamId,
        _epoch: Epoch,
        chunks: Vec<ChunkId>,
    ) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        self.0.chunks.borrow_mut().retain(|chunk, _| !chunks.contains(chunk));
        self.0.stored.borrow_mut().retain(|(_, chunk), _| !chunks.contains(chunk));
        later(Ok(()))
    }

    fn report(&self, bad: BadCopy) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        self.0.reports.borrow_mut().push(bad.device);
        later(Ok(()))
    }

    fn devices(&self) -> LocalBoxFuture<'static, Result<Vec<DeviceAddress>, MasterError>> {
        later(Ok(Vec::new()))
    }

    fn open_volume(&self, _volume: VolumeId, _node: NodeName) -> LocalBoxFuture<'static, Result<VolumeLease, MasterError>> {
        not_here()
    }

    fn close_volume(&self, _volume: VolumeId, _epoch: Epoch) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        not_here()
    }

    fn set_root(&self, _volume: VolumeId, _epoch: Epoch, _root: RootPointer) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        not_here()
    }
}
