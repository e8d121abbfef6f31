//! The masters as a data core sees them. The calls run on the control threads, so that gRPC never takes time from a
//! request of a user.

use api_types::master::{
    BadCopy, ChunkRecord, DeviceAddress, Error, Grant, MasterClient, RootPointer, SealChunk, StreamRecord, VolumeLease,
    VolumeRecord,
};
use api_types::{ChunkId, Epoch, NodeName, StreamId, VolumeId};
use api_wire::master_client::MasterConnection;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::future::Future;
use tokio::runtime::Handle;

/// See the module.
pub(crate) struct Masters {
    connection: MasterConnection,
    control: Handle,
}

impl Masters {
    pub(crate) fn new(connection: MasterConnection, control: Handle) -> Self {
        Masters { connection, control }
    }

    /// A volume by its id.
    pub(crate) fn volume(&self, volume: VolumeId) -> LocalBoxFuture<'static, Result<VolumeRecord, Error>> {
        self.run(move |masters| async move { masters.volume(volume).await })
    }

    fn run<T, F, Fut>(&self, call: F) -> LocalBoxFuture<'static, Result<T, Error>>
    where
        T: Send + 'static,
        F: FnOnce(MasterConnection) -> Fut,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let task = self.control.spawn(call(self.connection.clone()));
        async move {
            // The task ends early only when the control threads stop, as the agent does.
            task.await.unwrap_or_else(|error| Err(Error::Unavailable(format!("the agent is stopping: {error}"))))
        }
        .boxed_local()
    }
}

impl MasterClient for Masters {
    fn grant(&self, grant: Grant) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>> {
        self.run(move |masters| async move { masters.grant(grant).await })
    }

    fn seal(&self, seal: SealChunk) -> LocalBoxFuture<'static, Result<u32, Error>> {
        self.run(move |masters| async move { masters.seal(seal).await })
    }

    fn stream(&self, stream: StreamId) -> LocalBoxFuture<'static, Result<StreamRecord, Error>> {
        self.run(move |masters| async move { masters.stream(stream).await })
    }

    fn locate(&self, chunks: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<Vec<ChunkRecord>, Error>> {
        self.run(move |masters| async move { masters.locate(chunks).await })
    }

    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.run(move |masters| async move { masters.delete_chunks(stream, epoch, chunks).await })
    }

    fn report(&self, bad: BadCopy) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.run(move |masters| async move { masters.report(bad).await })
    }

    fn devices(&self) -> LocalBoxFuture<'static, Result<Vec<DeviceAddress>, Error>> {
        self.run(move |masters| async move { masters.devices().await })
    }

    fn open_volume(&self, volume: VolumeId, node: NodeName) -> LocalBoxFuture<'static, Result<VolumeLease, Error>> {
        self.run(move |masters| async move { masters.open_volume(volume, node).await })
    }

    fn close_volume(&self, volume: VolumeId, epoch: Epoch) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.run(move |masters| async move { masters.close_volume(volume, epoch).await })
    }

    fn set_root(&self, volume: VolumeId, epoch: Epoch, root: RootPointer) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.run(move |masters| async move { masters.set_root(volume, epoch, root).await })
    }
}
