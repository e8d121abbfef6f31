//! Reads requests from `/dev/fuse`, does them on a device and answers each as it finishes.
//!
//! One task reads; after a wake-up it reads until the kernel has no more, so that a busy device costs no wake-ups, and
//! an idle one costs nothing. Reads and writes are tasks of their own when they must wait. Their number and bytes are
//! bounded: at the bound nothing more is read, and the kernel holds its callers back.

#![expect(unsafe_code, reason = "tokio takes a descriptor for readiness only with a promise")]

use super::abi::{self, Attr, AttrOut, EntryOut, FILE, InHeader, InvalInodeOut, OpenOut, OutHeader, ROOT, StatfsOut, WriteOut};
use super::request::{self, Request};
use super::{FILE_NAME, MAX_WRITE};
use crate::adapter::Adapter;
use crate::buffer::AlignedBuf;
use crate::errno::to_errno;
use crate::spawn;
use api_types::limits::BLOCK_BYTES;
use bytes::Bytes;
use futures::FutureExt;
use nix::errno::Errno;
use nix::sys::uio::{readv, writev};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use zerocopy::IntoBytes;

/// The two headers of a write: what precedes its data.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<abi::TransferIn>();
/// The most reads and writes under way. The loop device itself has no more than 128.
const REQUESTS_MAX: usize = 512;
/// The most bytes under way, in pages: 64 MiB.
const BUDGET_PAGES: usize = 16_384;
/// Writes up to this size are copied into a buffer of their own size; longer ones keep the buffer they came in.
const COPY_MAX: usize = 64 << 10;
/// Requests served before others on this core get a turn.
const TURN: u32 = 64;
/// Arguments of requests other than writes that are looked at.
const BODY_MAX: usize = 512;
/// Seconds for which the kernel may believe names and attributes. Nothing changes without our telling it.
const VALID_SECONDS: u64 = 3600;

/// Why a server ended that was asked to.
const STOPPED: &str = "the server was stopped";

/// Serves one mount from one descriptor.
pub(crate) struct Server {
    adapter: Rc<Adapter>,
    read_only: bool,
    /// Answers go here. `None` once closed: not a byte is written after that.
    answers: RefCell<Option<OwnedFd>>,
    requests: Arc<Semaphore>,
    budget: Arc<Semaphore>,
    reading: RefCell<Option<AbortHandle>>,
    /// The reader is to stop when it has started what it read.
    stopping: Cell<bool>,
    stop: Notify,
    ended: RefCell<Option<String>>,
    changed: Notify,
}

impl Server {
    /// Starts to serve. With `resend` the kernel first gives back what an earlier server had read and not answered.
    pub(crate) fn start(fuse: OwnedFd, adapter: Rc<Adapter>, read_only: bool, resend: bool) -> io::Result<Rc<Self>> {
        let answers = fuse.try_clone()?;
        // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives, and the `AsyncFd` owns it.
        let requests = unsafe { AsyncFd::register_with_interest(fuse, Interest::READABLE) }?;
        let server = Rc::new(Server {
            adapter,
            read_only,
            answers: RefCell::new(Some(answers)),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            budget: Arc::new(Semaphore::new(BUDGET_PAGES)),
            reading: RefCell::new(None),
            stopping: Cell::new(false),
            stop: Notify::new(),
            ended: RefCell::new(None),
            changed: Notify::new(),
        });
        if resend {
            server.notify(abi::notify::RESEND, &[])?;
        }
        let reader = Rc::clone(&server);
        let reading = tokio::task::spawn_local(async move {
            let why = reader.read_all(&requests).await;
            reader.end(why);
        });
        *server.reading.borrow_mut() = Some(reading.abort_handle());
        Ok(server)
    }

    /// Another descriptor of the same session, for a new holder. `None` once closed.
    pub(crate) fn descriptor(&self) -> Option<io::Result<OwnedFd>> {
        self.answers.borrow().as_ref().map(OwnedFd::try_clone)
    }

