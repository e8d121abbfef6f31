//! A file or a block device, by direct I/O.
//!
//! Calls wait in a priority queue, go to the core's [`Executor`], and are answered from its completions; nothing is
//! spawned per request. Durable writes to a file, or to a disk with a volatile cache, carry `RWF_DSYNC` or share a flush
//! (see `commit`); a disk that forgets nothing needs neither.

mod commit;
mod open;
mod probe;
#[cfg(test)]
mod tests;
mod through;

use crate::device::{Device, Durability, Info, Write};
use crate::faulty::OpKind;
use crate::observer::{Observation, Observer};
use crate::range::{check_io, check_range};
use api_types::QosClass;
use bytes::Bytes;
use commit::Commit;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{LocalBoxFuture, ready};
use nodeagent_reactor::disk::{DiskFile, Done, Executor, Op, Sink};
use nodeagent_reactor::priority::PriorityQueue;
use nodeagent_reactor::{AlignedBuf, BufferPool, RealClock, TakeError, is_aligned};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

pub use commit::FlushPolicy;
pub use open::{OpenError, Options, Trim};
pub use probe::Probe;
pub use through::Progress;

/// How long a request waits for memory before it fails: longer means that whoever holds the pool has stopped.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// A file or block device, open and locked. Clones are handles to the same one.
#[derive(Clone)]
pub struct FileDevice {
    inner: Rc<Inner>,
}

struct Inner {
    this: Weak<Inner>,
    info: Info,
    probe: Probe,
    file: DiskFile,
    executor: Executor,
    pool: BufferPool,
    /// What is written must be made durable to be so.
    forgets: bool,
    trims: Option<Discard>,
    observer: Option<Rc<dyn Observer>>,
    queue: RefCell<PriorityQueue<Request>>,
    started: RefCell<Slab<Started>>,
    commit: RefCell<Commit<Flushed>>,
    /// Durable writes waiting and under way, flushes of their groups included.
    durable: Cell<u32>,
    /// Requests that wait for memory, and trims.
    aside: Cell<u32>,
}

#[derive(Clone, Copy)]
enum Discard {
    Disk,
    Hole,
}

type Reply<T> = oneshot::Sender<io::Result<T>>;

struct Request {
    called: Duration,
    body: Body,
}

enum Body {
    Read { offset: u64, buffer: AlignedBuf, reply: Reply<Bytes> },
    Write { offset: u64, data: Bytes, durable: bool, reply: Reply<()> },
}

/// What the executor is busy with.
enum Started {
    Read { call: Call, reply: Reply<Bytes> },
    Write { call: Call, durable: bool, joined: bool, reply: Reply<()> },
    Sync,
}

#[derive(Clone, Copy)]
struct Call {
    class: QosClass,
    bytes: u32,
    called: Duration,
    submitted: Duration,
}

/// Who waits for a flush.
struct Flushed {
    /// `None` for [`Device::flush`].
    write: Option<Call>,
    called: Duration,
    reply: Reply<()>,
}

