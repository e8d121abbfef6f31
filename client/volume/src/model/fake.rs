//! Streams and masters in memory, for tests: units are committed late and in order, chunks are left in the middle,
//! appends fail and are found again, space runs out, answers are lost.

use crate::streams::{Append, Streams, Units};
use api_types::limits::CHUNK_BYTES_MIN;
use api_types::master::{
    BadCopy, ChunkRecord, ChunkState, DeviceAddress, Error as MasterError, Grant, MasterClient, Replication, RootPointer,
    SealChunk, StreamRecord, VolumeLease, VolumeRecord, VolumeStreams,
};
use api_types::unit::{Alignment, ChunkShape, Footer, unit_bytes};
use api_types::{ChunkId, Clock, Epoch, LifetimeClass, NodeName, OwnerId, QosClass, Rng, StreamId, VolumeId};
use bytes::Bytes;
use client_stream::{Error, Position, ScannedUnit, WriterOptions};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

pub(crate) const VOLUME: VolumeId = VolumeId(100);
const NAMES: VolumeStreams = VolumeStreams { hot: StreamId(1), cold: StreamId(2), index: StreamId(3) };

/// Chance from a seed.
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

impl Rng for Dice {
    fn next_u64(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// The paused time of a test's runtime.
pub(crate) struct TestClock(tokio::time::Instant);

impl TestClock {
    pub(crate) fn new() -> Self {
        TestClock(tokio::time::Instant::now())
    }
}

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

/// How often things go wrong: once in so many times; zero is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) append_fails: u64,
    pub(crate) chunk_left: u64,
    pub(crate) answer_lost: u64,
}

struct Unit {
    footer: Footer,
    trailer: Bytes,
}

struct Chunk {
    record: ChunkRecord,
    units: Vec<Unit>,
    bytes: Vec<u8>,
    committed: u32,
}

impl Chunk {
    fn sealed(&self) -> bool {
        matches!(self.record.state, ChunkState::Sealed { .. })
    }

    fn cut(&mut self, length: u32) {
        self.units.retain(|unit| unit.footer.end() <= length);
        self.bytes.truncate(length as usize);
        self.committed = length;
        self.record.state = ChunkState::Sealed { length };
    }
}

/// What survives a crash of the volume.
pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) faults: Cell<Faults>,
    /// Chunks that there may be; the last ones are for reclaim and checkpoints only.
    pub(crate) capacity: Cell<usize>,
    pub(crate) size_bytes: Cell<u64>,
    chunks: RefCell<BTreeMap<ChunkId, Chunk>>,
    epoch: Cell<u64>,
    root: Cell<Option<RootPointer>>,
    next_chunk: Cell<u64>,
    next_index: RefCell<BTreeMap<StreamId, u64>>,
    pub(crate) closed: Cell<bool>,
    /// Nothing takes any time.
    pub(crate) instant: Cell<bool>,
}

/// Chunks that only checkpoints can have; twice as many aren't for user writes.
const RESERVE: usize = 2;

impl World {
    pub(crate) fn new(seed: u64, size_bytes: u64, capacity: usize) -> Rc<Self> {
        Rc::new(World {
            dice: Dice::new(seed),
            faults: Cell::default(),
            capacity: Cell::new(capacity),
            size_bytes: Cell::new(size_bytes),
            chunks: RefCell::default(),
            epoch: Cell::new(0),
            root: Cell::new(None),
            next_chunk: Cell::new(1000),
            next_index: RefCell::default(),
            closed: Cell::new(false),
            instant: Cell::new(false),
        })
    }

