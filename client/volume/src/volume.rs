//! The volume: one owner of a map, three streams and the requests under way.
//!
//! Everything happens on one thread. What decides (`map`, `sequencer`, `chunks`, `bucket`) is synchronous and lives in
//! one [`State`] behind a `RefCell` that is never borrowed across a wait; the files beside this one are the thin
//! asynchronous part: `write`, `read`, `leaves`, `checkpoint`, `reclaim`, `open`.

use crate::bucket::Limiter;
use crate::checkpoint::IndexChunks;
use crate::chunks::Chunks;
use crate::map::Map;
use crate::root::LogState;
use crate::sequencer::Sequencer;
use crate::streams::{Append, Streams};
use crate::write::Waiter;
use crate::{BlockDevice, BlockError, Config, OpenError, PoolSpace, Stats, TraceHook};
use api_types::limits::BLOCK_BYTES;
use api_types::master::{MasterClient, QosLimits, VolumeLease, VolumeStreams};
use api_types::{Clock, Epoch, Rng, VolumeId};
use bytes::Bytes;
use client_stream::Client;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Whether requests are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Open,
    /// No new requests; those under way are finished.
    Closing,
    Closed,
    Fenced,
}

/// One stream's writer, until it is closed or dropped.
#[derive(Default)]
pub(crate) struct Tail(RefCell<Option<Box<dyn Append>>>);

impl Tail {
    /// Starts writing.
    pub(crate) fn put(&self, writer: Box<dyn Append>) {
        *self.0.borrow_mut() = Some(writer);
    }

    /// Runs `act` on the writer; `None` once it is gone.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&dyn Append) -> T) -> Option<T> {
        self.0.borrow().as_deref().map(act)
    }

    fn take(&self) -> Option<Box<dyn Append>> {
        self.0.borrow_mut().take()
    }
}

/// The synchronous part.
pub(crate) struct State {
    pub(crate) map: Map,
    pub(crate) chunks: Chunks,
    pub(crate) index: IndexChunks,
    pub(crate) sequencer: Sequencer,
    pub(crate) limiter: Limiter,
    /// Requests under way.
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    pub(crate) next_request: u64,
    pub(crate) hot: LogState,
    pub(crate) cold: LogState,
    /// Log bytes applied since the freeze of the last durable checkpoint.
    pub(crate) log_bytes: u64,
    /// When the first change since then came.
    pub(crate) dirty_since: Option<Duration>,
    /// Those who wait for a checkpoint of what is in the map now.
    pub(crate) checkpoint_waiters: Vec<oneshot::Sender<bool>>,
    pub(crate) space: Option<PoolSpace>,
    /// The last unit of the hot log that failed since the last durable checkpoint; zero: none.
    pub(crate) failed_sequence: u64,
    /// Sequence of the last unit sent to the cold stream.
    pub(crate) next_cold: u64,
    /// Since when writes find no space.
    pub(crate) starved_since: Option<Duration>,
    /// When chunks were last given back.
    pub(crate) freed_at: Duration,
    /// Log bytes after which reclaim is to look again.
    pub(crate) reclaim_after: u64,
    pub(crate) stats: Stats,
}

/// What all parts of one volume share.
pub(crate) struct Inner {
    pub(crate) streams: Rc<dyn Streams>,
    pub(crate) master: Rc<dyn MasterClient>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) config: Config,
    pub(crate) volume: VolumeId,
    pub(crate) epoch: Epoch,
    pub(crate) names: VolumeStreams,
    pub(crate) chunk_bytes: u32,
    pub(crate) size_bytes: Cell<u64>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) hot: Tail,
    pub(crate) cold: Tail,
    pub(crate) index: Tail,
    pub(crate) state: RefCell<State>,
    pub(crate) trace: RefCell<Option<TraceHook>>,
    /// Requests at the door go on; also tells a closing volume that it is idle.
    pub(crate) door: Notify,
    pub(crate) wake_checkpoint: Notify,
    pub(crate) wake_reclaim: Notify,
    /// One checkpoint at a time.
    pub(crate) checkpointing: tokio::sync::Mutex<()>,
}