impl FileDevice {
    /// Opens and locks a file or block device; it must exist and have a size.
    pub fn open(path: &Path, executor: Executor, pool: BufferPool, options: Options) -> Result<Self, OpenError> {
        let file = open::exclusively(path)?;
        let probe = Probe::of(path, &file, options.block_bytes, &pool)?;
        let trims = match (options.trim, probe.block_device) {
            (Trim::Auto | Trim::On, true) if probe.discards => Some(Discard::Disk),
            (Trim::On, false) => Some(Discard::Hole),
            _ => None,
        };
        // A file's blocks are found through its filesystem's metadata, which is volatile whatever the disk is.
        let forgets = !probe.block_device || probe.write_cache.unwrap_or(true);
        let by_disk = if probe.fua { FlushPolicy::WITH_FUA } else { FlushPolicy::WITHOUT_FUA };
        let flush = options.flush.unwrap_or(by_disk);
        let name = match probe.model.as_str() {
            "" => path.display().to_string(),
            model => format!("{} ({model})", path.display()),
        };
        let info = Info {
            name,
            size_bytes: probe.size_bytes,
            block_bytes: probe.block_bytes,
            volatile_cache: forgets,
            trims: trims.is_some(),
            media: probe.media,
            backend: executor.backend().as_str(),
        };
        let file = executor.register(file);
        let inner = Rc::new_cyclic(|this| Inner {
            this: this.clone(),
            info,
            probe,
            file,
            executor,
            pool,
            forgets,
            trims,
            observer: options.observer,
            queue: RefCell::new(PriorityQueue::new(options.limits)),
            started: RefCell::default(),
            commit: RefCell::new(Commit::new(flush)),
            durable: Cell::new(0),
            aside: Cell::new(0),
        });
        Ok(FileDevice { inner })
    }

    /// What was found when it was opened.
    #[must_use]
    pub fn probe(&self) -> &Probe {
        &self.inner.probe
    }

    fn file(&self) -> &File {
        self.inner.file.file()
    }

    fn pool(&self) -> &BufferPool {
        &self.inner.pool
    }
}

impl Inner {
    fn enqueue(self: &Rc<Self>, class: QosClass, body: Body) {
        let request = Request { called: RealClock::monotonic(), body };
        if let Err(full) = self.queue.borrow_mut().push(class, request) {
            let error = io::Error::new(io::ErrorKind::WouldBlock, full.to_string());
            match full.0.body {
                Body::Read { reply, .. } => drop(reply.send(Err(error))),
                Body::Write { reply, durable, .. } => {
                    self.durable.set(self.durable.get() - u32::from(durable));
                    drop(reply.send(Err(error)));
                }
            }
            return;
        }
        self.pump();
    }

    /// Hands the executor what may start.
    fn pump(self: &Rc<Self>) {
        loop {
            let Some((class, request)) = self.queue.borrow_mut().pop() else { return };
            self.start(class, request);
        }
    }

    fn start(self: &Rc<Self>, class: QosClass, request: Request) {
        let submitted = RealClock::monotonic();
        let call = |bytes: usize| Call { class, bytes: bytes as u32, called: request.called, submitted };
        let file = self.file.clone();
        let (op, started) = match request.body {
            Body::Read { offset, buffer, reply } => {
                let call = call(buffer.len());
                (Op::Read { file, offset, buffer }, Started::Read { call, reply })
            }
            Body::Write { offset, data, durable, reply } => {
                let call = call(data.len());
                let joined = durable && self.forgets && self.commit.borrow().joins(self.durable.get());
                let dsync = durable && self.forgets && !joined;
                (Op::Write { file, offset, data, dsync }, Started::Write { call, durable, joined, reply })
            }
        };
        self.submit(op, started);
    }

    fn submit(self: &Rc<Self>, op: Op, started: Started) {
        let token = self.started.borrow_mut().insert(started);
        let sink = Rc::<Inner>::clone(self);
        if let Err(full) = self.executor.submit(op, sink, token as u64) {
            let result = Err(io::Error::new(io::ErrorKind::WouldBlock, full.to_string()));
            self.answer(token as u64, Done { result, buffer: None });
        }
    }