    /// Takes the next epoch.
    pub(crate) fn lease(&self) -> VolumeLease {
        self.epoch.set(self.epoch.get() + 1);
        let volume = VolumeRecord {
            volume: VOLUME,
            name: "v".to_owned(),
            size_bytes: self.size_bytes.get(),
            pool: "p".to_owned(),
            epoch: Epoch(self.epoch.get()),
            attached: None,
            published: None,
            streams: NAMES,
            root: self.root.get(),
            qos: api_types::master::QosLimits::default(),
            parameters: BTreeMap::new(),
        };
        VolumeLease { volume, replication: Replication::default(), chunk_bytes: CHUNK_BYTES_MIN }
    }

    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.borrow().len()
    }

    /// Checksum of every byte of every chunk.
    pub(crate) fn digest(&self) -> u32 {
        let chunks = self.chunks.borrow();
        chunks.values().fold(0, |digest, chunk| api_types::checksum::crc32c_append(digest, &chunk.bytes))
    }

    /// Changes one byte of every block of user data that starts with this one.
    pub(crate) fn rot(&self, byte: u8) {
        for chunk in self.chunks.borrow_mut().values_mut().filter(|chunk| chunk.record.stream == NAMES.hot) {
            let starts: Vec<usize> = chunk.units.iter().map(|unit| unit.footer.start as usize).collect();
            for start in starts.into_iter().filter(|start| chunk.bytes[*start] == byte).collect::<Vec<_>>() {
                chunk.bytes[start + 100] ^= 1;
            }
        }
    }

    /// A chunk of user data is gone.
    pub(crate) fn lose_a_chunk(&self) {
        self.chunks.borrow_mut().retain(|_, chunk| chunk.record.stream != NAMES.hot);
    }

    fn grant(&self, stream: StreamId, options: &WriterOptions) -> Result<ChunkId, Error> {
        let reserve = match options.class {
            LifetimeClass::Short => 2 * RESERVE,
            LifetimeClass::Medium => 0,
            LifetimeClass::Long | LifetimeClass::Extreme => RESERVE,
        };
        if self.chunk_count() + reserve >= self.capacity.get() {
            return Err(Error::NoSpace("pool".to_owned()));
        }
        let chunk = ChunkId(self.next_chunk.get());
        self.next_chunk.set(chunk.0 + 1);
        let mut next = self.next_index.borrow_mut();
        let index = next.entry(stream).or_insert(0);
        let shape = ChunkShape {
            chunk,
            owner: OwnerId::from(VOLUME),
            epoch: options.epoch,
            capacity: options.chunk_bytes,
            alignment: Alignment::B512,
            class: options.class,
        };
        let record = ChunkRecord { shape, stream, index: *index, state: ChunkState::Granted, copies: Vec::new() };
        *index += 1;
        self.chunks.borrow_mut().insert(chunk, Chunk { record, units: Vec::new(), bytes: Vec::new(), committed: 0 });
        Ok(chunk)
    }

    async fn pause(&self) {
        if self.instant.get() {
            return;
        }
        match self.dice.below(4) {
            0 => tokio::task::yield_now().await,
            1 => tokio::time::sleep(Duration::from_micros(self.dice.below(3000))).await,
            _ => {}
        }
    }
}

