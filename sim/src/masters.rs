//! The masters: one state behind a slow, sometimes silent and forgetful door.

use crate::clock::Chance;
use crate::world::World;
use api_types::master::{
    BadCopy, ChunkRecord, DeviceAddress, Error, Grant, MasterClient, RootPointer, SealChunk, StreamRecord, VolumeLease,
};
use api_types::{ChunkId, Clock, Epoch, NodeName, RequestId, Rng, StreamId, VolumeId};
use futures::future::LocalBoxFuture;
use master_state::{Body, Command, Reply};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Tries of one call, all with one request id.
const TRIES: u32 = 4;

impl World {
    /// Applies a command, as the leader would.
    pub(crate) fn apply(&self, request_id: Option<u128>, body: Body) -> Result<Reply, Error> {
        let request_id = RequestId(request_id.unwrap_or(0));
        let command = Command { request_id, at_ms: self.time.wall_ms(), seed: self.chance.next_u64(), body };
        self.state.borrow_mut().apply(&command).reply
    }
}

/// A client's door to the masters.
pub(crate) struct Masters {
    pub(crate) world: Weak<World>,
    pub(crate) chance: Rc<Chance>,
}

impl Masters {
    /// Runs `ask` at the masters. Request and answer may be lost; then it is asked again.
    fn call<T: 'static>(
        &self,
        ask: impl Fn(&World, u128) -> Result<T, Error> + 'static,
    ) -> LocalBoxFuture<'static, Result<T, Error>> {
        let (world, chance) = (self.world.clone(), Rc::clone(&self.chance));
        let request_id = (u128::from(chance.next_u64()) << 64) | u128::from(chance.next_u64() | 1);
        Box::pin(async move {
            for _ in 0..TRIES {
                let Some(world) = world.upgrade() else { break };
                let travel = || chance.between(Duration::from_micros(100), Duration::from_millis(4));
                world.time.sleep(travel()).await;
                if world.time.now() < world.leaderless_until.get() || chance.percent(1) {
                    world.time.sleep(Duration::from_millis(250)).await;
                    continue;
                }
                let answer = ask(&world, request_id);
                world.time.sleep(travel()).await;
                if chance.percent(3) {
                    world.time.sleep(Duration::from_millis(250)).await;
                    continue;
                }
                return answer;
            }
            Err(Error::Unavailable("no answer".to_owned()))
        })
    }

    fn change<T: 'static>(
        &self,
        body: Body,
        pick: impl Fn(Reply) -> Option<T> + 'static,
    ) -> LocalBoxFuture<'static, Result<T, Error>> {
        self.call(move |world, request_id| {
            let reply = world.apply(Some(request_id), body.clone())?;
            pick(reply).ok_or_else(|| Error::Invalid("the masters answered something else".to_owned()))
        })
    }
}

impl MasterClient for Masters {
    fn grant(&self, grant: Grant) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>> {
        self.change(Body::Grant(grant), |reply| match reply {
            Reply::Chunks(chunks) => Some(chunks),
            _ => None,
        })
    }

    fn seal(&self, seal: SealChunk) -> LocalBoxFuture<'static, Result<u32, Error>> {
        self.change(Body::Seal(seal), |reply| match reply {
            Reply::Length(length) => Some(length),
            _ => None,
        })
    }

    fn stream(&self, stream: StreamId) -> LocalBoxFuture<'static, Result<StreamRecord, Error>> {
        self.call(move |world, _| world.state.borrow().stream(stream))
    }

    fn locate(&self, chunks: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>> {
        self.call(move |world, _| Ok(world.state.borrow().locate(chunks.iter().copied())))
    }

    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.change(Body::DeleteChunks { stream, epoch, chunks }, |_| Some(()))
    }

    fn report(&self, bad: BadCopy) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.change(Body::ReportBadCopy(bad), |_| Some(()))
    }

    fn devices(&self) -> LocalBoxFuture<'static, Result<Vec<DeviceAddress>, Error>> {
        self.call(|world, _| Ok(world.state.borrow().devices()))
    }

    fn open_volume(&self, volume: VolumeId, node: NodeName) -> LocalBoxFuture<'static, Result<VolumeLease, Error>> {
        self.change(Body::OpenVolume { volume, node }, |reply| match reply {
            Reply::Lease(lease) => Some(lease),
            _ => None,
        })
    }

    fn close_volume(&self, volume: VolumeId, epoch: Epoch) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.change(Body::CloseVolume { volume, epoch }, |_| Some(()))
    }

    fn set_root(&self, volume: VolumeId, epoch: Epoch, root: RootPointer) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.change(Body::SetRoot { volume, epoch, root }, |_| Some(()))
    }
}
