//! The chunk store on a file against the file itself, in one run: durable 4 KiB appends one at a time and 32 at once,
//! random 4 KiB reads. `cargo xtask bench engine -- <directory>`; the directory must be on a disk.
#![expect(clippy::unwrap_used, reason = "a benchmark that can't go on stops")]

use api_types::checksum::FooterSeed;
use api_types::chunk::{Append, ChunkStore, Read, Request, Response};
use api_types::unit::{Alignment, ChunkShape, finish_unit, unit_bytes};
use api_types::{ChunkId, ClusterId, Epoch, LifetimeClass, OwnerId, QosClass, Rng};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use nodeagent_device::{Device, Durability, FileDevice, Memory, Write};
use nodeagent_engine::{Engine, FormatOptions, OpenOptions, format};
use nodeagent_reactor::{BufferPool, RealClock, RealRng, disk};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId(1);
const DEVICE_BYTES: u64 = 1 << 30;
const CAPACITY: u32 = 256 << 20;
const WRITES: u32 = 4000;
const READS: u32 = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| PathBuf::from("../../target"));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(format!("engine-bench-{}", std::process::id()));
    tokio::task::LocalSet::new().block_on(&runtime, measure(path.clone()));
    std::fs::remove_file(path).unwrap();
}

async fn measure(path: PathBuf) {
    std::fs::File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
    let executor = disk::Executor::start(disk::Options::default()).unwrap();
    let file = FileDevice::open(&path, executor, BufferPool::default(), nodeagent_device::file::Options::default()).unwrap();
    file.write_through(|_| ControlFlow::Continue(())).await.unwrap();
    let file: Rc<dyn Device> = Rc::new(file);
    println!("{:?}", file.info());
    for alignment in [Alignment::B512, Alignment::B4096] {
        if alignment.bytes() % file.info().block_bytes != 0 {
            continue;
        }
        let length = unit_bytes(4096, 40, alignment);
        for depth in [1, 32] {
            let raw = raw_writes(&file, length, depth).await;
            report(&format!("raw durable write {length} B"), depth, raw, None);
        }
    }
    let raw_reads = [raw_reads(&file, 1).await, raw_reads(&file, 32).await];
    let overwrite = Some(nodeagent_engine::inspect(file.as_ref()).await.unwrap().to_string());
    let options = FormatOptions { overwrite, ..FormatOptions::new(CLUSTER) };
    format(Rc::clone(&file), options, &RealRng::new()).await.unwrap();
    store(&file, "file", Some(raw_reads)).await;

    let memory: Rc<dyn Device> = Rc::new(Memory::new(DEVICE_BYTES, 512));
    format(Rc::clone(&memory), FormatOptions::new(CLUSTER), &RealRng::new()).await.unwrap();
    store(&memory, "memory", None).await;
}

/// Measures a store on a formatted device.
async fn store(device: &Rc<dyn Device>, name: &str, raw: Option<[(u32, Duration); 2]>) {
    let engine = Engine::open(Rc::clone(device), Rc::new(RealClock::new()), OpenOptions::new(CLUSTER)).await.unwrap();
    let mut id = 0;
    for alignment in [Alignment::B512, Alignment::B4096] {
        if alignment.bytes() % device.info().block_bytes != 0 {
            continue;
        }
        for depth in [1, 32] {
            id += 1;
            let shape = ChunkShape {
                chunk: ChunkId(id),
                owner: OwnerId(1),
                epoch: Epoch(1),
                capacity: CAPACITY,
                alignment,
                class: LifetimeClass::Short,
            };
            let figures = appends(&engine, shape, depth).await;
            report(&format!("{name}: append 4096 B in {} B", unit_bytes(4096, 40, alignment)), depth, figures, None);
        }
    }
    for (index, depth) in [1, 32].into_iter().enumerate() {
        let figures = reads(&engine, id, depth).await;
        report(&format!("{name}: random read 4096 B"), depth, figures, raw.map(|raw| raw[index]));
    }
    engine.close().await.unwrap();
}