    fn answer(self: &Rc<Self>, token: u64, done: Done) {
        let Some(started) = self.started.borrow_mut().try_remove(token as usize) else { return };
        match started {
            Started::Read { call, reply } => {
                self.queue.borrow_mut().finish(call.class);
                let result = whole(done.result, call.bytes, io::ErrorKind::UnexpectedEof);
                self.observe(OpKind::Read, call, result.is_ok());
                let bytes = result.map(|()| done.buffer.map(AlignedBuf::freeze).unwrap_or_default());
                // Nobody may be left to hear it.
                drop(reply.send(bytes));
            }
            Started::Write { call, durable, joined, reply } => {
                self.queue.borrow_mut().finish(call.class);
                let result = whole(done.result, call.bytes, io::ErrorKind::WriteZero);
                let flush = match (&result, joined) {
                    (Ok(()), true) => {
                        let waiter = Flushed { write: Some(call), called: call.called, reply };
                        self.commit.borrow_mut().wait(waiter)
                    }
                    _ => {
                        self.durable.set(self.durable.get() - u32::from(durable));
                        self.observe(OpKind::Write, call, result.is_ok());
                        drop(reply.send(result));
                        false
                    }
                };
                self.sync_if(flush);
            }
            Started::Sync => self.answer_flush(&done),
        }
    }

    fn answer_flush(self: &Rc<Self>, done: &Done) {
        let (answered, again) = self.commit.borrow_mut().flushed();
        self.sync_if(again);
        for flushed in answered {
            let result = match &done.result {
                Ok(_) => Ok(()),
                Err(error) => Err(copy(error)),
            };
            match flushed.write {
                Some(call) => {
                    self.durable.set(self.durable.get() - 1);
                    self.observe(OpKind::Write, call, result.is_ok());
                }
                None => {
                    let submitted = flushed.called;
                    let call = Call { class: QosClass::Foreground, bytes: 0, called: submitted, submitted };
                    self.observe(OpKind::Flush, call, result.is_ok());
                }
            }
            drop(flushed.reply.send(result));
        }
    }

    fn sync_if(self: &Rc<Self>, wanted: bool) {
        if wanted {
            self.submit(Op::Sync { file: self.file.clone() }, Started::Sync);
        }
    }

    fn observe(&self, kind: OpKind, call: Call, ok: bool) {
        if let Some(observer) = &self.observer {
            let (queued, device) = (call.submitted - call.called, RealClock::monotonic() - call.submitted);
            observer.observe(&Observation { kind, qos: call.class, bytes: call.bytes, queued, device, ok });
        }
    }

    fn set_aside(&self) -> Aside<'_> {
        self.aside.set(self.aside.get() + 1);
        Aside(&self.aside)
    }

    /// A buffer, after a wait if it must be.
    async fn wait_for_memory(&self, length: usize) -> io::Result<AlignedBuf> {
        let _aside = self.set_aside();
        match tokio::time::timeout(MEMORY_WAIT, self.pool.take(length)).await {
            Ok(taken) => taken.map_err(io::Error::from),
            Err(_) => Err(io::Error::new(io::ErrorKind::OutOfMemory, "no buffer came free for a disk request in time")),
        }
    }
}

impl Sink for Inner {
    fn complete(&self, token: u64, done: Done) {
        // The executor holds the device by an `Rc` of its own; this finds it again.
        if let Some(this) = self.this.upgrade() {
            this.answer(token, done);
            this.pump();
        }
    }
}

