//! Where chunks are, and on which nodes devices are: remembered, asked for in batches, refreshed when a store says that
//! it doesn't know the chunk.

use crate::Error;
use api_types::master::{ChunkRecord, DeviceAddress, MasterClient};
use api_types::{ChunkId, Clock, DeviceId, StreamId};
use futures::channel::oneshot;
use lru::LruCache;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

type Found = Result<Option<Rc<ChunkRecord>>, Error>;

/// Streams whose chunks were all asked for lately.
const PREFETCHED_MAX: usize = 64;
/// How long a prefetch, and the list of devices, is good for before it may be asked for again.
const REFRESH_WAIT: Duration = Duration::from_secs(2);
/// Most devices remembered.
const DEVICES_MAX: usize = 16_384;

struct State {
    chunks: LruCache<ChunkId, Rc<ChunkRecord>>,
    wanted: BTreeMap<ChunkId, Vec<oneshot::Sender<Found>>>,
    batch_under_way: bool,
    prefetched: LruCache<StreamId, Duration>,
    devices: BTreeMap<DeviceId, DeviceAddress>,
    devices_asked: Option<Duration>,
}

/// See the module.
pub(crate) struct Directory {
    master: Rc<dyn MasterClient>,
    clock: Rc<dyn Clock>,
    batch_max: usize,
    locations_max: usize,
    state: RefCell<State>,
}

impl Directory {
    pub(crate) fn new(master: Rc<dyn MasterClient>, clock: Rc<dyn Clock>, locations_max: usize, batch_max: usize) -> Rc<Self> {
        let size = |size: usize| NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN);
        let state = State {
            chunks: LruCache::new(size(locations_max)),
            wanted: BTreeMap::new(),
            batch_under_way: false,
            prefetched: LruCache::new(size(PREFETCHED_MAX)),
            devices: BTreeMap::new(),
            devices_asked: None,
        };
        Rc::new(Directory { master, clock, batch_max: batch_max.max(1), locations_max, state: RefCell::new(state) })
    }

    /// Remembers where a chunk is.
    pub(crate) fn insert(&self, record: ChunkRecord) {
        self.state.borrow_mut().chunks.put(record.shape.chunk, Rc::new(record));
    }

    /// Forgets where a chunk is: the next read asks the masters.
    pub(crate) fn forget(&self, chunk: ChunkId) {
        self.state.borrow_mut().chunks.pop(&chunk);
    }

    /// Where a chunk is; `None` when it doesn't exist. What several tasks want within one turn of the executor becomes
    /// one question.
    pub(crate) async fn locate(self: &Rc<Self>, chunk: ChunkId) -> Found {
        let answer = {
            let mut state = self.state.borrow_mut();
            if let Some(record) = state.chunks.get(&chunk) {
                return Ok(Some(record.clone()));
            }
            let (sender, receiver) = oneshot::channel();
            state.wanted.entry(chunk).or_default().push(sender);
            if !state.batch_under_way {
                state.batch_under_way = true;
                tokio::task::spawn_local(self.clone().ask_in_batches());
            }
            receiver
        };
        answer.await.unwrap_or(Err(Error::Closed))
    }

    async fn ask_in_batches(self: Rc<Self>) {
        // Everyone who is ready to run now gets to add what it wants.
        tokio::task::yield_now().await;
        loop {
            let batch: Vec<ChunkId> = {
                let mut state = self.state.borrow_mut();
                let batch: Vec<ChunkId> = state.wanted.keys().take(self.batch_max).copied().collect();
                if batch.is_empty() {
                    state.batch_under_way = false;
                    return;
                }
                batch
            };
            let answer = self.master.locate(batch.clone()).await;
            let streams = self.deliver(&batch, answer);
            for stream in streams {
                self.prefetch(stream);
            }
        }
    }

    /// Hands an answer out; returns the streams of the chunks in it.
    fn deliver(&self, batch: &[ChunkId], answer: Result<Vec<ChunkRecord>, api_types::master::Error>) -> Vec<StreamId> {
        let mut state = self.state.borrow_mut();
        let mut found: BTreeMap<ChunkId, Rc<ChunkRecord>> = BTreeMap::new();
        let error = match answer {
            Ok(records) => {
                found.extend(records.into_iter().map(|record| (record.shape.chunk, Rc::new(record))));
                None
            }
            Err(error) => Some(Error::from(error)),
        };
        for chunk in batch {
            let record = found.get(chunk).cloned();
            if let Some(record) = &record {
                state.chunks.put(*chunk, record.clone());
            }
            for waiter in state.wanted.remove(chunk).unwrap_or_default() {
                // Whoever stopped waiting doesn't want it any more.
                let _ = waiter.send(error.clone().map_or_else(|| Ok(record.clone()), Err));
            }
        }
        let mut streams: Vec<StreamId> = found.values().map(|record| record.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Asks for all chunks of a stream: whoever reads one of them soon reads others.
    fn prefetch(self: &Rc<Self>, stream: StreamId) {
        let now = self.clock.now();
        {
            let mut state = self.state.borrow_mut();
            if state.prefetched.get(&stream).is_some_and(|at| now < *at + REFRESH_WAIT) {
                return;
            }
            state.prefetched.put(stream, now);
        }
        let this = self.clone();
        tokio::task::spawn_local(async move {
            let Ok(record) = this.master.stream(stream).await else { return };
            let mut state = this.state.borrow_mut();
            // Half of the memory is kept for what was asked for by name.
            for chunk in record.chunks.into_iter().take(this.locations_max / 2) {
                if !state.chunks.contains(&chunk.shape.chunk) {
                    state.chunks.put(chunk.shape.chunk, Rc::new(chunk));
                }
            }
        });
    }

    /// Node and medium of a device, as far as known. An unknown device starts a look-up that this call doesn't wait for.
    pub(crate) fn device(self: &Rc<Self>, device: DeviceId) -> Option<DeviceAddress> {
        let now = self.clock.now();
        {
            let mut state = self.state.borrow_mut();
            if let Some(address) = state.devices.get(&device) {
                return Some(address.clone());
            }
            if state.devices_asked.is_some_and(|at| now < at + REFRESH_WAIT) {
                return None;
            }
            state.devices_asked = Some(now);
        }
        let this = self.clone();
        tokio::task::spawn_local(async move {
            let Ok(devices) = this.master.devices().await else { return };
            let devices = devices.into_iter().take(DEVICES_MAX).map(|address| (address.device, address));
            this.state.borrow_mut().devices = devices.collect();
        });
        None
    }
}
