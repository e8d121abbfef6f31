//! Disk requests of one core.
//!
//! An [`Executor`] hands reads, writes and flushes to the kernel and calls a [`Sink`] back when they are done. One
//! driver task per executor submits what was pushed since it last ran (so requests of one round of the loop go to the
//! kernel in one system call) and reaps what has completed, woken by an eventfd. Buffers belong to the executor until
//! the kernel is done with them, whoever has stopped waiting.
//!
//! Backends behind the same interface, in the order they are tried: io_uring, Linux AIO (where a sandbox refuses
//! io_uring), threads.

#![expect(unsafe_code, reason = "hands buffers to the kernel by address")]

mod aio;
mod ring;
#[cfg(test)]
mod tests;
mod threads;

use crate::buffer::AlignedBuf;
use bytes::Bytes;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// How long a dropped executor waits for the kernel before it gives the memory of what is still under way up for lost.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How requests are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// io_uring.
    Ring,
    /// Linux AIO.
    Aio,
    /// A few threads that block.
    Threads,
}

impl Backend {
    /// The name used in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Ring => "io_uring",
            Backend::Aio => "libaio",
            Backend::Threads => "threads",
        }
    }
}

/// How an executor is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Use this backend only. `None`: the first that the kernel grants.
    pub backend: Option<Backend>,
    /// Requests under way at most, a power of two.
    pub depth: u32,
    /// Threads of [`Backend::Threads`].
    pub threads: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { backend: None, depth: 1024, threads: 8 }
    }
}

/// One request.
#[derive(Debug)]
pub enum Op {
    /// Fills the buffer from `offset` on.
    Read {
        /// Where from.
        file: DiskFile,
        /// In bytes.
        offset: u64,
        /// Its length says how much.
        buffer: AlignedBuf,
    },
    /// Writes the bytes at `offset`.
    Write {
        /// Where to.
        file: DiskFile,
        /// In bytes.
        offset: u64,
        /// As aligned as the file wants it.
        data: Bytes,
        /// Durable once done (`RWF_DSYNC`).
        dsync: bool,
    },
    /// Makes what was written durable (`fdatasync`).
    Sync {
        /// Which file.
        file: DiskFile,
    },
}

/// What became of a request.
#[derive(Debug)]
pub struct Done {
    /// Bytes read or written; less than asked for only at the end of a file.
    pub result: io::Result<usize>,
    /// The buffer of a read.
    pub buffer: Option<AlignedBuf>,
}

/// Where completions go.
pub trait Sink {
    /// The request submitted with `token` is done. May submit more.
    fn complete(&self, token: u64, done: Done);
}

/// Too many requests are under way; the request comes back.
#[derive(Debug, thiserror::Error)]
#[error("too many disk requests are under way")]
pub struct Full(pub Box<Op>);

/// A file known to an [`Executor`]. Clones are the same file.
#[derive(Clone, Debug)]
pub struct DiskFile {
    shared: Rc<FileShared>,
}

#[derive(Debug)]
struct FileShared {
    file: File,
    /// Its number among the ring's registered files.
    registered: Cell<Option<u32>>,
    executor: std::rc::Weak<Inner>,
}

impl DiskFile {
    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.shared.file
    }
}

impl Drop for FileShared {
    fn drop(&mut self) {
        if let (Some(number), Some(inner)) = (self.registered.get(), self.executor.upgrade())
            && let Kernel::Ring(ring) = &mut *inner.kernel.borrow_mut()
        {
            ring.unregister(number);
        }
    }
}

/// A request as a backend sees it. The memory behind `start` is kept by the executor until the completion is reaped.
#[derive(Clone, Copy)]
struct RawOp {
    key: usize,
    fd: RawFd,
    registered: Option<u32>,
    kind: RawKind,
    start: *mut u8,
    length: u32,
    offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RawKind {
    Read,
    Write { dsync: bool },
    Sync,
}

/// A completion: the request's key and the result as the kernel has it, negative for an error.
type Completion = (usize, i32);

enum Kernel {
    Ring(Box<ring::Ring>),
    Aio(aio::Aio),
    Threads(threads::Threads),
}

impl Kernel {
    /// Takes a request in; at the latest the next [`Self::flush`] starts it. There is room: the executor counts.
    fn push(&mut self, op: RawOp) -> io::Result<()> {
        match self {
            Kernel::Ring(ring) => ring.push(op),
            Kernel::Aio(aio) => aio.push(op),
            Kernel::Threads(threads) => threads.push(op),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Kernel::Ring(ring) => ring.flush(),
            Kernel::Aio(aio) => aio.flush(),
            Kernel::Threads(_) => Ok(()),
        }
    }