struct Aside<'a>(&'a Cell<u32>);

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Device for FileDevice {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    fn read(&self, offset: u64, length: u32, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let inner = &self.inner;
        if let Err(error) = check_io(&inner.info, offset, length as usize) {
            return ready(Err(error.into())).boxed_local();
        }
        let (reply, answer) = oneshot::channel();
        match inner.pool.try_take(length as usize) {
            Ok(buffer) => {
                inner.enqueue(qos, Body::Read { offset, buffer, reply });
                answer.map(heard).boxed_local()
            }
            Err(TakeError::Exhausted { .. }) => {
                let inner = Rc::clone(inner);
                async move {
                    let buffer = inner.wait_for_memory(length as usize).await?;
                    inner.enqueue(qos, Body::Read { offset, buffer, reply });
                    answer.map(heard).await
                }
                .boxed_local()
            }
            Err(error) => ready(Err(error.into())).boxed_local(),
        }
    }

    fn write(&self, write: Write) -> LocalBoxFuture<'static, io::Result<()>> {
        let inner = &self.inner;
        let Write { offset, data, durability, qos } = write;
        if let Err(error) = check_io(&inner.info, offset, data.len()) {
            return ready(Err(error.into())).boxed_local();
        }
        let durable = durability == Durability::Durable;
        inner.durable.set(inner.durable.get() + u32::from(durable));
        let (reply, answer) = oneshot::channel();
        if is_aligned(&data, inner.info.block_bytes) {
            inner.enqueue(qos, Body::Write { offset, data, durable, reply });
            return answer.map(heard).boxed_local();
        }
        match inner.pool.try_take(data.len()) {
            Ok(mut buffer) => {
                buffer.copy_from_slice(&data);
                inner.enqueue(qos, Body::Write { offset, data: buffer.freeze(), durable, reply });
            }
            Err(_) => {
                // A task of its own: the write happens even if nobody waits for it.
                let inner = Rc::clone(inner);
                tokio::task::spawn_local(async move {
                    match inner.wait_for_memory(data.len()).await {
                        Ok(mut buffer) => {
                            buffer.copy_from_slice(&data);
                            inner.enqueue(qos, Body::Write { offset, data: buffer.freeze(), durable, reply });
                        }
                        Err(error) => {
                            inner.durable.set(inner.durable.get() - u32::from(durable));
                            drop(reply.send(Err(error)));
                        }
                    }
                });
            }
        }
        answer.map(heard).boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        let inner = &self.inner;
        if !inner.forgets {
            return ready(Ok(())).boxed_local();
        }
        let (reply, answer) = oneshot::channel();
        let starts = inner.commit.borrow_mut().wait(Flushed { write: None, called: RealClock::monotonic(), reply });
        inner.sync_if(starts);
        answer.map(heard).boxed_local()
    }

    fn trim(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, io::Result<()>> {
        let inner = Rc::clone(&self.inner);
        if let Err(error) = check_range(&inner.info, offset, length) {
            return ready(Err(error.into())).boxed_local();
        }
        let Some(discard) = inner.trims.filter(|_| length > 0) else { return ready(Ok(())).boxed_local() };
        let file = match self.file().try_clone() {
            Ok(file) => file,
            Err(error) => return ready(Err(error)).boxed_local(),
        };
        let called = RealClock::monotonic();
        // Discards block for long and have no asynchronous form everywhere.
        let task = tokio::task::spawn_blocking(move || discard_range(&file, discard, offset, length));
        async move {
            let _aside = inner.set_aside();
            let result = task.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            let call = Call { class: QosClass::Reclaim, bytes, called, submitted: called };
            inner.observe(OpKind::Trim, call, result.is_ok());
            result
        }
        .boxed_local()
    }

    fn queued(&self) -> u32 {
        let queue = self.inner.queue.borrow();
        u32::try_from(queue.waiting())
            .unwrap_or(u32::MAX)
            .saturating_add(queue.under_way())
            .saturating_add(self.inner.aside.get())
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice").field("info", &self.inner.info).finish_non_exhaustive()
    }
}

fn discard_range(file: &File, discard: Discard, offset: u64, length: u64) -> io::Result<()> {
    match discard {
        Discard::Disk => crate::sys::discard(file, offset, length),
        Discard::Hole => {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, flags, offset, length)?)
        }
    }
}

/// A completion is a success only if all bytes went.
fn whole(result: io::Result<usize>, bytes: u32, short: io::ErrorKind) -> io::Result<()> {
    match result {
        Ok(count) if count == bytes as usize => Ok(()),
        Ok(count) => Err(io::Error::new(short, format!("the device did {count} of {bytes} bytes"))),
        Err(error) => Err(error),
    }
}

fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

fn heard<T>(answer: Result<io::Result<T>, oneshot::Canceled>) -> io::Result<T> {
    answer.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::BrokenPipe, "the device was closed")))
}
