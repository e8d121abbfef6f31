//! A disk in memory and a clock, for tests and measurements of front ends.

use crate::front_end::{Context, Unobserved};
use api_types::Clock;
use api_types::limits::BLOCK_BYTES;
use bytes::Bytes;
use client_volume::{BlockDevice, BlockError};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

#[derive(Debug)]
enum Store {
    Memory(RefCell<Vec<u8>>),
    File(File),
}

#[derive(Debug)]
struct Inner {
    store: Store,
    size: Cell<u64>,
    failure: RefCell<Option<BlockError>>,
    held: Cell<bool>,
    waiting: Cell<u32>,
    released: Notify,
    discarded: Cell<u64>,
    zeroed: Cell<u64>,
    written: Cell<u64>,
}

/// A [`BlockDevice`] in memory, or in a file (on tmpfs: memory that outlives the process).
#[derive(Debug, Clone)]
pub struct MemoryBlock(Rc<Inner>);

impl MemoryBlock {
    /// Zeros in memory. `size` is a multiple of the block.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self::with(Store::Memory(RefCell::new(vec![0; size as usize])), size)
    }

    /// The contents of a file, which is created and grown to `size` if it is shorter.
    pub fn file(path: &Path, size: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let size = size.max(file.metadata()?.len());
        file.set_len(size)?;
        Ok(Self::with(Store::File(file), size))
    }

    fn with(store: Store, size: u64) -> Self {
        let inner = Inner {
            store,
            size: Cell::new(size),
            failure: RefCell::new(None),
            held: Cell::new(false),
            waiting: Cell::new(0),
            released: Notify::new(),
            discarded: Cell::new(0),
            zeroed: Cell::new(0),
            written: Cell::new(0),
        };
        MemoryBlock(Rc::new(inner))
    }

    /// As a front end takes it.
    #[must_use]
    pub fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::new(self.clone())
    }

    /// Grows it.
    pub fn grow(&self, size: u64) -> io::Result<()> {
        match &self.0.store {
            Store::Memory(bytes) => bytes.borrow_mut().resize(size as usize, 0),
            Store::File(file) => file.set_len(size)?,
        }
        self.0.size.set(size);
        Ok(())
    }

    /// Every request fails with this from now on; `None` ends it.
    pub fn fail(&self, failure: Option<BlockError>) {
        *self.0.failure.borrow_mut() = failure;
    }

    /// Requests wait until this is called with `false`.
    pub fn hold(&self, held: bool) {
        self.0.held.set(held);
        if !held {
            self.0.released.notify_waiters();
        }
    }

    /// Requests that are held.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.0.waiting.get()
    }

    /// Bytes written, discarded and zeroed so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.0.written.get(), self.0.discarded.get(), self.0.zeroed.get())
    }

    /// What is stored in a range.
    #[must_use]
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.0.load(offset, &mut out).map_or_else(|_| Vec::new(), |()| out)
    }
}

impl Inner {
    fn load(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.store {
            Store::Memory(bytes) => {
                let at = offset as usize;
                out.copy_from_slice(&bytes.borrow()[at..at + out.len()]);
                Ok(())
            }
            Store::File(file) => file.read_exact_at(out, offset),
        }
    }

    fn save(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.store {
            Store::Memory(bytes) => {
                let at = offset as usize;
                bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
                Ok(())
            }
            Store::File(file) => file.write_all_at(data, offset),
        }
    }

    /// Waits while requests are held, then says how the request is to end.
    async fn gate(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        loop {
            let released = self.released.notified();
            if !self.held.get() {
                break;
            }
            self.waiting.set(self.waiting.get() + 1);
            released.await;
            self.waiting.set(self.waiting.get() - 1);
        }
        if let Some(failure) = &*self.failure.borrow() {
            return Err(failure.clone());
        }
        let block = u64::from(BLOCK_BYTES);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) || length == 0 {
            return Err(BlockError::Invalid("not a multiple of the block"));
        }
        if offset + length > self.size.get() {
            return Err(BlockError::Invalid("beyond the end"));
        }
        Ok(())
    }

    fn clear(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let zeros = vec![0; (length as usize).min(1 << 20)];
        let mut at = offset;
        while at < offset + length {
            let n = zeros.len().min((offset + length - at) as usize);
            self.save(at, &zeros[..n]).map_err(unavailable)?;
            at += n as u64;
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function of map_err")]
fn unavailable(error: io::Error) -> BlockError {
    BlockError::Unavailable(error.to_string())
}

impl BlockDevice for MemoryBlock {
    fn size_bytes(&self) -> u64 {
        self.0.size.get()
    }

    fn read(&self, offset: u64, length: u32) -> LocalBoxFuture<'static, Result<Vec<Bytes>, BlockError>> {
        let inner = Rc::clone(&self.0);
        async move {
            inner.gate(offset, length.into()).await?;
            let mut out = vec![0; length as usize];
            inner.load(offset, &mut out).map_err(unavailable)?;
            Ok(vec![Bytes::from(out)])
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        let inner = Rc::clone(&self.0);
        async move {
            inner.gate(offset, data.len() as u64).await?;
            inner.written.set(inner.written.get() + data.len() as u64);
            inner.save(offset, &data).map_err(unavailable)
        }
        .boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        let inner = Rc::clone(&self.0);
        async move { inner.gate(0, BLOCK_BYTES.into()).await }.boxed_local()
    }

    fn discard(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        let inner = Rc::clone(&self.0);
        async move {
            inner.gate(offset, length).await?;
            inner.discarded.set(inner.discarded.get() + length);
            inner.clear(offset, length)
        }
        .boxed_local()
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        let inner = Rc::clone(&self.0);
        async move {
            inner.gate(offset, length).await?;
            inner.zeroed.set(inner.zeroed.get() + length);
            inner.clear(offset, length)
        }
        .boxed_local()
    }
}

/// The real time.
#[derive(Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// Starts at zero now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        RealClock(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }
}

/// A context with the real clock and no observer.
#[must_use]
pub fn context() -> Context {
    Context { clock: Rc::new(RealClock::new()), observer: Rc::new(Unobserved) }
}