impl Streams for Rc<World> {
    fn recover(&self, stream: StreamId, epoch: Epoch, _: Replication) -> LocalBoxFuture<'_, Result<Vec<ChunkRecord>, Error>> {
        async move {
            self.pause().await;
            if epoch.0 < self.epoch.get() {
                return Err(Error::Fenced);
            }
            let mut chunks = self.chunks.borrow_mut();
            for chunk in chunks.values_mut().filter(|chunk| chunk.record.stream == stream && !chunk.sealed()) {
                let ends: Vec<u32> =
                    chunk.units.iter().map(|unit| unit.footer.end()).filter(|end| *end > chunk.committed).collect();
                let kept = self.dice.below(ends.len() as u64 + 1) as usize;
                let length = if kept == 0 { chunk.committed } else { ends[kept - 1] };
                chunk.cut(length);
            }
            chunks.retain(|_, chunk| chunk.record.stream != stream || chunk.record.state != ChunkState::Sealed { length: 0 });
            let mut records: Vec<ChunkRecord> =
                chunks.values().filter(|chunk| chunk.record.stream == stream).map(|chunk| chunk.record.clone()).collect();
            records.sort_by_key(|record| record.index);
            Ok(records)
        }
        .boxed_local()
    }

    fn writer(&self, stream: StreamId, options: WriterOptions) -> Box<dyn Append> {
        let tail = Tail { world: self.clone(), stream, options, state: RefCell::default() };
        Box::new(Handle(Rc::new(tail)))
    }

    fn read<'a>(
        &'a self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        _: QosClass,
        verify: &'a dyn Fn(&[u8]) -> bool,
    ) -> LocalBoxFuture<'a, Result<Bytes, Error>> {
        async move {
            self.pause().await;
            let chunks = self.chunks.borrow();
            let found = chunks.get(&chunk).ok_or_else(|| Error::NotFound(chunk.to_string()))?;
            let bytes = found.bytes.get(offset as usize..(offset + length) as usize).expect("a read stays within its chunk");
            if verify(bytes) { Ok(Bytes::copy_from_slice(bytes)) } else { Err(Error::Corrupt(format!("{chunk} at {offset}"))) }
        }
        .boxed_local()
    }

    fn scan(&self, chunk: ChunkId, from: u32, to: u32, with_data: bool, _: QosClass) -> Box<dyn Units> {
        Box::new(Walk { world: self.clone(), chunk, from, to, with_data })
    }

    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> LocalBoxFuture<'_, Result<(), Error>> {
        async move {
            self.pause().await;
            if epoch.0 != self.epoch.get() {
                return Err(Error::Fenced);
            }
            let lost = self.dice.one_in(self.faults.get().answer_lost);
            if lost && self.dice.one_in(2) {
                return Err(Error::Unavailable("not done".to_owned()));
            }
            for chunk in chunks {
                let gone = self.chunks.borrow_mut().remove(&chunk);
                assert!(gone.is_none_or(|gone| gone.record.stream == stream && gone.sealed()), "only sealed chunks are deleted");
            }
            if lost { Err(Error::Unavailable("done".to_owned())) } else { Ok(()) }
        }
        .boxed_local()
    }
}

struct Walk {
    world: Rc<World>,
    chunk: ChunkId,
    from: u32,
    to: u32,
    with_data: bool,
}

impl Units for Walk {
    fn next(&mut self) -> LocalBoxFuture<'_, Result<Option<ScannedUnit>, Error>> {
        async move {
            self.world.pause().await;
            if self.from == self.to {
                return Ok(None);
            }
            let chunks = self.world.chunks.borrow();
            let chunk = chunks.get(&self.chunk).ok_or_else(|| Error::NotFound(self.chunk.to_string()))?;
            let unit = chunk.units.iter().find(|unit| unit.footer.start == self.from).expect("a scan starts at a unit");
            self.from = unit.footer.end();
            assert!(self.from <= self.to, "a scan ends at the end of a unit");
            let range = unit.footer.start as usize..(unit.footer.start + unit.footer.data_bytes) as usize;
            let data = self.with_data.then(|| Bytes::copy_from_slice(&chunk.bytes[range]));
            Ok(Some(ScannedUnit { footer: unit.footer, trailer: unit.trailer.clone(), data }))
        }
        .boxed_local()
    }
}

type Answer = oneshot::Sender<Result<Position, Error>>;

struct Waiting {
    data: Vec<Bytes>,
    trailer: Bytes,
    answer: Answer,
}

#[derive(Default)]
struct TailState {
    queue: VecDeque<Waiting>,
    running: bool,
    open: Option<ChunkId>,
    /// Left, not yet sealed at the masters.
    closing: Vec<ChunkId>,
    sealed: Vec<ChunkRecord>,
    gone: bool,
}

struct Tail {
    world: Rc<World>,
    stream: StreamId,
    options: WriterOptions,
    state: RefCell<TailState>,
}

struct Handle(Rc<Tail>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.state.borrow_mut().gone = true;
    }
}