fn report(what: &str, depth: usize, (count, elapsed): (u32, Duration), against: Option<(u32, Duration)>) {
    let rate = f64::from(count) / elapsed.as_secs_f64();
    let each = elapsed.as_secs_f64() * 1e6 / f64::from(count);
    let ratio = against.map_or(String::new(), |(count, elapsed)| {
        format!("  {:.2} of the raw device", rate / (f64::from(count) / elapsed.as_secs_f64()))
    });
    println!("{what:44} depth {depth:2}: {rate:9.0} /s {each:8.1} µs each{ratio}");
}

async fn appends(engine: &Engine, shape: ChunkShape, depth: usize) -> (u32, Duration) {
    let length = unit_bytes(4096, 40, shape.alignment);
    let units: Vec<Bytes> = (0..WRITES).map(|index| unit(shape, index * length)).collect();
    let begun = RealClock::monotonic();
    let mut under_way = FuturesUnordered::new();
    for (index, unit) in units.into_iter().enumerate() {
        if under_way.len() >= depth {
            let answer: Option<Result<Response, _>> = under_way.next().await;
            answer.unwrap().unwrap();
        }
        let offset = u32::try_from(index).unwrap() * length;
        let (chunk, epoch) = (shape.chunk, shape.epoch);
        let append = Append { chunk, epoch, offset, unit, create: index == 0, qos: QosClass::Foreground };
        under_way.push(engine.serve(Request::Append(append)));
    }
    while let Some(answer) = under_way.next().await {
        answer.unwrap();
    }
    (WRITES, RealClock::monotonic() - begun)
}

fn unit(shape: ChunkShape, start: u32) -> Bytes {
    let mut out = vec![0x5a; unit_bytes(4096, 40, shape.alignment) as usize];
    finish_unit(&mut out, shape, start, 4096, &[1; 40], FooterSeed::of(CLUSTER));
    Bytes::from(out)
}

async fn reads(engine: &Engine, chunk: u64, depth: usize) -> (u32, Duration) {
    let rng = RealRng::seeded(1);
    let begun = RealClock::monotonic();
    stream::iter(0..READS)
        .map(|_| {
            let offset = u32::try_from(rng.below(u64::from(WRITES))).unwrap() * 8192;
            let read = Read { chunk: ChunkId(chunk), offset, length: 4096, qos: QosClass::Foreground };
            engine.serve(Request::Read(read))
        })
        .buffer_unordered(depth)
        .for_each(|answer| {
            assert!(answer.is_ok(), "{answer:?}");
            std::future::ready(())
        })
        .await;
    (READS, RealClock::monotonic() - begun)
}

async fn raw_writes(device: &Rc<dyn Device>, length: u32, depth: usize) -> (u32, Duration) {
    let data = Bytes::from(vec![0x5a; length as usize]);
    let begun = RealClock::monotonic();
    stream::iter(0..WRITES)
        .map(|index| {
            let offset = (64 << 20) + u64::from(index) * u64::from(length);
            device.write(Write { offset, data: data.clone(), durability: Durability::Durable, qos: QosClass::Foreground })
        })
        .buffer_unordered(depth)
        .for_each(|answer| {
            assert!(answer.is_ok(), "{answer:?}");
            std::future::ready(())
        })
        .await;
    (WRITES, RealClock::monotonic() - begun)
}

async fn raw_reads(device: &Rc<dyn Device>, depth: usize) -> (u32, Duration) {
    let rng = RealRng::seeded(1);
    let begun = RealClock::monotonic();
    stream::iter(0..READS)
        .map(|_| device.read((64 << 20) + rng.below(u64::from(WRITES)) * 8192, 4096, QosClass::Foreground))
        .buffer_unordered(depth)
        .for_each(|answer| {
            assert!(answer.is_ok(), "{answer:?}");
            std::future::ready(())
        })
        .await;
    (READS, RealClock::monotonic() - begun)
}
