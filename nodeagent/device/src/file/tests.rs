use super::*;
use crate::device::Media;
use nodeagent_reactor::disk;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use tokio::task::LocalSet;

fn directory() -> tempfile::TempDir {
    // Beside the sources, where there is a disk: main memory may refuse direct I/O.
    tempfile::tempdir_in(".").unwrap()
}

fn sized(directory: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn open(path: &Path, options: Options) -> Result<FileDevice, OpenError> {
    let executor = Executor::start(disk::Options::default()).unwrap();
    FileDevice::open(path, executor, BufferPool::default(), options)
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

fn write(offset: u64, data: Vec<u8>, durability: Durability) -> Write {
    Write { offset, data: data.into(), durability, qos: QosClass::Foreground }
}

#[test]
fn a_second_open_of_the_same_file_says_that_it_is_in_use() {
    run(async {
        let directory = directory();
        let path = sized(&directory, 1 << 20);
        let first = open(&path, Options::default()).unwrap();
        let error = open(&path, Options::default()).unwrap_err();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        open(&path, Options::default()).unwrap();
    });
}

#[test]
fn what_cannot_be_a_device_is_refused_with_its_reason() {
    run(async {
        let directory = directory();
        assert!(matches!(open(directory.path(), Options::default()), Err(OpenError::NotADevice { .. })));
        assert!(matches!(open(Path::new("/dev/null"), Options::default()), Err(OpenError::NotADevice { .. })));
        assert!(matches!(open(&directory.path().join("absent"), Options::default()), Err(OpenError::Io { .. })));
        assert!(matches!(open(&sized(&directory, 0), Options::default()), Err(OpenError::Empty { .. })));
        let odd = Options { block_bytes: Some(1024), ..Options::default() };
        assert!(matches!(open(&sized(&directory, 1 << 20), odd), Err(OpenError::Block { .. })));
    });
}

#[test]
fn opening_leaves_the_contents_as_they_are_and_cuts_the_size_to_blocks() {
    run(async {
        let directory = directory();
        let path = directory.path().join("disk");
        std::fs::write(&path, [0xA5; 8192 + 100]).unwrap();
        let device = open(&path, Options { block_bytes: Some(4096), ..Options::default() }).unwrap();
        assert_eq!(device.info().size_bytes, 8192);
        assert_eq!(device.info().media, Media::File);
        assert!(device.info().volatile_cache);
        let bytes = device.read(0, 8192, QosClass::Foreground).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xA5));
    });
}

#[test]
fn many_durable_writes_at_once_share_flushes_and_all_are_answered() {
    run(async {
        let directory = directory();
        let device =
            open(&sized(&directory, 1 << 20), Options { flush: Some(FlushPolicy { up_to: 1, from: 4 }), ..Options::default() })
                .unwrap();
        let writes = (0..64u64).map(|i| device.write(write(i * 4096, vec![i as u8; 4096], Durability::Durable)));
        futures::future::try_join_all(writes).await.unwrap();
        assert_eq!(device.inner.durable.get(), 0);
        assert_eq!(device.queued(), 0);
        for i in 0..64u64 {
            assert_eq!(device.read(i * 4096, 4096, QosClass::Foreground).await.unwrap()[0], i as u8);
        }
    });
}

#[test]
fn write_through_leaves_data_alone_and_goes_on_where_it_was_stopped() {
    run(async {
        let directory = directory();
        let device = open(&sized(&directory, 32 << 20), Options::default()).unwrap();
        device.write(write(5 << 20, vec![7; 8192], Durability::Durable)).await.unwrap();
        let mut calls = 0;
        let whole = device.write_through(|_| {
            calls += 1;
            if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(!whole.await.unwrap());
        let mut seen = Vec::new();
        let whole = device.write_through(|progress| {
            seen.push(progress.done_bytes);
            ControlFlow::Continue(())
        });
        assert!(whole.await.unwrap());
        assert!(seen.is_sorted());
        assert!(seen[0] > 4 << 20, "the part that was written before is skipped: {seen:?}");
        assert_eq!(seen.last(), Some(&(32 << 20)));
        assert_eq!(device.read(5 << 20, 8192, QosClass::Foreground).await.unwrap()[8191], 7);
        let mut calls = 0;
        device
            .write_through(|_| {
                calls += 1;
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        assert_eq!(calls, 1, "nothing is left to be written");
    });
}

#[derive(Default)]
struct Seen(RefCell<Vec<Observation>>);

impl Observer for Seen {
    fn observe(&self, observation: &Observation) {
        self.0.borrow_mut().push(*observation);
    }
}

#[test]
fn the_observer_hears_of_each_request() {
    run(async {
        let directory = directory();
        let seen = Rc::new(Seen::default());
        let options = Options { observer: Some(Rc::<Seen>::clone(&seen)), ..Options::default() };
        let device = open(&sized(&directory, 1 << 20), options).unwrap();
        device.write(write(0, vec![1; 4096], Durability::Durable)).await.unwrap();
        device.read(0, 8192, QosClass::Scrub).await.unwrap();
        device.flush().await.unwrap();
        let kinds: Vec<_> = seen.0.borrow().iter().map(|one| (one.kind, one.bytes, one.qos, one.ok)).collect();
        assert_eq!(
            kinds,
            [
                (OpKind::Write, 4096, QosClass::Foreground, true),
                (OpKind::Read, 8192, QosClass::Scrub, true),
                (OpKind::Flush, 0, QosClass::Foreground, true)
            ]
        );
    });
}

#[test]
fn a_request_without_memory_waits_until_some_is_returned() {
    run(async {
        let directory = directory();
        let pool = BufferPool::new(nodeagent_reactor::PoolOptions { bytes_max: 4 << 20, idle_slabs: 1, huge_pages: false });
        let executor = Executor::start(disk::Options::default()).unwrap();
        let device = FileDevice::open(&sized(&directory, 1 << 20), executor, pool.clone(), Options::default()).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| pool.try_take(1 << 20).ok()).collect();
        let mut read = device.read(0, 4096, QosClass::Foreground);
        let mut write = device.write(write(0, vec![9; 4096], Durability::Durable));
        assert!((&mut read).now_or_never().is_none());
        assert!((&mut write).now_or_never().is_none());
        drop(held);
        read.await.unwrap();
        write.await.unwrap();
        assert_eq!(device.queued(), 0);
    });
}