impl Append for Handle {
    fn append(&self, data: Vec<Bytes>, trailer: Bytes) -> LocalBoxFuture<'static, Result<Position, Error>> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.0.state.borrow_mut();
        state.queue.push_back(Waiting { data, trailer, answer });
        if !std::mem::replace(&mut state.running, true) {
            tokio::task::spawn_local(self.0.clone().pump());
        }
        async move { receiver.await.unwrap_or(Err(Error::Closed)) }.boxed_local()
    }

    fn take_sealed(&self) -> Vec<ChunkRecord> {
        std::mem::take(&mut self.0.state.borrow_mut().sealed)
    }

    fn close(self: Box<Self>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let tail = self.0.clone();
        async move {
            while tail.state.borrow().running {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            let open = tail.state.borrow_mut().open.take();
            if let Some(open) = open {
                tail.state.borrow_mut().closing.push(open);
            }
            tail.seal_closing();
            drop(self);
            Ok(())
        }
        .boxed_local()
    }
}

impl Tail {
    async fn pump(self: Rc<Self>) {
        loop {
            self.world.pause().await;
            if self.state.borrow().gone || self.state.borrow().queue.is_empty() {
                self.state.borrow_mut().running = false;
                return;
            }
            if self.options.epoch.0 < self.world.epoch.get() {
                self.fail_all(&Error::Fenced);
            } else if self.world.dice.one_in(self.world.faults.get().append_fails) {
                self.fail_somehow();
            } else {
                self.commit_some().await;
            }
            if self.world.dice.one_in(2) {
                self.seal_closing();
            }
        }
    }

    fn fail_all(&self, error: &Error) {
        let queue = std::mem::take(&mut self.state.borrow_mut().queue);
        for waiting in queue {
            let _ = waiting.answer.send(Err(error.clone()));
        }
    }

    /// Everything that waits fails; some of it stands in the chunk nevertheless.
    fn fail_somehow(&self) {
        let queue = std::mem::take(&mut self.state.borrow_mut().queue);
        let ghosts = self.world.dice.below(queue.len() as u64 + 1) as usize;
        for (number, waiting) in queue.into_iter().enumerate() {
            if number < ghosts {
                self.place(&waiting);
            }
            let _ = waiting.answer.send(Err(Error::Unavailable("nobody answers".to_owned())));
        }
    }

    /// Puts a unit at the end of the open chunk.
    fn place(&self, waiting: &Waiting) -> Option<Position> {
        let open = self.state.borrow().open?;
        let mut chunks = self.world.chunks.borrow_mut();
        let chunk = chunks.get_mut(&open).expect("an open chunk exists");
        let data: Vec<u8> = waiting.data.concat();
        let (data_bytes, trailer_bytes) = (data.len() as u32, waiting.trailer.len() as u32);
        let start = chunk.bytes.len() as u32;
        let end = start + unit_bytes(data_bytes, trailer_bytes, Alignment::B512);
        if end > chunk.record.shape.capacity {
            return None;
        }
        chunk.bytes.extend_from_slice(&data);
        chunk.bytes.resize(end as usize, 0);
        let footer = Footer { shape: chunk.record.shape, start, data_bytes, trailer_bytes, data_crc: 0, trailer_crc: 0 };
        chunk.units.push(Unit { footer, trailer: waiting.trailer.clone() });
        Some(Position { chunk: open, index: chunk.record.index, offset: start, end })
    }

    fn leave(&self) {
        let mut state = self.state.borrow_mut();
        if let Some(open) = state.open.take() {
            state.closing.push(open);
        }
    }

    fn seal_closing(&self) {
        let mut state = self.state.borrow_mut();
        for left in std::mem::take(&mut state.closing) {
            let mut chunks = self.world.chunks.borrow_mut();
            // Whoever recovered the stream in the meantime has sealed it already.
            let Some(chunk) = chunks.get_mut(&left).filter(|chunk| !chunk.sealed()) else { continue };
            let committed = chunk.committed;
            chunk.cut(committed);
            state.sealed.push(chunk.record.clone());
        }
    }

