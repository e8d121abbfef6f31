//! What every device must do, asked of each of them.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use api_types::{Clock, QosClass};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use nodeagent_device::{Device, Durability, FaultPlan, Faulty, FileDevice, IO_BYTES_MAX, Memory, Write, file};
use nodeagent_reactor::disk::{self, Backend, Executor};
use nodeagent_reactor::{BufferPool, RealClock, RealRng};
use std::fs::File;
use std::future::Future;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::task::LocalSet;

const SIZE: u64 = 8 << 20;
const QOS: QosClass = QosClass::Foreground;

fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect::<Vec<u8>>().into()
}

fn write(offset: u64, data: Bytes, durability: Durability) -> Write {
    Write { offset, data, durability, qos: QOS }
}

async fn reads_give_what_was_written(device: &dyn Device) {
    let block = device.info().block_bytes as usize;
    for (i, length) in [block, 2 * block, 64 << 10, 1 << 20, IO_BYTES_MAX as usize].into_iter().enumerate() {
        let data = pattern(length, i as u8);
        let durability = if i % 2 == 0 { Durability::Durable } else { Durability::Cached };
        device.write(write(block as u64, data.clone(), durability)).await.unwrap();
        assert_eq!(device.read(block as u64, length as u32, QOS).await.unwrap(), data);
    }
}

async fn bytes_at_any_address_can_be_written(device: &dyn Device) {
    let whole = pattern(8192 + 1, 3);
    device.write(write(0, whole.slice(1..), Durability::Durable)).await.unwrap();
    assert_eq!(device.read(0, 8192, QOS).await.unwrap(), whole.slice(1..));
}

