//! A device that does to its user what disks do.
//!
//! Two uses. With a cache of its own ([`Faulty::new`]) it loses, reorders and tears writes at [`Faulty::crash`], for
//! tests and the simulator: driven by [`Clock`] and [`Rng`] only, so a seed repeats it. As a door ([`Faulty::door`]) it
//! is put before a real device and passes everything on, at the price of one atomic load, until a [`FaultPlan`] says
//! otherwise.

mod cache;
mod plan;
#[cfg(test)]
mod tests;

use crate::device::{Device, Durability, Info, Write};
use crate::range::{check_io, check_range};
use api_types::{Clock, QosClass, Rng};
use bytes::{Bytes, BytesMut};
use cache::Cache;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready, try_join_all};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use plan::Fate;
pub use plan::{FaultPlan, Latency, OpKind, Power};

/// Blocks the cache holds before it writes some to the device behind by itself.
const CACHED_BLOCKS_MAX: usize = 16_384;

/// A device that misbehaves as its [`FaultPlan`] says. Clones are handles to the same device.
///
/// Without latency a request is done when it is called, so a crash finds nothing under way; give it latency to see torn
/// writes. Dropping the future of a write that waits lets the write happen at that moment.
pub struct Faulty<D> {
    shared: Rc<Shared<D>>,
}

impl<D> Clone for Faulty<D> {
    fn clone(&self) -> Self {
        Faulty { shared: Rc::clone(&self.shared) }
    }
}

struct Shared<D> {
    inner: D,
    info: Info,
    clock: Rc<dyn Clock>,
    rng: Rc<dyn Rng>,
    plan: FaultPlan,
    state: RefCell<State>,
}

struct State {
    /// `None` for a door.
    cache: Option<Cache>,
    /// Writes that were called and haven't reached cache or disk, by the order of their calls.
    waiting: BTreeMap<u64, Write>,
    calls: u64,
    /// Requests that wait, for [`Device::queued`].
    delayed: u32,
    /// Counts power losses, so that what was under way then isn't answered as if nothing had been.
    crashes: u64,
}

impl<D: Device + 'static> Faulty<D> {
    /// Puts a volatile cache before `inner`: what is written [`Durability::Cached`] can be lost until it is flushed.
    pub fn new(inner: D, clock: Rc<dyn Clock>, rng: Rc<dyn Rng>) -> Self {
        let mut info = inner.info().clone();
        info.volatile_cache = true;
        let cache = Cache::new(info.block_bytes);
        Self::build(inner, info, Some(cache), clock, rng, FaultPlan::new())
    }

    /// Puts nothing but `plan` before `inner`.
    pub fn door(inner: D, clock: Rc<dyn Clock>, rng: Rc<dyn Rng>, plan: FaultPlan) -> Self {
        let info = inner.info().clone();
        Self::build(inner, info, None, clock, rng, plan)
    }

    fn build(inner: D, info: Info, cache: Option<Cache>, clock: Rc<dyn Clock>, rng: Rc<dyn Rng>, plan: FaultPlan) -> Self {
        let state = State { cache, waiting: BTreeMap::new(), calls: 0, delayed: 0, crashes: 0 };
        Faulty { shared: Rc::new(Shared { inner, info, clock, rng, plan, state: RefCell::new(state) }) }
    }

    /// What goes wrong; change it at any time.
    #[must_use]
    pub fn plan(&self) -> &FaultPlan {
        &self.shared.plan
    }

    /// The device behind.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.shared.inner
    }

    /// Every request that starts within `duration` from now takes `extra` more.
    pub fn slow_for(&self, extra: Duration, duration: Duration) {
        self.shared.plan.slow(extra, self.shared.clock.now() + duration);
    }

    /// The power goes and comes back: each block keeps what was durable there or something written later, at random.
    /// Requests under way fail. The device can be used again at once.
    pub fn crash(&self) {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        state.crashes += 1;
        let waiting = std::mem::take(&mut state.waiting);
        if let Some(cache) = &mut state.cache {
            let under_way = waiting.into_values().map(|write| (write.offset, write.data)).collect();
            cache.crash(under_way, self.shared.rng.as_ref());
        }
    }

    /// Flips one random bit of each of `count` random bytes within a range.
    pub fn rot(&self, offset: u64, length: u64, count: u32) {
        for _ in 0..count {
            let at = offset + self.shared.rng.below(length.max(1));
            self.shared.plan.rot(at, 1 << self.shared.rng.below(8));
        }
    }

    /// Runs `work` after what the plan has for this kind of request.
    fn begin<T: 'static>(
        &self,
        kind: OpKind,
        work: impl FnOnce(Rc<Shared<D>>, Fate) -> LocalBoxFuture<'static, io::Result<T>> + 'static,
    ) -> LocalBoxFuture<'static, io::Result<T>> {
        let shared = Rc::clone(&self.shared);
        let fate = shared.plan.decide(kind, shared.clock.now(), shared.rng.as_ref());
        match shared.plan.power() {
            Power::Gone => return ready(Err(gone())).boxed_local(),
            Power::On if fate.delay.is_zero() => return work(shared, fate),
            Power::On | Power::Hung => {}
        }
        let crashes = {
            let mut state = shared.state.borrow_mut();
            state.delayed += 1;
            state.crashes
        };
        let wait = {
            // Time counts from the call, not from the first poll.
            let delay = (!fate.delay.is_zero()).then(|| shared.clock.sleep(fate.delay));
            let plan = shared.plan.clone();
            async move {
                if let Some(delay) = delay {
                    delay.await;
                }
                plan.powered().await;
            }
        };
        let run = {
            let shared = Rc::clone(&shared);
            move || {
                let lost = {
                    let mut state = shared.state.borrow_mut();
                    state.delayed -= 1;
                    state.crashes != crashes
                };
                if lost {
                    return ready(Err(power_lost())).boxed_local();
                }
                match shared.plan.power() {
                    Power::Gone => ready(Err(gone())).boxed_local(),
                    Power::Hung => ready(Err(power_lost())).boxed_local(),
                    Power::On => work(shared, fate),
                }
            }
        };
        Deferred { wait: wait.boxed_local(), run: Some(Box::new(run)), running: None }.boxed_local()
    }
}