    /// Why it serves no longer, if so.
    pub(crate) fn ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// The device's present size.
    pub(crate) fn size(&self) -> u64 {
        self.adapter.size()
    }

    /// Why the device doesn't serve, as its last answers say.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.adapter.trouble()
    }

    /// Tells the kernel to forget the file's size; it asks again at the next look. A kernel that has never looked, or has
    /// forgotten the file, has nothing to forget: the agent before may have died before it made the loop device.
    pub(crate) fn size_changed(&self) -> io::Result<()> {
        // A negative offset: attributes only, there are no cached pages.
        match self.notify(abi::notify::INVAL_INODE, InvalInodeOut { ino: FILE, offset: -1, length: 0 }.as_bytes()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            told => told,
        }
    }

    /// Reads no more requests, and waits until those that were read are answered. Later ones stay in the kernel.
    pub(crate) async fn drain(&self) {
        self.stopping.set(true);
        self.stop.notify_one();
        // The reader may wait for room to start the last request that it read: it must not be dropped there.
        loop {
            let changed = self.changed.notified();
            if self.ended.borrow().is_some() {
                break;
            }
            changed.await;
        }
        // The semaphore is never closed.
        let _all = self.requests.acquire_many(REQUESTS_MAX as u32).await;
    }

    /// Reads and answers nothing more, at once. What was read stays unanswered in the kernel.
    pub(crate) fn close(&self) {
        if let Some(reading) = self.reading.borrow_mut().take() {
            reading.abort();
        }
        *self.answers.borrow_mut() = None;
        self.end("the server was closed".to_owned());
    }

    fn end(&self, why: String) {
        self.ended.borrow_mut().get_or_insert(why);
        self.changed.notify_waiters();
    }

    async fn read_all(self: &Rc<Self>, fuse: &AsyncFd<OwnedFd>) -> String {
        let mut head = [0; HEAD_BYTES];
        let mut data = AlignedBuf::new(MAX_WRITE as usize);
        loop {
            let readable = tokio::select! {
                biased;
                () = self.stop.notified() => return STOPPED.to_owned(),
                readable = fuse.readable() => readable,
            };
            let mut ready = match readable {
                Ok(ready) => ready,
                Err(error) => return format!("waiting for requests: {error}"),
            };
            let mut turn = 0;
            loop {
                if self.stopping.get() {
                    return STOPPED.to_owned();
                }
                let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(data.as_mut())];
                match readv(fuse.get_ref(), &mut into) {
                    Ok(total) => self.dispatch(&head, &mut data, total).await,
                    Err(Errno::EAGAIN) => {
                        ready.clear_ready();
                        break;
                    }
                    // The caller of a request was killed while it was being read.
                    Err(Errno::ENOENT | Errno::EINTR) => {}
                    Err(Errno::ENODEV | Errno::ECONNABORTED) => return "the mount is gone".to_owned(),
                    Err(errno) => return format!("reading requests: {errno}"),
                }
                turn += 1;
                if turn % TURN == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    async fn dispatch(self: &Rc<Self>, head: &[u8; HEAD_BYTES], data: &mut AlignedBuf, total: usize) {
        let header = match request::header(head, total) {
            Ok(header) => header,
            Err(error) => return tracing::error!(%error, "a fuse request that no kernel sends"),
        };
        if header.unique >> 63 != 0 {
            tracing::debug!(unique = header.unique, opcode = header.opcode, "a request came again");
        }
        // Short arguments are in `head`; longer ones go on in `data`.
        let mut long = [0; BODY_MAX];
        let in_head = &head[size_of::<InHeader>()..total.min(HEAD_BYTES)];
        let body = if total <= HEAD_BYTES || header.opcode == abi::opcode::WRITE {
            in_head
        } else {
            let more = (total - HEAD_BYTES).min(BODY_MAX - in_head.len());
            long[..in_head.len()].copy_from_slice(in_head);
            long[in_head.len()..in_head.len() + more].copy_from_slice(&data.as_ref()[..more]);
            &long[..in_head.len() + more]
        };
        match request::parse(&header, body) {
            Ok(Request::Read { offset, size }) => self.read(&header, offset, size).await,
            Ok(Request::Write { offset, size }) => self.write(&header, offset, size as usize, data).await,
            Ok(Request::Fallocate { offset, length, mode }) => self.fallocate(&header, offset, length, mode).await,
            Ok(other) => self.simple(&header, other),
            Err(error) => {
                tracing::error!(%error, "a fuse request that no kernel sends");
                self.answer(header.unique, Err(libc::EINVAL));
            }
        }
    }

    /// What is answered without asking the device.
    fn simple(&self, header: &InHeader, request: Request<'_>) {
        let unique = header.unique;
        match request {
            Request::Silent => {}
            Request::Lookup { name } if header.node == ROOT && name == FILE_NAME.as_bytes() => {
                let entry = EntryOut {
                    node: FILE,
                    generation: 1,
                    entry_valid: VALID_SECONDS,
                    attr_valid: VALID_SECONDS,
                    entry_valid_nanos: 0,
                    attr_valid_nanos: 0,
                    attr: self.attr(FILE),
                };
                self.answer(unique, Ok(&[entry.as_bytes()]));
            }
            Request::Lookup { .. } => self.answer(unique, Err(libc::ENOENT)),
            Request::SetAttr { size: Some(size) } if size != self.adapter.size() => self.answer(unique, Err(libc::EPERM)),
            Request::GetAttr | Request::SetAttr { .. } => {
                let out = AttrOut { valid: VALID_SECONDS, valid_nanos: 0, padding: 0, attr: self.attr(header.node) };
                self.answer(unique, Ok(&[out.as_bytes()]));
            }
            Request::Open { flags } if self.read_only && flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 => {
                self.answer(unique, Err(libc::EROFS));
            }
            Request::Open { .. } => {
                let open_flags = abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES | abi::FOPEN_NOFLUSH;
                self.answer(unique, Ok(&[OpenOut { fh: 1, open_flags, padding: 0 }.as_bytes()]));
            }
            Request::Statfs => {
                let out = StatfsOut {
                    blocks: self.adapter.size() / u64::from(BLOCK_BYTES),
                    files: 1,
                    bsize: BLOCK_BYTES,
                    frsize: BLOCK_BYTES,
                    namelen: 255,
                    ..StatfsOut::default()
                };
                self.answer(unique, Ok(&[out.as_bytes()]));
            }
            // Nobody lists the directory; it is empty to those who try.
            Request::ReadDir { .. } => self.answer(unique, Ok(&[])),
            // An open directory has a handle, as a file has; what releases it has no answer but success.
            Request::Acknowledge if header.opcode == abi::opcode::OPENDIR => {
                self.answer(unique, Ok(&[OpenOut { fh: 2, open_flags: 0, padding: 0 }.as_bytes()]));
            }
            Request::Acknowledge => self.answer(unique, Ok(&[])),
            _ => self.answer(unique, Err(libc::ENOSYS)),
        }
    }

    fn attr(&self, node: u64) -> Attr {
        let directory = node == ROOT;
        let size = if directory { 0 } else { self.adapter.size() };
        let mode = if directory { libc::S_IFDIR | 0o700 } else { libc::S_IFREG | 0o600 };
        Attr { ino: node, size, blocks: size / 512, mode, nlink: 1, blksize: BLOCK_BYTES, ..Attr::default() }
    }

    async fn permits(&self, bytes: usize) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let pages = bytes.div_ceil(4096).min(BUDGET_PAGES) as u32;
        let one = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let bytes = Arc::clone(&self.budget).acquire_many_owned(pages).await.ok()?;
        Some((one, bytes))
    }

    async fn read(self: &Rc<Self>, header: &InHeader, offset: u64, size: u32) {
        let unique = header.unique;
        // The kernel may ask beyond the end of a file; a short answer says where it is.
        let size = u64::from(size).min(self.adapter.size().saturating_sub(offset)) as u32;
        let Some(permits) = self.permits(size as usize).await else { return };
        let server = Rc::clone(self);
        let task = async move {
            let _permits = permits;
            match server.adapter.read(offset, size).await {
                Ok(parts) => {
                    let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                    server.answer(unique, Ok(&parts));
                }
                Err(error) => server.answer(unique, Err(to_errno(&error))),
            }
        };
        spawn::start(task.boxed_local()).await;
    }

    async fn write(self: &Rc<Self>, header: &InHeader, offset: u64, size: usize, data: &mut AlignedBuf) {
        let unique = header.unique;
        if self.read_only {
            return self.answer(unique, Err(libc::EROFS));
        }
        let Some(permits) = self.permits(if size <= COPY_MAX { size } else { MAX_WRITE as usize }).await else { return };
        let payload: Bytes = if size <= COPY_MAX {
            AlignedBuf::copy_of(&data.as_ref()[..size]).freeze()
        } else {
            let mut full = std::mem::replace(data, AlignedBuf::new(MAX_WRITE as usize));
            full.truncate(size);
            full.freeze()
        };
        let server = Rc::clone(self);
        let task = async move {
            let _permits = permits;
            match server.adapter.write(offset, payload).await {
                Ok(()) => server.answer(unique, Ok(&[WriteOut { size: size as u32, padding: 0 }.as_bytes()])),
                Err(error) => server.answer(unique, Err(to_errno(&error))),
            }
        };
        spawn::start(task.boxed_local()).await;
    }

    async fn fallocate(self: &Rc<Self>, header: &InHeader, offset: u64, length: u64, mode: u32) {
        const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        let unique = header.unique;
        let discard = mode == PUNCH;
        if !discard && mode & !(libc::FALLOC_FL_KEEP_SIZE as u32) != ZERO {
            return self.answer(unique, Err(libc::EOPNOTSUPP));
        }
        if self.read_only {
            return self.answer(unique, Err(libc::EROFS));
        }
        let Some(permits) = self.permits(0).await else { return };
        let server = Rc::clone(self);
        let task = async move {
            let _permits = permits;
            let adapter = &server.adapter;
            let done = if discard { adapter.discard(offset, length).await } else { adapter.write_zeroes(offset, length).await };
            match done {
                Ok(()) => server.answer(unique, Ok(&[])),
                Err(error) => server.answer(unique, Err(to_errno(&error))),
            }
        };
        spawn::start(task.boxed_local()).await;
    }

    /// Answers one request. An answer that the kernel refuses is for a request that is gone.
    fn answer(&self, unique: u64, result: Result<&[&[u8]], i32>) {
        let (error, parts) = match result {
            Ok(parts) => (0, parts),
            Err(errno) => (-errno, &[][..]),
        };
        match self.send(error, unique, parts) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENODEV | Errno::EBADF) => {}
            Err(errno) => tracing::error!(%errno, unique, "an answer was refused by the kernel"),
        }
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        self.send(code, 0, &[body]).map_err(io::Error::from)
    }

    fn send(&self, error: i32, unique: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        let answers = self.answers.borrow();
        let Some(fuse) = answers.as_ref() else { return Err(Errno::EBADF) };
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let head = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error, unique };
        let few = [IoSlice::new(head.as_bytes()), IoSlice::new(parts.first().copied().unwrap_or_default())];
        if parts.len() < 2 {
            return writev(fuse.as_fd(), &few[..1 + parts.len()]).map(drop);
        }
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(head.as_bytes()));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        writev(fuse.as_fd(), &slices).map(drop)
    }
}
