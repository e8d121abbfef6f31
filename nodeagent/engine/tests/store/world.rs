//! A device, a clock and the words to talk to a store.

use api_types::checksum::FooterSeed;
use api_types::chunk::{Append, ChunkStore, Error, Read, Request, Response, Seal, Sealed};
use api_types::unit::{Alignment, ChunkShape, finish_unit, unit_bytes};
use api_types::{ChunkId, Clock, ClusterId, DeviceId, Epoch, LifetimeClass, OwnerId, QosClass};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nodeagent_device::{Device, Memory};
use nodeagent_engine::{Engine, FormatOptions, OpenError, OpenOptions, format};
use nodeagent_reactor::RealRng;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const CLUSTER: ClusterId = ClusterId(7);
pub(crate) const MIB: u32 = 1 << 20;

/// Tokio's paused clock: sleeping costs nothing.
pub(crate) struct PausedClock(Instant);

impl PausedClock {
    pub(crate) fn start() -> Rc<dyn Clock> {
        Rc::new(PausedClock(Instant::now()))
    }
}

impl Clock for PausedClock {
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

/// Runs a test in virtual time.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions::new(CLUSTER)
}

pub(crate) async fn make(device: &Rc<dyn Device>) {
    let options = FormatOptions { device_id: Some(DeviceId(0xd)), ..FormatOptions::new(CLUSTER) };
    format(Rc::clone(device), options, &RealRng::seeded(1)).await.unwrap();
}

pub(crate) async fn open(device: &Rc<dyn Device>) -> Engine {
    try_open(device).await.unwrap()
}

pub(crate) async fn try_open(device: &Rc<dyn Device>) -> Result<Engine, OpenError> {
    Engine::open(Rc::clone(device), PausedClock::start(), options()).await
}

/// A formatted device in memory, and the store on it.
pub(crate) async fn fresh(mib: u64) -> (Memory, Rc<dyn Device>, Engine) {
    let memory = Memory::new(mib << 20, 4096);
    let device: Rc<dyn Device> = Rc::new(memory.clone());
    make(&device).await;
    let engine = open(&device).await;
    (memory, device, engine)
}

pub(crate) fn shape(chunk: u64) -> ChunkShape {
    ChunkShape {
        chunk: ChunkId(chunk),
        owner: OwnerId(1),
        epoch: Epoch(1),
        capacity: 16 * MIB,
        alignment: Alignment::B4096,
        class: LifetimeClass::Short,
    }
}

/// A unit of `data_bytes`, filled with a pattern of its place and of `fill`.
pub(crate) fn unit(shape: ChunkShape, start: u32, data_bytes: u32, fill: u8) -> Bytes {
    let trailer = [fill; 16];
    let mut out = vec![0; unit_bytes(data_bytes, 16, shape.alignment) as usize];
    for (index, block) in out[..data_bytes as usize].chunks_mut(512).enumerate() {
        // Blocks of zeros are common, and the hardest to tell from one another.
        if fill.is_multiple_of(4) {
            continue;
        }
        block.fill(fill);
        if block.len() >= 8 {
            let value = (u64::from(start) + index as u64) ^ (shape.chunk.0 << 32);
            block[..8].copy_from_slice(&value.to_le_bytes());
        }
    }
    finish_unit(&mut out, shape, start, data_bytes, &trailer, FooterSeed::of(CLUSTER));
    Bytes::from(out)
}

pub(crate) fn append_request(shape: ChunkShape, offset: u32, unit: Bytes) -> Request {
    let create = offset == 0;
    Request::Append(Append { chunk: shape.chunk, epoch: shape.epoch, offset, unit, create, qos: QosClass::Foreground })
}

pub(crate) async fn append(engine: &Engine, shape: ChunkShape, offset: u32, unit: &Bytes) -> Result<u32, Error> {
    match engine.serve(append_request(shape, offset, unit.clone())).await? {
        Response::Append(length) => Ok(length),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn read(engine: &Engine, chunk: u64, offset: u32, length: u32) -> Result<Bytes, Error> {
    let read = Read { chunk: ChunkId(chunk), offset, length, qos: QosClass::Foreground };
    match engine.serve(Request::Read(read)).await? {
        Response::Read(bytes) => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn seal(engine: &Engine, chunk: u64, epoch: u64, length: Option<u32>) -> Result<Sealed, Error> {
    let seal = Seal { chunk: ChunkId(chunk), owner: OwnerId(1), epoch: Epoch(epoch), length };
    match engine.serve(Request::Seal(seal)).await? {
        Response::Seal(sealed) => Ok(sealed),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn delete(engine: &Engine, chunk: u64) -> Result<(), Error> {
    engine.serve(Request::Delete(ChunkId(chunk))).await.map(|response| assert_eq!(response, Response::Delete))
}

pub(crate) fn info(engine: &Engine, chunk: u64) -> Option<api_types::chunk::ChunkInfo> {
    engine.infos(ChunkId(chunk - 1), 1).into_iter().find(|info| info.shape.chunk == ChunkId(chunk))
}