async fn the_last_block_can_be_used_and_nothing_beyond(device: &dyn Device) {
    let (size, block) = (device.info().size_bytes, device.info().block_bytes);
    device.write(write(size - u64::from(block), pattern(block as usize, 9), Durability::Durable)).await.unwrap();
    assert_eq!(device.read(size - u64::from(block), block, QOS).await.unwrap(), pattern(block as usize, 9));
    let beyond = [(size, block), (size - u64::from(block), 2 * block), (u64::MAX - u64::from(block) + 1, block)];
    for (offset, length) in beyond {
        let error = device.read(offset, length, QOS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let data = pattern(length as usize, 0);
        assert_eq!(device.write(write(offset, data, Durability::Durable)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

async fn unaligned_empty_and_overlong_requests_are_refused(device: &dyn Device) {
    let block = device.info().block_bytes;
    for (offset, length) in [(1, block), (0, block - 1), (u64::from(block) / 2, block), (0, 0), (0, IO_BYTES_MAX + block)] {
        assert_eq!(device.read(offset, length, QOS).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        let data = Bytes::from(vec![0; length as usize]);
        assert_eq!(device.write(write(offset, data, Durability::Cached)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(device.trim(1, u64::from(block)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.trim(0, device.info().size_bytes + u64::from(block)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

async fn a_write_counts_from_its_call_even_if_nobody_waits(device: &dyn Device) {
    let data = pattern(16 << 10, 77);
    drop(device.write(write(1 << 20, data.clone(), Durability::Durable)));
    while device.queued() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(device.read(1 << 20, 16 << 10, QOS).await.unwrap(), data);
}

async fn many_overlapping_requests_all_end(device: &dyn Device) {
    let writes = (0..200u64).map(|i| {
        let durability = if i % 3 == 0 { Durability::Durable } else { Durability::Cached };
        device.write(write(i % 50 * 4096, pattern(4096, (i % 50) as u8), durability))
    });
    let reads = (0..200u64).map(|i| device.read(i % 50 * 4096, 4096, QosClass::ALL[(i % 4) as usize]));
    let flushes = (0..5).map(|_| device.flush());
    let (writes, reads, flushes) = futures::join!(join_all(writes), join_all(reads), join_all(flushes));
    assert!(writes.iter().all(Result::is_ok) && reads.iter().all(Result::is_ok) && flushes.iter().all(Result::is_ok));
    assert_eq!(device.queued(), 0);
    for i in 0..50u64 {
        assert_eq!(device.read(i * 4096, 4096, QOS).await.unwrap(), pattern(4096, i as u8));
    }
}

async fn a_trim_harms_nothing_beside_it(device: &dyn Device) {
    let block = u64::from(device.info().block_bytes);
    try_join_all((0..8).map(|i| device.write(write(i << 16, pattern(1 << 16, i as u8), Durability::Durable)))).await.unwrap();
    device.trim(1 << 16, 1 << 16).await.unwrap();
    device.trim((3 << 16) + block, block).await.unwrap();
    device.trim(0, 0).await.unwrap();
    for i in [0, 2, 4, 5, 6, 7] {
        assert_eq!(device.read(i << 16, 1 << 16, QOS).await.unwrap(), pattern(1 << 16, i as u8));
    }
    assert_eq!(device.read(3 << 16, block as u32, QOS).await.unwrap(), pattern(1 << 16, 3).slice(..block as usize));
    device.read(1 << 16, 1 << 16, QOS).await.unwrap();
}

async fn the_info_is_sane(device: &dyn Device) {
    let info = device.info();
    assert!(info.block_bytes == 512 || info.block_bytes == 4096);
    assert!(info.size_bytes >= SIZE && info.size_bytes.is_multiple_of(u64::from(info.block_bytes)));
    assert!(!info.name.is_empty());
}

async fn conforms(device: &dyn Device) {
    the_info_is_sane(device).await;
    reads_give_what_was_written(device).await;
    bytes_at_any_address_can_be_written(device).await;
    the_last_block_can_be_used_and_nothing_beyond(device).await;
    unaligned_empty_and_overlong_requests_are_refused(device).await;
    a_write_counts_from_its_call_even_if_nobody_waits(device).await;
    many_overlapping_requests_all_end(device).await;
    a_trim_harms_nothing_beside_it(device).await;
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn on_a_file(backend: Backend, options: file::Options) {
    run(async {
        // Beside the sources, where there is a disk: main memory may refuse direct I/O.
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        let executor = Executor::start(disk::Options { backend: Some(backend), ..disk::Options::default() }).unwrap();
        let device = FileDevice::open(&path, executor, BufferPool::default(), options).unwrap();
        assert_eq!(device.info().backend, backend.as_str());
        conforms(&device).await;
    });
}

#[test]
fn memory_with_small_blocks_conforms() {
    run(async { conforms(&Memory::new(SIZE, 512)).await });
}

#[test]
fn memory_with_large_blocks_conforms() {
    run(async { conforms(&Memory::new(SIZE, 4096)).await });
}

#[test]
fn a_faulty_device_without_faults_conforms() {
    run(async {
        let clock: Rc<dyn Clock> = Rc::new(RealClock::new());
        conforms(&Faulty::new(Memory::new(SIZE, 512), clock, Rc::new(RealRng::seeded(1)))).await;
    });
}

#[test]
fn a_faulty_device_with_latency_conforms() {
    run(async {
        let clock: Rc<dyn Clock> = Rc::new(RealClock::new());
        let device = Faulty::new(Memory::new(SIZE, 512), clock, Rc::new(RealRng::seeded(1)));
        let latency = nodeagent_device::Latency { min: std::time::Duration::ZERO, max: std::time::Duration::from_millis(2) };
        device.plan().set_latency(latency);
        the_info_is_sane(&device).await;
        reads_give_what_was_written(&device).await;
        a_trim_harms_nothing_beside_it(&device).await;
    });
}

#[test]
fn a_door_that_stands_open_conforms() {
    run(async {
        let clock: Rc<dyn Clock> = Rc::new(RealClock::new());
        let door = Faulty::door(Memory::new(SIZE, 4096), clock, Rc::new(RealRng::seeded(1)), FaultPlan::new());
        conforms(&door).await;
    });
}

#[test]
fn a_file_over_io_uring_conforms() {
    on_a_file(Backend::Ring, file::Options::default());
}

#[test]
fn a_file_over_linux_aio_conforms() {
    on_a_file(Backend::Aio, file::Options::default());
}

#[test]
fn a_file_over_threads_conforms() {
    on_a_file(Backend::Threads, file::Options::default());
}

#[test]
fn a_file_with_large_blocks_and_punched_holes_conforms() {
    let options = file::Options { block_bytes: Some(4096), trim: file::Trim::On, ..file::Options::default() };
    on_a_file(Backend::Ring, options);
}

#[test]
fn a_file_on_which_writes_share_flushes_conforms() {
    on_a_file(Backend::Ring, file::Options { flush: Some(file::FlushPolicy { up_to: 1, from: 2 }), ..file::Options::default() });
}
