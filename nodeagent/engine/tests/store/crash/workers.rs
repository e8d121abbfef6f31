//! Those who use the store until it dies under them.

use super::model::{Expected, Model};
use crate::world::{MIB, append_request, unit};
use api_types::chunk::{ChunkStore, Error, Request, Response, Seal, Sealed};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, Epoch, OwnerId, Rng};
use bytes::Bytes;
use futures::future::join_all;
use nodeagent_engine::Engine;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinHandle;

const WORKERS: u64 = 6;

/// The one handle of the store: taken out, the store dies.
pub(crate) type Slot = Rc<RefCell<Option<Engine>>>;

/// One who does one thing after the other.
struct Worker {
    slot: Slot,
    model: Rc<RefCell<Model>>,
    rng: Rc<dyn Rng>,
    block: u32,
}

/// The store died.
struct Dead;

pub(crate) fn start(slot: &Slot, model: &Rc<RefCell<Model>>, rng: &Rc<dyn Rng>, block: u32) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let worker = Worker { slot: Rc::clone(slot), model: Rc::clone(model), rng: Rc::clone(rng), block };
        tokio::task::spawn_local(async move { while worker.live_one_chunk().await.is_ok() {} })
    };
    (0..WORKERS).map(start).collect()
}

impl Worker {
    fn serve(&self, request: Request) -> Result<impl Future<Output = Result<Response, Error>> + use<>, Dead> {
        Ok(self.slot.borrow().as_ref().ok_or(Dead)?.serve(request))
    }

    fn chance(&self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    /// Makes a chunk, appends to it, ends it somehow; now and then does something to an older one.
    async fn live_one_chunk(&self) -> Result<(), Dead> {
        // A store that refuses everything answers at once: time must go on.
        tokio::time::sleep(Duration::from_micros(self.rng.below(500))).await;
        let shape = self.new_chunk();
        let id = shape.chunk;
        for _ in 0..1 + self.rng.below(12) {
            if !self.append_some(id).await? {
                break;
            }
        }
        if !self.chance(4) {
            self.seal(id).await?;
        }
        match self.rng.below(6) {
            0 | 1 => self.delete(id).await?,
            2 => self.restore_copy(id).await?,
            3 => self.mend_short().await?,
            _ => {}
        }
        let older = self.any_chunk();
        if self.chance(2) || self.is_crowded() {
            self.delete(older).await?;
        } else {
            self.seal(older).await?;
        }
        Ok(())
    }

    fn new_chunk(&self) -> ChunkShape {
        let mut model = self.model.borrow_mut();
        let id = model.next_id;
        model.next_id += 1;
        let owner = OwnerId(1 + self.rng.below(5));
        let floor = model.floors.get(&owner).copied().unwrap_or(Epoch(1));
        let alignment = if self.block == 512 && self.chance(2) { Alignment::B512 } else { Alignment::B4096 };
        let capacity = (1 + self.rng.below(6) as u32) * MIB;
        let shape = ChunkShape { owner, epoch: floor, capacity, alignment, ..crate::world::shape(id) };
        model.chunks.insert(shape.chunk, Expected::new(shape));
        shape
    }

    fn any_chunk(&self) -> ChunkId {
        let model = self.model.borrow();
        let alive: Vec<ChunkId> = model.chunks.iter().filter(|(_, expected)| !expected.is_deleted).map(|(id, _)| *id).collect();
        alive[self.rng.below(alive.len() as u64) as usize]
    }

    fn is_crowded(&self) -> bool {
        self.slot.borrow().as_ref().is_some_and(|engine| engine.stats().store.free_bytes < 12 << 20)
    }

    /// Sends a few units at once. False when the chunk takes no more.
    async fn append_some(&self, id: ChunkId) -> Result<bool, Dead> {
        let mut calls = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            let (shape, unit, start) = {
                let mut model = self.model.borrow_mut();
                let Some(expected) = model.chunks.get_mut(&id) else { return Ok(false) };
                let start = expected.bytes.len() as u32;
                let data_bytes = if self.chance(10) { self.rng.below(500_000) } else { self.rng.below(20_000) } as u32;
                let unit = unit(expected.shape, start, data_bytes, self.rng.below(250) as u8);
                if start + unit.len() as u32 > expected.shape.capacity {
                    break;
                }
                expected.bytes.extend_from_slice(&unit);
                (expected.shape, unit, start)
            };
            calls.push(self.serve(append_request(shape, start, unit))?);
        }
        let mut goes_on = !calls.is_empty();
        for answer in join_all(calls).await {
            let mut model = self.model.borrow_mut();
            let Some(expected) = model.chunks.get_mut(&id) else { return Ok(false) };
            match answer {
                Ok(Response::Append(length)) => expected.acknowledged = expected.acknowledged.max(length),
                Err(Error::Sealed { length }) => {
                    if !expected.is_deleted && !expected.delete_asked {
                        let least = expected.acknowledged.min(expected.may_be_cut.unwrap_or(u32::MAX));
                        assert!(length >= least, "{id} is sealed at {length}, {least} were acknowledged");
                        expected.exactly = Some(length);
                    }
                    goes_on = false;
                }
                Err(Error::Io(_)) if self.slot.borrow().is_none() => return Err(Dead),
                Err(_) => goes_on = false,
                Ok(other) => panic!("{other:?}"),
            }
        }
        Ok(goes_on)
    }

