use super::*;
use crate::buffer::BufferPool;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use tokio::task::LocalSet;

const BACKENDS: [Backend; 3] = [Backend::Ring, Backend::Aio, Backend::Threads];

fn direct_file(bytes: u64) -> (tempfile::TempDir, File) {
    // Beside the build, where there is a disk: main memory may refuse direct I/O.
    let directory = tempfile::tempdir_in(".").unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let file = options.open(directory.path().join("disk")).unwrap();
    file.set_len(bytes).unwrap();
    (directory, file)
}

fn on_each_backend<F: Future<Output = ()>>(test: impl Fn(Executor) -> F) {
    for backend in BACKENDS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let executor = Executor::start(Options { backend: Some(backend), depth: 16, threads: 3 }).unwrap();
            assert_eq!(executor.backend(), backend);
            test(executor).await;
        });
    }
}

fn filled(pool: &BufferPool, length: usize, fill: u8) -> Bytes {
    let mut buffer = pool.try_take(length).unwrap();
    buffer.fill(fill);
    buffer.freeze()
}

#[test]
fn what_is_written_is_read_back_on_every_backend() {
    on_each_backend(|executor| async move {
        let pool = BufferPool::default();
        let (_directory, file) = direct_file(1 << 20);
        let file = executor.register(file);
        let writes = (0..16u8).map(|i| {
            let data = filled(&pool, 8192, i + 1);
            executor.run(Op::Write { file: file.clone(), offset: u64::from(i) * 8192, data, dsync: i % 2 == 0 })
        });
        for done in futures::future::join_all(writes).await {
            assert_eq!(done.unwrap().result.unwrap(), 8192);
        }
        assert_eq!(executor.run(Op::Sync { file: file.clone() }).await.unwrap().result.unwrap(), 0);
        for i in 0..16u8 {
            let buffer = pool.try_take(8192).unwrap();
            let done = executor.run(Op::Read { file: file.clone(), offset: u64::from(i) * 8192, buffer }).await.unwrap();
            assert_eq!(done.result.unwrap(), 8192);
            assert!(done.buffer.unwrap().iter().all(|byte| *byte == i + 1));
        }
    });
}

#[test]
fn errors_of_the_kernel_arrive_and_the_buffer_comes_back() {
    on_each_backend(|executor| async move {
        let pool = BufferPool::default();
        let file = executor.register(File::open("/").unwrap());
        let buffer = pool.try_take(4096).unwrap();
        let done = executor.run(Op::Read { file, offset: 0, buffer }).await.unwrap();
        assert!(done.result.unwrap_err().raw_os_error().is_some());
        assert!(done.buffer.is_some());
    });
}

#[test]
fn more_than_the_depth_is_refused_and_comes_back() {
    on_each_backend(|executor| async move {
        let pool = BufferPool::default();
        let (_directory, file) = direct_file(1 << 20);
        let file = executor.register(file);
        let read = |offset| Op::Read { file: file.clone(), offset, buffer: pool.try_take(4096).unwrap() };
        let running: Vec<_> = (0..executor.depth()).map(|_| executor.run(read(0))).collect();
        assert!(executor.run(read(0)).await.is_err());
        for done in futures::future::join_all(running).await {
            done.unwrap().result.unwrap();
        }
        assert_eq!(executor.under_way(), 0);
    });
}

#[test]
fn buffers_of_dropped_requests_return_only_when_the_kernel_is_done() {
    on_each_backend(|executor| async move {
        let pool = BufferPool::default();
        let (_directory, file) = direct_file(1 << 20);
        let file = executor.register(file);
        for _ in 0..50 {
            let data = filled(&pool, 65536, 7);
            drop(executor.run(Op::Write { file: file.clone(), offset: 0, data, dsync: false }));
            let buffer = pool.try_take(4096).unwrap();
            drop(executor.run(Op::Read { file: file.clone(), offset: 0, buffer }));
            while executor.under_way() > 8 {
                tokio::task::yield_now().await;
            }
        }
        while executor.under_way() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.info().used_bytes, 0);
    });
}

#[test]
fn an_executor_dropped_under_load_gives_all_its_memory_back() {
    let pool = BufferPool::default();
    on_each_backend(|executor| {
        let pool = pool.clone();
        async move {
            let (_directory, file) = direct_file(1 << 20);
            let file = executor.register(file);
            for i in 0..16 {
                let data = filled(&pool, 65536, 7);
                drop(executor.run(Op::Write { file: file.clone(), offset: i * 65536, data, dsync: true }));
            }
        }
    });
    assert_eq!(pool.info().used_bytes, 0);
}

#[test]
fn without_a_wish_the_first_backend_the_kernel_grants_is_taken() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let executor = Executor::start(Options::default()).unwrap();
        assert!(BACKENDS.contains(&executor.backend()));
    });
}