impl Inner {
    /// Why a request can't be served, if so.
    pub(crate) fn check_open(&self) -> Result<(), BlockError> {
        match self.phase.get() {
            Phase::Open => Ok(()),
            Phase::Closing | Phase::Closed => Err(BlockError::Closed),
            Phase::Fenced => Err(BlockError::Fenced),
        }
    }

    /// Requests under way go on while the volume closes.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase.get(), Phase::Open | Phase::Closing)
    }

    /// First block and number of blocks of a request.
    pub(crate) fn blocks(&self, offset: u64, length: u64) -> Result<(u64, u64), BlockError> {
        let block = u64::from(BLOCK_BYTES);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(BlockError::Invalid("offset and length must be multiples of 4096"));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes.get()) {
            return Err(BlockError::Invalid("beyond the end of the volume"));
        }
        Ok((offset / block, length / block))
    }

    /// Stops for ever with this answer to everybody.
    pub(crate) fn stop(self: &Rc<Self>, phase: Phase) {
        if !self.is_running() {
            return;
        }
        self.phase.set(phase);
        let error = if phase == Phase::Fenced { BlockError::Fenced } else { BlockError::Closed };
        self.state.borrow_mut().sequencer.fail_all(&error);
        self.drive();
        for tail in [&self.hot, &self.cold, &self.index] {
            drop(tail.take());
        }
        self.state.borrow_mut().checkpoint_waiters.clear();
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.door.notify_waiters();
        self.wake_checkpoint.notify_one();
        self.wake_reclaim.notify_one();
    }
}

/// A volume that is being served. Must be used inside a tokio `LocalSet`. Dropping it stops it where it is, as a crash
/// would; [`Volume::close`] leaves nothing to replay.
pub struct Volume {
    pub(crate) inner: Rc<Inner>,
    /// Reclaim and checkpoints.
    pub(crate) tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Volume {
    /// Recovers the streams of a volume whose lease the caller has taken, replays the tail of its log, and serves.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is served and nothing is lost on an error; opening again is safe.
    pub async fn open(
        client: Client,
        master: Rc<dyn MasterClient>,
        clock: Rc<dyn Clock>,
        rng: Rc<dyn Rng>,
        lease: VolumeLease,
        config: Config,
    ) -> Result<Rc<Volume>, OpenError> {
        Volume::open_on(Rc::new(client), master, clock, &*rng, lease, config).await
    }

    /// [`Volume::open`] on any streams.
    pub(crate) async fn open_on(
        streams: Rc<dyn Streams>,
        master: Rc<dyn MasterClient>,
        clock: Rc<dyn Clock>,
        rng: &dyn Rng,
        lease: VolumeLease,
        config: Config,
    ) -> Result<Rc<Volume>, OpenError> {
        let inner = crate::open::open(streams, master, clock, rng, lease, config).await?;
        let tasks = vec![
            tokio::task::spawn_local(crate::checkpoint::run(inner.clone())),
            tokio::task::spawn_local(crate::reclaim::run(inner.clone())),
        ];
        Ok(Rc::new(Volume { inner, tasks: RefCell::new(tasks) }))
    }

    /// Grows the volume to `bytes`, at once. The same size again is no error.
    ///
    /// # Errors
    /// [`BlockError::Invalid`] when smaller than now, or no multiple of the block.
    pub fn set_size(&self, bytes: u64) -> Result<(), BlockError> {
        if !bytes.is_multiple_of(u64::from(BLOCK_BYTES)) || bytes / u64::from(BLOCK_BYTES) > crate::record::BLOCK_MAX {
            return Err(BlockError::Invalid("size must be a multiple of 4096 and at most 2^56"));
        }
        if bytes < self.inner.size_bytes.get() {
            return Err(BlockError::Invalid("a volume never shrinks"));
        }
        self.inner.size_bytes.set(bytes);
        Ok(())
    }

    /// Changes the limits of foreground requests.
    pub fn set_qos(&self, limits: QosLimits) {
        self.inner.state.borrow_mut().limiter = Limiter::new(limits, self.inner.clock.now());
    }

    /// Tells how full the pool is: sets the pace of reclaim.
    pub fn set_pool_space(&self, space: PoolSpace) {
        self.inner.state.borrow_mut().space = Some(space);
        self.inner.wake_reclaim.notify_one();
    }

    /// Calls `hook` for every request answered from now on; `None` stops it.
    pub fn set_trace(&self, hook: Option<TraceHook>) {
        *self.inner.trace.borrow_mut() = hook;
    }

    /// Stops serving at once: another writer has taken over. Every later request, and every one under way, is answered
    /// with [`BlockError::Fenced`].
    pub fn fence(&self) {
        self.inner.stop(Phase::Fenced);
    }

    /// A newer writer was noticed, or [`Volume::fence`] called.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.inner.phase.get() == Phase::Fenced
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.inner.state.borrow();
        let pace = self.inner.pace(&state);
        Stats {
            live_bytes: state.chunks.live_bytes(),
            dead_bytes: state.chunks.dead_bytes(),
            chunks: state.chunks.len(),
            index_chunks: state.index.len(),
            reclaim_urgency: pace.urgency,
            replay_bytes: state.log_bytes,
            resident_leaves: state.map.resident(),
            ..state.stats
        }
    }