    async fn seal(&self, id: ChunkId) -> Result<(), Dead> {
        let (shape, epoch, length) = {
            let mut model = self.model.borrow_mut();
            let Some(expected) = model.chunks.get_mut(&id) else { return Ok(()) };
            let alignment = u64::from(expected.shape.alignment.bytes());
            let length = match self.rng.below(3) {
                0 => None,
                1 => Some(expected.acknowledged),
                _ => Some((self.rng.below(expected.bytes.len() as u64 / alignment + 2) * alignment) as u32),
            };
            if let Some(length) = length {
                expected.may_be_cut = Some(expected.may_be_cut.unwrap_or(u32::MAX).min(length));
            }
            let shape = expected.shape;
            let floor = model.floors.get(&shape.owner).copied().unwrap_or(shape.epoch);
            let epoch = if self.chance(5) { floor.next() } else { floor };
            (shape, epoch, length)
        };
        let answer = self.serve(Request::Seal(Seal { chunk: id, owner: shape.owner, epoch, length }))?.await;
        if self.slot.borrow().is_none() {
            return Err(Dead);
        }
        let mut model = self.model.borrow_mut();
        if let Ok(Response::Seal(sealed)) = answer {
            let floor = model.floors.entry(shape.owner).or_insert(Epoch(1));
            *floor = (*floor).max(epoch);
            let Some(expected) = model.chunks.get_mut(&id) else { return Ok(()) };
            match sealed {
                Sealed::At(found) => {
                    expected.exactly = Some(found);
                    expected.acknowledged = expected.acknowledged.min(found);
                }
                Sealed::Absent => assert!(
                    expected.acknowledged == 0 || expected.delete_asked || expected.is_deleted,
                    "{id} is absent, {} were acknowledged",
                    expected.acknowledged
                ),
            }
        }
        Ok(())
    }

    async fn delete(&self, id: ChunkId) -> Result<(), Dead> {
        if let Some(expected) = self.model.borrow_mut().chunks.get_mut(&id) {
            expected.delete_asked = true;
        }
        let answer = self.serve(Request::Delete(id))?.await;
        if self.slot.borrow().is_none() {
            return Err(Dead);
        }
        if answer == Ok(Response::Delete)
            && let Some(expected) = self.model.borrow_mut().chunks.get_mut(&id)
        {
            expected.is_deleted = true;
        }
        Ok(())
    }

    /// Brings the bytes of a chunk here a second time, under a name of its own, as repair would.
    async fn restore_copy(&self, id: ChunkId) -> Result<(), Dead> {
        let (shape, bytes) = {
            let mut model = self.model.borrow_mut();
            let shape = ChunkShape { chunk: ChunkId(model.next_id), capacity: 8 * MIB, ..model.chunks[&id].shape };
            model.next_id += 1;
            let mut bytes = Vec::new();
            for _ in 0..self.rng.below(30) {
                let data_bytes = self.rng.below(100_000) as u32;
                bytes.extend_from_slice(&unit(shape, bytes.len() as u32, data_bytes, 9));
            }
            let expected = Expected { bytes: bytes.clone(), restoring: Some(bytes.len() as u32), ..Expected::new(shape) };
            model.chunks.insert(shape.chunk, expected);
            (shape, bytes)
        };
        self.restore(shape, bytes).await
    }

    /// Mends a chunk that ended short of what was sent.
    async fn mend_short(&self) -> Result<(), Dead> {
        let found = {
            let mut model = self.model.borrow_mut();
            let mut short = model.chunks.values_mut().filter(|expected| {
                let is_short = expected.exactly.is_some_and(|length| (length as usize) < expected.bytes.len());
                is_short && !expected.is_deleted && !expected.delete_asked && expected.restoring.is_none()
            });
            short.next().map(|expected| {
                expected.restoring = Some(expected.bytes.len() as u32);
                (expected.shape, expected.bytes.clone())
            })
        };
        match found {
            Some((shape, bytes)) => self.restore(shape, bytes).await,
            None => Ok(()),
        }
    }

    async fn restore(&self, shape: ChunkShape, bytes: Vec<u8>) -> Result<(), Dead> {
        let begin = self.slot.borrow().as_ref().ok_or(Dead)?.restore(shape, bytes.len() as u32);
        let Ok(mut restore) = begin.await else { return Ok(()) };
        let bytes = Bytes::from(bytes);
        let step = shape.alignment.bytes() as usize * (1 + self.rng.below(200) as usize);
        for start in (0..bytes.len()).step_by(step) {
            let piece = bytes.slice(start..bytes.len().min(start + step));
            if restore.write(start as u32, piece).await.is_err() || self.chance(60) {
                return Ok(());
            }
        }
        let finished = restore.finish().await;
        if self.slot.borrow().is_none() {
            return Err(Dead);
        }
        if let Ok(info) = finished
            && let Some(expected) = self.model.borrow_mut().chunks.get_mut(&shape.chunk)
        {
            expected.exactly = Some(info.length);
            expected.acknowledged = info.length;
            expected.may_be_cut = None;
        }
        Ok(())
    }
}