impl<D: Device + 'static> Shared<D> {
    fn apply(&self, entry: &Entry<D>, fate: Fate) -> LocalBoxFuture<'static, io::Result<()>> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(write) = state.waiting.remove(&entry.call) else { return ready(Err(power_lost())).boxed_local() };
        let range = write.offset..write.offset + write.data.len() as u64;
        self.plan.healed(range);
        let Some(cache) = &mut state.cache else {
            return if fate.error { ready(Err(failed())).boxed_local() } else { self.inner.write(write) };
        };
        if fate.error {
            cache.put_torn(write.offset, &write.data, self.rng.as_ref());
            return ready(Err(failed())).boxed_local();
        }
        match write.durability {
            Durability::Durable => {
                cache.supersede(write.offset, write.data.len() as u64);
                self.inner.write(write)
            }
            Durability::Cached => {
                cache.put(write.offset, &write.data);
                ready(Ok(())).boxed_local()
            }
        }
    }

    /// Moves everything in the cache to the device behind.
    async fn destage(self: Rc<Self>) -> io::Result<()> {
        let Some(destage) = self.state.borrow().cache.as_ref().map(Cache::destage) else { return Ok(()) };
        let crashes = self.state.borrow().crashes;
        let writes = destage.blocks.iter().map(|(offset, data)| {
            let (offset, data) = (*offset, data.clone());
            self.inner.write(Write { offset, data, durability: Durability::Durable, qos: QosClass::Foreground })
        });
        try_join_all(writes).await?;
        let mut state = self.state.borrow_mut();
        if state.crashes != crashes {
            return Err(power_lost());
        }
        if let Some(cache) = &mut state.cache {
            cache.destaged(&destage);
        }
        Ok(())
    }

    async fn read(self: Rc<Self>, offset: u64, length: u32, qos: QosClass) -> io::Result<Bytes> {
        let end = offset + u64::from(length);
        // Taken before the device is asked: a flush in between moves blocks from here to there.
        let overlay = match &self.state.borrow().cache {
            Some(cache) => cache.overlay(offset, u64::from(length)),
            None => Vec::new(),
        };
        let rotten = self.plan.rotten(offset..end);
        let bytes = self.inner.read(offset, length, qos).await?;
        if overlay.is_empty() && rotten.is_empty() {
            return Ok(bytes);
        }
        let mut bytes = BytesMut::from(bytes.as_ref());
        for (at, part) in overlay {
            let start = (at - offset) as usize;
            bytes[start..start + part.len()].copy_from_slice(&part);
        }
        for (at, bits) in rotten {
            bytes[(at - offset) as usize] ^= bits;
        }
        Ok(bytes.freeze())
    }
}