    /// Places some units, then commits them one by one; may leave the chunk in between.
    async fn commit_some(&self) {
        let mut placed: VecDeque<(Waiting, Position)> = VecDeque::new();
        let count = 1 + self.world.dice.below(self.state.borrow().queue.len() as u64);
        for _ in 0..count {
            let Some(waiting) = self.state.borrow_mut().queue.pop_front() else { break };
            match self.place(&waiting) {
                Some(position) => placed.push_back((waiting, position)),
                None => {
                    self.state.borrow_mut().queue.push_front(waiting);
                    break;
                }
            }
        }
        if placed.is_empty() {
            self.leave();
            match self.world.grant(self.stream, &self.options) {
                Ok(chunk) => self.state.borrow_mut().open = Some(chunk),
                Err(error) => self.fail_all(&error),
            }
            return;
        }
        while let Some((waiting, position)) = placed.pop_front() {
            self.world.pause().await;
            if self.options.epoch.0 < self.world.epoch.get() {
                let _ = waiting.answer.send(Err(Error::Fenced));
                continue;
            }
            if self.world.dice.one_in(self.world.faults.get().chunk_left) {
                // What isn't committed goes to another chunk; a copy of it stays behind until the seal.
                let mut state = self.state.borrow_mut();
                for (waiting, _) in placed.drain(..).rev() {
                    state.queue.push_front(waiting);
                }
                state.queue.push_front(waiting);
                drop(state);
                return self.leave();
            }
            if let Some(chunk) = self.world.chunks.borrow_mut().get_mut(&position.chunk) {
                chunk.committed = position.end;
            }
            let _ = waiting.answer.send(Ok(position));
        }
    }
}

fn refused<T: 'static>() -> LocalBoxFuture<'static, Result<T, MasterError>> {
    async { Err(MasterError::Invalid("a volume doesn't ask this".to_owned())) }.boxed_local()
}

/// The masters' side of a [`World`].
pub(crate) struct Masters(pub(crate) Rc<World>);

impl MasterClient for Masters {
    fn grant(&self, _: Grant) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, MasterError>> {
        refused()
    }
    fn seal(&self, _: SealChunk) -> LocalBoxFuture<'static, Result<u32, MasterError>> {
        refused()
    }
    fn stream(&self, _: StreamId) -> LocalBoxFuture<'static, Result<StreamRecord, MasterError>> {
        refused()
    }
    fn locate(&self, _: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, MasterError>> {
        refused()
    }
    fn delete_chunks(&self, _: StreamId, _: Epoch, _: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        refused()
    }
    fn report(&self, _: BadCopy) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        refused()
    }
    fn devices(&self) -> LocalBoxFuture<'static, Result<Vec<DeviceAddress>, MasterError>> {
        refused()
    }
    fn open_volume(&self, _: VolumeId, _: NodeName) -> LocalBoxFuture<'static, Result<VolumeLease, MasterError>> {
        refused()
    }

    fn close_volume(&self, _: VolumeId, epoch: Epoch) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        let world = self.0.clone();
        async move {
            if epoch.0 < world.epoch.get() {
                return Err(MasterError::Fenced { epoch: Epoch(world.epoch.get()) });
            }
            world.closed.set(true);
            Ok(())
        }
        .boxed_local()
    }

    fn set_root(&self, _: VolumeId, epoch: Epoch, root: RootPointer) -> LocalBoxFuture<'static, Result<(), MasterError>> {
        let world = self.0.clone();
        async move {
            world.pause().await;
            if epoch.0 < world.epoch.get() {
                return Err(MasterError::Fenced { epoch: Epoch(world.epoch.get()) });
            }
            let lost = world.dice.one_in(world.faults.get().answer_lost);
            if lost && world.dice.one_in(2) {
                return Err(MasterError::Unavailable("not done".to_owned()));
            }
            world.root.set(Some(root));
            if lost { Err(MasterError::Unavailable("done".to_owned())) } else { Ok(()) }
        }
        .boxed_local()
    }
}
