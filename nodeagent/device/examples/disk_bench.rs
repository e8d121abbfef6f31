//! Measures a `FileDevice`: `disk_bench PATH [ring|aio|threads] [up-to from]`. The file's contents are overwritten.

use api_types::{QosClass, Rng};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nodeagent_device::{Device, Durability, FileDevice, Write, file};
use nodeagent_reactor::disk::{self, Backend, Executor};
use nodeagent_reactor::{BufferPool, RealClock, RealRng};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;
use tokio::task::LocalSet;

const RUN: Duration = Duration::from_secs(3);
const BLOCK: u64 = 4096;

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Durable,
    Cached,
}

async fn measure(name: &str, device: &FileDevice, pool: &BufferPool, kind: Kind, depth: usize) -> std::io::Result<()> {
    let rng = RealRng::new();
    let blocks = device.info().size_bytes / BLOCK;
    let data = pool.take(BLOCK as usize).await?.freeze();
    let one = || {
        let (offset, start) = (rng.below(blocks) * BLOCK, RealClock::monotonic());
        let request = match kind {
            Kind::Read => futures::future::Either::Left(device.read(offset, BLOCK as u32, QosClass::Foreground)),
            Kind::Durable | Kind::Cached => {
                let durability = if matches!(kind, Kind::Durable) { Durability::Durable } else { Durability::Cached };
                let write = Write { offset, data: data.clone(), durability, qos: QosClass::Foreground };
                futures::future::Either::Right(device.write(write))
            }
        };
        async move {
            match request {
                futures::future::Either::Left(read) => read.await.map(|_| ()),
                futures::future::Either::Right(write) => write.await,
            }
            .map(|()| RealClock::monotonic() - start)
        }
    };
    let begin = RealClock::monotonic();
    let mut under_way: FuturesUnordered<_> = (0..depth).map(|_| one()).collect();
    let mut times = Vec::new();
    while let Some(time) = under_way.next().await {
        times.push(time?);
        if RealClock::monotonic() - begin < RUN {
            under_way.push(one());
        }
    }
    let seconds = (RealClock::monotonic() - begin).as_secs_f64();
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 1000).min(times.len() - 1)].as_micros();
    let rate = times.len() as f64 / seconds;
    println!("{name:<24} {rate:>9.0} IOPS  p50 {:>5} us  p99 {:>6} us", at(500), at(990));
    Ok(())
}

async fn bench(path: &str, backend: Option<Backend>, flush: Option<file::FlushPolicy>) -> std::io::Result<()> {
    let executor = Executor::start(disk::Options { backend, ..disk::Options::default() })?;
    let pool = BufferPool::default();
    let options = file::Options { flush, ..file::Options::default() };
    let device = FileDevice::open(Path::new(path), executor, pool.clone(), options)?;
    println!("{:?} {:?}", device.info(), device.probe());
    device.write_through(|_| ControlFlow::Continue(())).await?;
    measure("durable write QD1", &device, &pool, Kind::Durable, 1).await?;
    measure("durable write QD4", &device, &pool, Kind::Durable, 4).await?;
    measure("durable write QD32", &device, &pool, Kind::Durable, 32).await?;
    measure("cached write QD1", &device, &pool, Kind::Cached, 1).await?;
    measure("read QD1", &device, &pool, Kind::Read, 1).await?;
    measure("read QD32", &device, &pool, Kind::Read, 32).await
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let path = arguments.get(1).ok_or_else(|| std::io::Error::other("usage: disk_bench PATH [ring|aio|threads] [up-to from]"))?;
    let backend = match arguments.get(2).map(String::as_str) {
        Some("ring") => Some(Backend::Ring),
        Some("aio") => Some(Backend::Aio),
        Some("threads") => Some(Backend::Threads),
        _ => None,
    };
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse().ok());
    let flush = number(3).zip(number(4)).map(|(up_to, from)| file::FlushPolicy { up_to, from });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, bench(path, backend, flush))
}
