//! The seam to the masters.

use api_types::master::{Error, PoolRecord, VolumeRecord};
use api_types::{NodeName, VolumeId};
use api_wire::master_client::{CreateVolume, MasterConnection};

/// What the controller asks of the masters. Every call is bounded in time by the implementation and safe to repeat.
#[tonic::async_trait]
pub trait ControlPlane: Send + Sync + 'static {
    /// Makes a volume. The same again answers the volume that is there; the name with other properties is
    /// [`Error::Conflict`].
    async fn create(&self, volume: CreateVolume) -> Result<VolumeRecord, Error>;
    /// The volume, or [`Error::NotFound`].
    async fn volume(&self, volume: VolumeId) -> Result<VolumeRecord, Error>;
    /// The volume of that name, or [`Error::NotFound`].
    async fn volume_named(&self, name: &str) -> Result<VolumeRecord, Error>;
    /// All volumes, by id.
    async fn volumes(&self) -> Result<Vec<VolumeRecord>, Error>;
    /// Removes a volume that isn't attached. One that is gone is no error.
    async fn delete(&self, volume: VolumeId) -> Result<(), Error>;
    /// Makes a volume larger.
    async fn grow(&self, volume: VolumeId, size_bytes: u64) -> Result<VolumeRecord, Error>;
    /// Notes the node that may attach the volume; [`Error::Conflict`] while another one is noted.
    async fn publish(&self, volume: VolumeId, node: &NodeName) -> Result<VolumeRecord, Error>;
    /// Takes that back, unless another node is noted by now. `None`: from wherever it is.
    async fn unpublish(&self, volume: VolumeId, node: Option<&NodeName>) -> Result<(), Error>;
    /// All pools.
    async fn pools(&self) -> Result<Vec<PoolRecord>, Error>;
    /// Names of all nodes.
    async fn nodes(&self) -> Result<Vec<NodeName>, Error>;
    /// Somebody leads.
    async fn is_ready(&self) -> bool;
}

#[tonic::async_trait]
impl ControlPlane for MasterConnection {
    async fn create(&self, volume: CreateVolume) -> Result<VolumeRecord, Error> {
        self.create_volume(volume).await
    }

    async fn volume(&self, volume: VolumeId) -> Result<VolumeRecord, Error> {
        MasterConnection::volume(self, volume).await
    }

    async fn volume_named(&self, name: &str) -> Result<VolumeRecord, Error> {
        MasterConnection::volume_named(self, name).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeRecord>, Error> {
        MasterConnection::volumes(self).await
    }

    async fn delete(&self, volume: VolumeId) -> Result<(), Error> {
        self.delete_volume(volume, false).await
    }

    async fn grow(&self, volume: VolumeId, size_bytes: u64) -> Result<VolumeRecord, Error> {
        self.grow_volume(volume, size_bytes).await
    }

    async fn publish(&self, volume: VolumeId, node: &NodeName) -> Result<VolumeRecord, Error> {
        self.publish_volume(volume, node).await
    }

    async fn unpublish(&self, volume: VolumeId, node: Option<&NodeName>) -> Result<(), Error> {
        self.unpublish_volume(volume, node).await
    }

    async fn pools(&self) -> Result<Vec<PoolRecord>, Error> {
        MasterConnection::pools(self).await
    }

    async fn nodes(&self) -> Result<Vec<NodeName>, Error> {
        Ok(self.status().await?.nodes.into_iter().map(|node| NodeName(node.node)).collect())
    }

    async fn is_ready(&self) -> bool {
        self.cluster().await.is_ok()
    }
}
