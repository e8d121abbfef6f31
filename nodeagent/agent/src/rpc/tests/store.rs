use api_types::chunk::{Append, ChunkStore, Error, Request, Response, StoreStats};
use api_types::{ChunkId, DeviceId};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;

/// Chunks in memory. While `hold` is set, answers wait until they are released, oldest or newest first.
pub(super) struct MemoryStore {
    device: DeviceId,
    chunks: RefCell<BTreeMap<ChunkId, Vec<u8>>>,
    /// Offsets of appends and reads in the order they came.
    pub(super) arrived: RefCell<Vec<u32>>,
    pub(super) hold: Cell<bool>,
    held: RefCell<VecDeque<oneshot::Sender<()>>>,
}

impl MemoryStore {
    pub(super) fn new(device: DeviceId) -> Self {
        MemoryStore {
            device,
            chunks: RefCell::default(),
            arrived: RefCell::default(),
            hold: Cell::new(false),
            held: RefCell::default(),
        }
    }

    pub(super) fn append_for_test(&self, chunk: u64, bytes: &[u8]) {
        self.chunks.borrow_mut().insert(ChunkId(chunk), bytes.to_vec());
    }

    pub(super) fn asked(&self) -> usize {
        self.arrived.borrow().len()
    }

    pub(super) fn release_oldest(&self) {
        let gate = self.held.borrow_mut().pop_front();
        let _gone = gate.unwrap().send(());
    }

    pub(super) fn release_newest(&self) {
        let gate = self.held.borrow_mut().pop_back();
        let _gone = gate.unwrap().send(());
    }

    fn append(&self, append: &Append) -> Result<Response, Error> {
        let mut chunks = self.chunks.borrow_mut();
        let bytes = chunks.entry(append.chunk).or_default();
        let expected = u32::try_from(bytes.len()).unwrap();
        if append.offset != expected {
            return Err(Error::WrongOffset { expected });
        }
        bytes.extend_from_slice(&append.unit);
        Ok(Response::Append(u32::try_from(bytes.len()).unwrap()))
    }

    fn answer(&self, request: Request) -> Result<Response, Error> {
        match request {
            Request::Append(append) => {
                self.arrived.borrow_mut().push(append.offset);
                self.append(&append)
            }
            Request::Read(read) => {
                self.arrived.borrow_mut().push(read.offset);
                let chunks = self.chunks.borrow();
                let bytes = chunks.get(&read.chunk).ok_or(Error::Unknown)?;
                let end = read.offset as usize + read.length as usize;
                bytes
                    .get(read.offset as usize..end)
                    .map(|part| Response::Read(Bytes::copy_from_slice(part)))
                    .ok_or_else(|| Error::Invalid("read beyond the end".to_owned()))
            }
            Request::Probe => Ok(Response::Probe(StoreStats { chunks: self.chunks.borrow().len() as u64, ..Default::default() })),
            _ => Err(Error::Invalid("not served by this store".to_owned())),
        }
    }
}

impl ChunkStore for MemoryStore {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn serve(&self, request: Request) -> LocalBoxFuture<'static, Result<Response, Error>> {
        let answer = self.answer(request);
        if !self.hold.get() {
            return std::future::ready(answer).boxed_local();
        }
        let (gate, opened) = oneshot::channel();
        self.held.borrow_mut().push_back(gate);
        async move {
            let _dropped = opened.await;
            answer
        }
        .boxed_local()
    }
}