impl<D: Device + 'static> Device for Faulty<D> {
    fn info(&self) -> &Info {
        &self.shared.info
    }

    fn read(&self, offset: u64, length: u32, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        if self.shared.is_plain() {
            return self.shared.inner.read(offset, length, qos);
        }
        if let Err(error) = check_io(&self.shared.info, offset, length as usize) {
            return ready(Err(error.into())).boxed_local();
        }
        self.begin(OpKind::Read, move |shared, fate| {
            if fate.error { ready(Err(failed())).boxed_local() } else { shared.read(offset, length, qos).boxed_local() }
        })
    }

    fn write(&self, write: Write) -> LocalBoxFuture<'static, io::Result<()>> {
        if self.shared.is_plain() {
            return self.shared.inner.write(write);
        }
        if let Err(error) = check_io(&self.shared.info, write.offset, write.data.len()) {
            return ready(Err(error.into())).boxed_local();
        }
        let (call, full) = {
            let mut state = self.shared.state.borrow_mut();
            state.calls += 1;
            let call = state.calls;
            state.waiting.insert(call, write);
            (call, state.cache.as_ref().is_some_and(|cache| cache.len() > CACHED_BLOCKS_MAX))
        };
        if full {
            // Done for its effect; a device behind that takes its time finishes by itself.
            let _moved = Rc::clone(&self.shared).destage().now_or_never();
        }
        let entry = Entry { shared: Rc::clone(&self.shared), call };
        self.begin(OpKind::Write, move |shared, fate| shared.apply(&entry, fate))
    }

    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        if self.shared.is_plain() {
            return self.shared.inner.flush();
        }
        self.begin(OpKind::Flush, move |shared, fate| {
            if fate.error {
                return ready(Err(failed())).boxed_local();
            }
            async move {
                Rc::clone(&shared).destage().await?;
                shared.inner.flush().await
            }
            .boxed_local()
        })
    }

    fn trim(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, io::Result<()>> {
        if self.shared.is_plain() {
            return self.shared.inner.trim(offset, length);
        }
        if let Err(error) = check_range(&self.shared.info, offset, length) {
            return ready(Err(error.into())).boxed_local();
        }
        self.begin(OpKind::Trim, move |shared, fate| {
            if fate.error {
                return ready(Err(failed())).boxed_local();
            }
            // A disk may ignore a trim, and what it forgets may come back: users must not rely on either.
            if shared.state.borrow().cache.is_some() && shared.rng.below(2) == 0 {
                return ready(Ok(())).boxed_local();
            }
            if let Some(cache) = &mut shared.state.borrow_mut().cache {
                cache.supersede(offset, length);
            }
            shared.plan.healed(offset..offset + length);
            shared.inner.trim(offset, length)
        })
    }

    fn queued(&self) -> u32 {
        self.shared.state.borrow().delayed + self.shared.inner.queued()
    }
}

/// A write in [`State::waiting`], which leaves with the request, whether it was applied or not.
struct Entry<D> {
    shared: Rc<Shared<D>>,
    call: u64,
}

impl<D> Drop for Entry<D> {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().waiting.remove(&self.call);
    }
}

impl<D> Shared<D> {
    /// A door with nothing behind it but the device.
    fn is_plain(&self) -> bool {
        !self.plan.is_active() && self.state.borrow().cache.is_none()
    }
}

impl<D> fmt::Debug for Faulty<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("info", &self.shared.info).field("plan", &self.shared.plan).finish_non_exhaustive()
    }
}

type Run<T> = Box<dyn FnOnce() -> LocalBoxFuture<'static, io::Result<T>>>;

/// A request that waits, then runs; dropped while it waits, it runs at once, for nobody.
struct Deferred<T> {
    wait: LocalBoxFuture<'static, ()>,
    run: Option<Run<T>>,
    running: Option<LocalBoxFuture<'static, io::Result<T>>>,
}

impl<T> Future for Deferred<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.run.is_some() {
            if self.wait.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.running = self.run.take().map(|run| run());
        }
        match &mut self.running {
            Some(running) => running.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Deferred<T> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            drop(run());
        }
    }
}

fn power_lost() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the device lost power while the request was under way")
}

fn failed() -> io::Error {
    // EIO, as a disk's error comes from the kernel.
    io::Error::from_raw_os_error(5)
}

fn gone() -> io::Error {
    // ENODEV.
    io::Error::from_raw_os_error(19)
}