    fn reap(&mut self, into: &mut Vec<Completion>) {
        match self {
            Kernel::Ring(ring) => ring.reap(into),
            Kernel::Aio(aio) => aio.reap(into),
            Kernel::Threads(threads) => threads.reap(into),
        }
    }

    /// Blocks until something has completed, or for a tenth of a second.
    fn wait(&mut self) {
        match self {
            Kernel::Ring(ring) => ring.wait(),
            Kernel::Aio(aio) => aio.wait(),
            Kernel::Threads(threads) => threads.wait(),
        }
    }
}

/// What the kernel may still read from or write to.
enum Memory {
    Read(AlignedBuf),
    Write { _data: Bytes },
    Sync,
}

struct UnderWay {
    sink: Rc<dyn Sink>,
    token: u64,
    memory: Memory,
    _file: DiskFile,
}

struct Inner {
    backend: Backend,
    depth: usize,
    /// Declared before the requests: the kernel must be drained before their memory goes.
    kernel: RefCell<Kernel>,
    under_way: RefCell<Slab<UnderWay>>,
    /// Requests that the kernel didn't take in, to be answered.
    refused: RefCell<Vec<Completion>>,
    driver: RefCell<Option<Waker>>,
    closing: Cell<bool>,
}

/// Hands requests of one thread to the kernel. Clones are handles; when the last one goes, what is under way is
/// finished first.
#[derive(Clone)]
pub struct Executor {
    handle: Rc<Handle>,
}

struct Handle {
    inner: Rc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.closing.set(true);
        self.inner.wake();
    }
}

impl Executor {
    /// Starts an executor on this thread. Must be called within a `LocalSet`, where its driver lives.
    pub fn start(options: Options) -> io::Result<Self> {
        let depth = options.depth.clamp(1, 4096).next_power_of_two();
        let (backend, kernel, event) = open(options, depth)?;
        let inner = Rc::new(Inner {
            backend,
            depth: depth as usize,
            kernel: RefCell::new(kernel),
            under_way: RefCell::new(Slab::with_capacity(depth as usize)),
            refused: RefCell::default(),
            driver: RefCell::new(None),
            closing: Cell::new(false),
        });
        // SAFETY: an `OwnedFd` always gives the same open descriptor, which the driver keeps until it ends.
        let event = unsafe { AsyncFd::register_with_interest(event, tokio::io::Interest::READABLE) }?;
        crate::core::spawn_local("disk driver", drive(Rc::clone(&inner), event));
        Ok(Executor { handle: Rc::new(Handle { inner }) })
    }

    /// How requests are done.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.handle.inner.backend
    }

    /// The most requests that may be under way.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.handle.inner.depth
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.handle.inner.under_way.borrow().len()
    }

    /// Makes a file known.
    #[must_use]
    pub fn register(&self, file: File) -> DiskFile {
        let registered = match &mut *self.handle.inner.kernel.borrow_mut() {
            Kernel::Ring(ring) => ring.register(file.as_raw_fd()),
            Kernel::Aio(_) | Kernel::Threads(_) => None,
        };
        let executor = Rc::downgrade(&self.handle.inner);
        DiskFile { shared: Rc::new(FileShared { file, registered: Cell::new(registered), executor }) }
    }

    /// Queues a request; `sink` hears of it under `token`.
    pub fn submit(&self, op: Op, sink: Rc<dyn Sink>, token: u64) -> Result<(), Full> {
        self.handle.inner.submit(op, sink, token)
    }

    /// Does one request. Dropping the future doesn't undo it.
    pub fn run(&self, op: Op) -> impl Future<Output = io::Result<Done>> + 'static {
        let slot = Rc::new(Slot::default());
        let submitted = self.submit(op, Rc::<Slot>::clone(&slot), 0);
        async move {
            submitted.map_err(|full| io::Error::new(io::ErrorKind::WouldBlock, full.to_string()))?;
            poll_fn(|context| slot.poll(context)).await
        }
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({}, {} under way)", self.backend().as_str(), self.under_way())
    }
}