    /// Makes what was written so far part of a durable checkpoint. Nobody has to: it bounds what a crash replays.
    ///
    /// # Errors
    /// [`BlockError::Unavailable`] when it can't be written now.
    pub async fn checkpoint(&self) -> Result<(), BlockError> {
        if self.inner.checkpoint_of_now().await { Ok(()) } else { Err(BlockError::Unavailable("checkpoint failed".to_owned())) }
    }

    /// Hands the volume back: refuses new requests, waits for those under way, writes a checkpoint, closes the streams
    /// and tells the masters.
    ///
    /// # Errors
    /// See [`OpenError`]. The volume is closed either way; after an error the next open replays.
    pub async fn close(&self) -> Result<(), OpenError> {
        let inner = &self.inner;
        match inner.phase.get() {
            Phase::Open => inner.phase.set(Phase::Closing),
            Phase::Fenced => return Err(OpenError::Fenced),
            Phase::Closing | Phase::Closed => return Ok(()),
        }
        inner.wake_all();
        while inner.is_running() && !inner.state.borrow().sequencer.is_idle() {
            inner.door.notified().await;
        }
        inner.wake_all();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            let _ = task.await;
        }
        let mut result = Ok(());
        if inner.is_running() && inner.state.borrow().dirty_since.is_some() {
            result = crate::checkpoint::checkpoint(inner).await.map_err(OpenError::from);
        }
        for tail in [&inner.hot, &inner.cold, &inner.index] {
            let writer = tail.take();
            if let Some(writer) = writer {
                let closed = writer.close().await.map_err(OpenError::from);
                result = result.and(closed);
            }
        }
        if inner.phase.get() == Phase::Fenced {
            return Err(OpenError::Fenced);
        }
        inner.phase.set(Phase::Closed);
        inner.state.borrow_mut().checkpoint_waiters.clear();
        inner.wake_all();
        result?;
        Ok(inner.master.close_volume(inner.volume, inner.epoch).await?)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.inner.stop(Phase::Closed);
    }
}

impl BlockDevice for Volume {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes.get()
    }

    fn read(&self, offset: u64, length: u32) -> LocalBoxFuture<'static, Result<Vec<Bytes>, BlockError>> {
        crate::read::read(self.inner.clone(), offset, length).boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        self.inner.write(offset, data)
    }

    fn flush(&self) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        let inner = self.inner.clone();
        async move { inner.flush() }.boxed_local()
    }

    fn discard(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        self.inner.forget(offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        self.inner.forget(offset, length)
    }
}
