//! What the store may hold, by what was asked of it and what it answered.

use crate::world::read;
use api_types::chunk::ChunkInfo;
use api_types::limits::READ_BYTES_MAX;
use api_types::unit::ChunkShape;
use api_types::{ChunkId, Epoch, OwnerId};
use bytes::Bytes;
use nodeagent_engine::Engine;
use std::collections::BTreeMap;

/// One chunk, from outside.
pub(crate) struct Expected {
    pub(crate) shape: ChunkShape,
    /// Everything that was ever sent, in order.
    pub(crate) bytes: Vec<u8>,
    /// It is at least so long, unless it is cut.
    pub(crate) acknowledged: u32,
    /// It is exactly so long: an answer or a restart said so.
    pub(crate) exactly: Option<u32>,
    /// The shortest length that a seal without an answer may have cut it at.
    pub(crate) may_be_cut: Option<u32>,
    /// Asked to be deleted; and told that it is.
    pub(crate) delete_asked: bool,
    pub(crate) is_deleted: bool,
    /// A restore has been begun that would make it this long.
    pub(crate) restoring: Option<u32>,
}

impl Expected {
    pub(crate) fn new(shape: ChunkShape) -> Self {
        Expected {
            shape,
            bytes: Vec::new(),
            acknowledged: 0,
            exactly: None,
            may_be_cut: None,
            delete_asked: false,
            is_deleted: false,
            restoring: None,
        }
    }

    fn check(&mut self, found: Option<&ChunkInfo>) {
        let id = self.shape.chunk;
        let Some(found) = found else {
            let may_be_gone = self.delete_asked || (self.acknowledged == 0 && self.exactly.is_none());
            assert!(may_be_gone, "{id} is lost: {} bytes were acknowledged", self.acknowledged);
            // A chunk that was never acknowledged and isn't there must not appear later.
            self.is_deleted = true;
            return;
        };
        assert!(!self.is_deleted, "{id} came back from the dead");
        assert_eq!(found.shape, self.shape);
        assert!(found.sealed, "{id} takes appends after a restart");
        assert!(found.length as usize <= self.bytes.len(), "{id} is longer than what was sent");
        if self.restoring.is_none_or(|length| length != found.length) {
            if let Some(exactly) = self.exactly
                && self.may_be_cut.is_none()
            {
                assert_eq!(found.length, exactly, "{id} changed its length");
            }
            let least = self.acknowledged.min(self.may_be_cut.unwrap_or(u32::MAX)).min(self.exactly.unwrap_or(u32::MAX));
            assert!(found.length >= least, "{id} has {} bytes, {least} were acknowledged", found.length);
        }
        self.acknowledged = found.length;
        self.exactly = Some(found.length);
        self.may_be_cut = None;
        self.restoring = None;
        self.delete_asked = false;
    }
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) chunks: BTreeMap<ChunkId, Expected>,
    /// The highest epoch that an answered seal gave.
    pub(crate) floors: BTreeMap<OwnerId, Epoch>,
    pub(crate) next_id: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Model { next_id: 1, ..Model::default() }
    }

    /// Compares everything that the store holds with what it may hold; what it holds is the truth from here on.
    pub(crate) async fn check(&mut self, engine: &Engine) {
        let infos: BTreeMap<ChunkId, ChunkInfo> =
            engine.infos(ChunkId(0), usize::MAX).into_iter().map(|info| (info.shape.chunk, info)).collect();
        for id in infos.keys() {
            assert!(self.chunks.contains_key(id), "{id} was never asked for");
        }
        for (id, expected) in &mut self.chunks {
            expected.check(infos.get(id));
        }
        for (id, info) in &infos {
            let mut found = Vec::new();
            while found.len() < info.length as usize {
                let length = (info.length - found.len() as u32).min(READ_BYTES_MAX);
                let bytes: Bytes = read(engine, id.0, found.len() as u32, length).await.unwrap();
                found.extend_from_slice(&bytes);
            }
            assert!(found == self.chunks[id].bytes[..found.len()], "{id} holds other bytes than were sent");
        }
        self.check_floors(engine).await;
    }

    async fn check_floors(&mut self, engine: &Engine) {
        for (owner, floor) in self.floors.clone() {
            let id = self.next_id;
            self.next_id += 1;
            let shape = ChunkShape { owner, epoch: Epoch(floor.0 - 1), ..crate::world::shape(id) };
            let unit = crate::world::unit(shape, 0, 100, 0);
            let answer = crate::world::append(engine, shape, 0, &unit).await;
            let is_fenced = matches!(answer, Err(api_types::chunk::Error::Fenced { floor: found }) if found >= floor);
            assert!(is_fenced, "{owner} is fenced at {floor}, but an older append got {answer:?}");
        }
    }
}