fn open(options: Options, depth: u32) -> io::Result<(Backend, Kernel, OwnedFd)> {
    let order = match &options.backend {
        Some(backend) => std::slice::from_ref(backend),
        None => &[Backend::Ring, Backend::Aio, Backend::Threads],
    };
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for backend in order {
        let opened = match backend {
            Backend::Ring => ring::Ring::new(depth).map(|(ring, event)| (Kernel::Ring(Box::new(ring)), event)),
            Backend::Aio => aio::Aio::new(depth).map(|(aio, event)| (Kernel::Aio(aio), event)),
            Backend::Threads => threads::Threads::new(options.threads).map(|(threads, event)| (Kernel::Threads(threads), event)),
        };
        match opened {
            Ok((kernel, event)) => return Ok((*backend, kernel, event)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

impl Inner {
    fn wake(&self) {
        // Taken, so that the driver is woken once for all that is pushed before it runs.
        if let Some(waker) = self.driver.borrow_mut().take() {
            waker.wake();
        }
    }

    fn submit(&self, op: Op, sink: Rc<dyn Sink>, token: u64) -> Result<(), Full> {
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= self.depth {
            return Err(Full(Box::new(op)));
        }
        let entry = under_way.vacant_entry();
        let key = entry.key();
        let (file, memory, kind, start, length, offset) = match op {
            Op::Read { file, offset, mut buffer } => {
                let (start, length) = (buffer.as_mut_ptr(), buffer.len());
                (file, Memory::Read(buffer), RawKind::Read, start, length, offset)
            }
            Op::Write { file, offset, data, dsync } => {
                let (start, length) = (data.as_ptr().cast_mut(), data.len());
                (file, Memory::Write { _data: data }, RawKind::Write { dsync }, start, length, offset)
            }
            Op::Sync { file } => (file, Memory::Sync, RawKind::Sync, std::ptr::null_mut(), 0, 0),
        };
        let fd = file.shared.file.as_raw_fd();
        let registered = file.shared.registered.get();
        // No buffer is that long; a longer `Bytes` is written in part, which the caller sees.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        entry.insert(UnderWay { sink, token, memory, _file: file });
        drop(under_way);
        let pushed = self.kernel.borrow_mut().push(RawOp { key, fd, registered, kind, start, length, offset });
        if let Err(error) = pushed {
            // The kernel never saw it. Answered by the driver like everything else, so that a sink isn't called from
            // within its own call.
            let code = error.raw_os_error().unwrap_or(libc::EIO);
            self.refused.borrow_mut().push((key, -code));
        }
        self.wake();
        Ok(())
    }

    /// Reaps and answers everything that has completed. `false`: there was nothing.
    fn reap(&self, completions: &mut Vec<Completion>) -> bool {
        completions.append(&mut self.refused.borrow_mut());
        self.kernel.borrow_mut().reap(completions);
        let any = !completions.is_empty();
        for (key, result) in completions.drain(..) {
            let Some(UnderWay { sink, token, memory, _file }) = self.under_way.borrow_mut().try_remove(key) else { continue };
            let buffer = match memory {
                Memory::Read(buffer) => Some(buffer),
                Memory::Write { .. } | Memory::Sync => None,
            };
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            sink.complete(token, Done { result, buffer });
        }
        any
    }
}

async fn drive(inner: Rc<Inner>, event: AsyncFd<OwnedFd>) {
    let mut completions = Vec::new();
    poll_fn(|context| {
        loop {
            // Registered before anything is looked at, so that a push after the look isn't missed.
            *inner.driver.borrow_mut() = Some(context.waker().clone());
            if let Err(error) = inner.kernel.borrow_mut().flush() {
                // Nothing was lost: what couldn't be handed over stays queued. Tried again when woken.
                if error.kind() != io::ErrorKind::Interrupted && error.raw_os_error() != Some(libc::EBUSY) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
            }
            if inner.reap(&mut completions) {
                continue;
            }
            if inner.closing.get() && inner.under_way.borrow().is_empty() {
                return Poll::Ready(());
            }
            match event.poll_read_ready(context) {
                // The eventfd is never read: it is edge-triggered, and each completion is an edge.
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Only without a driver is anything left here: the runtime went first.
        let mut rounds = DRAIN_LIMIT.as_millis() / 100;
        let mut completions = Vec::new();
        let kernel = self.kernel.get_mut();
        let under_way = self.under_way.get_mut();
        while !under_way.is_empty() && rounds > 0 {
            rounds -= 1;
            completions.append(self.refused.get_mut());
            // What is refused now stays queued for the next round.
            let _retried = kernel.flush();
            kernel.wait();
            kernel.reap(&mut completions);
            for (key, _) in completions.drain(..) {
                drop(under_way.try_remove(key));
            }
        }
        // A disk that doesn't answer may still write to this memory one day.
        std::mem::forget(std::mem::take(under_way));
    }
}

#[derive(Default)]
struct Slot {
    done: RefCell<Option<Done>>,
    waker: RefCell<Option<Waker>>,
}

impl Slot {
    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<Done>> {
        if let Some(done) = self.done.borrow_mut().take() {
            return Poll::Ready(Ok(done));
        }
        *self.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Sink for Slot {
    fn complete(&self, _token: u64, done: Done) {
        *self.done.borrow_mut() = Some(done);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
