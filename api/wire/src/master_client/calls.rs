//! One method for each call, in the words of `api_types::master`.

use super::{MasterConnection, new_request_id};
use crate::convert::{all, cluster_id, need};
use crate::proto::master as pb;
use api_types::master::{
    BadCopy, ChunkRecord, DeviceAddress, Error, Grant, NodeOrders, NodeReport, PoolRecord, QosLimits, Replication, RootPointer,
    SealChunk, StreamRecord, VolumeLease, VolumeRecord,
};
use api_types::{ChunkId, ClusterId, DeviceId, Epoch, NodeName, StreamId, VolumeId};
use std::collections::BTreeMap;

/// What a new volume shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateVolume {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Size in bytes, a multiple of the block.
    pub size_bytes: u64,
    /// Its pool; empty: `default`.
    pub pool: String,
    /// Foreground limits.
    pub qos: QosLimits,
    /// Remembered, to tell a retry from a conflict.
    pub parameters: BTreeMap<String, String>,
}

fn id() -> Vec<u8> {
    new_request_id().0.to_be_bytes().to_vec()
}

fn volume_of(response: pb::VolumeResponse) -> Result<VolumeRecord, Error> {
    Ok(need(response.volume, "volume")?.into())
}

macro_rules! call {
    ($connection:expr, $method:ident, $request:expr) => {
        $connection.call($request, |mut rpc, request| async move { rpc.$method(request).await }).await
    };
}

impl MasterConnection {
    /// Which cluster this is.
    pub async fn cluster(&self) -> Result<ClusterId, Error> {
        cluster_id(&call!(self, get_cluster, pb::GetClusterRequest {})?.cluster)
    }

    /// Takes chunks at the end of a stream.
    pub async fn grant(&self, grant: Grant) -> Result<Vec<ChunkRecord>, Error> {
        let request = pb::GrantChunksRequest::new(new_request_id(), grant);
        all(call!(self, grant_chunks, request)?.chunks)
    }

    /// Records the length of a chunk for ever; answers the recorded one.
    pub async fn seal(&self, seal: SealChunk) -> Result<u32, Error> {
        let request = pb::SealChunkRequest::new(new_request_id(), seal);
        Ok(call!(self, seal_chunk, request)?.length)
    }

    /// All chunks of a stream.
    pub async fn stream(&self, stream: StreamId) -> Result<StreamRecord, Error> {
        need(call!(self, get_stream, pb::GetStreamRequest { stream: stream.0 })?.stream, "stream")?.try_into()
    }

    /// Where chunks are; those that don't exist are missing.
    pub async fn locate(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkRecord>, Error> {
        let request = pb::LocateChunksRequest { chunks: chunks.into_iter().map(|chunk| chunk.0).collect() };
        all(call!(self, locate_chunks, request)?.chunks)
    }

    /// Gives chunks of a stream back.
    pub async fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> Result<(), Error> {
        let request = pb::DeleteChunksRequest {
            request_id: id(),
            stream: stream.0,
            epoch: epoch.0,
            chunks: chunks.into_iter().map(|chunk| chunk.0).collect(),
        };
        call!(self, delete_chunks, request).map(drop)
    }

    /// Reports a copy that doesn't verify or is missing.
    pub async fn report(&self, bad: BadCopy) -> Result<(), Error> {
        let request = pb::ReportBadCopyRequest::new(new_request_id(), bad);
        call!(self, report_bad_copy, request).map(drop)
    }

    /// Where all devices are.
    pub async fn devices(&self) -> Result<Vec<DeviceAddress>, Error> {
        Ok(call!(self, list_devices, pb::ListDevicesRequest {})?.devices.into_iter().map(Into::into).collect())
    }

    /// Makes a volume. The same again answers the volume that is there; another size or other parameters conflict.
    pub async fn create_volume(&self, volume: CreateVolume) -> Result<VolumeRecord, Error> {
        let request = pb::CreateVolumeRequest {
            request_id: id(),
            name: volume.name,
            size_bytes: volume.size_bytes,
            pool: volume.pool,
            qos: Some(volume.qos.into()),
            parameters: volume.parameters.into_iter().collect(),
        };
        volume_of(call!(self, create_volume, request)?)
    }

    /// A volume by its id.
    pub async fn volume(&self, volume: VolumeId) -> Result<VolumeRecord, Error> {
        let by = Some(pb::get_volume_request::By::Volume(volume.0));
        volume_of(call!(self, get_volume, pb::GetVolumeRequest { by })?)
    }

    /// A volume by its name.
    pub async fn volume_named(&self, name: &str) -> Result<VolumeRecord, Error> {
        let by = Some(pb::get_volume_request::By::Name(name.to_owned()));
        volume_of(call!(self, get_volume, pb::GetVolumeRequest { by })?)
    }

    /// All volumes, by id.
    pub async fn volumes(&self) -> Result<Vec<VolumeRecord>, Error> {
        Ok(call!(self, list_volumes, pb::ListVolumesRequest {})?.volumes.into_iter().map(Into::into).collect())
    }

    /// Removes a volume with all its data. One that is gone is no error.
    pub async fn delete_volume(&self, volume: VolumeId, force: bool) -> Result<(), Error> {
        call!(self, delete_volume, pb::DeleteVolumeRequest { request_id: id(), volume: volume.0, force }).map(drop)
    }

    /// Makes a volume larger; a size below the present one is refused.
    pub async fn grow_volume(&self, volume: VolumeId, size_bytes: u64) -> Result<VolumeRecord, Error> {
        volume_of(call!(self, grow_volume, pb::GrowVolumeRequest { request_id: id(), volume: volume.0, size_bytes })?)
    }

    /// Changes the limits of a volume.
    pub async fn set_volume_qos(&self, volume: VolumeId, qos: QosLimits) -> Result<VolumeRecord, Error> {
        let request = pb::SetVolumeQosRequest { request_id: id(), volume: volume.0, qos: Some(qos.into()) };
        volume_of(call!(self, set_volume_qos, request)?)
    }

    /// Notes the node that may attach a volume; refused while it is another one.
    pub async fn publish_volume(&self, volume: VolumeId, node: &NodeName) -> Result<VolumeRecord, Error> {
        let request = pb::PublishVolumeRequest { request_id: id(), volume: volume.0, node: node.0.clone() };
        volume_of(call!(self, publish_volume, request)?)
    }

    /// Takes that back; does nothing when another node is noted by now. `None`: from wherever it is.
    pub async fn unpublish_volume(&self, volume: VolumeId, node: Option<&NodeName>) -> Result<(), Error> {
        let node = node.map(|node| node.0.clone()).unwrap_or_default();
        call!(self, unpublish_volume, pb::UnpublishVolumeRequest { request_id: id(), volume: volume.0, node }).map(drop)
    }

    /// Becomes the writer of a volume, with the next epoch.
    pub async fn open_volume(&self, volume: VolumeId, node: NodeName) -> Result<VolumeLease, Error> {
        call!(self, open_volume, pb::OpenVolumeRequest { request_id: id(), volume: volume.0, node: node.0.clone() })?.try_into()
    }

    /// Stops being the writer.
    pub async fn close_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<(), Error> {
        call!(self, close_volume, pb::CloseVolumeRequest { request_id: id(), volume: volume.0, epoch: epoch.0 }).map(drop)
    }

    /// Records the newest checkpoint.
    pub async fn set_root(&self, volume: VolumeId, epoch: Epoch, root: RootPointer) -> Result<(), Error> {
        let request = pb::SetRootRequest { request_id: id(), volume: volume.0, epoch: epoch.0, root: Some(root.into()) };
        call!(self, set_root, request).map(drop)
    }

    /// All pools.
    pub async fn pools(&self) -> Result<Vec<PoolRecord>, Error> {
        all(call!(self, list_pools, pb::ListPoolsRequest {})?.pools)
    }

    /// Makes a pool. The same again is no error.
    pub async fn create_pool(
        &self,
        name: &str,
        replication: Replication,
        chunk_bytes: u32,
        failure_domain: &str,
    ) -> Result<PoolRecord, Error> {
        let request = pb::CreatePoolRequest {
            request_id: id(),
            name: name.to_owned(),
            replication: Some(replication.into()),
            chunk_bytes,
            failure_domain: failure_domain.to_owned(),
        };
        need(call!(self, create_pool, request)?.pool, "pool")?.try_into()
    }

    /// Says that a node came up.
    pub async fn register_node(&self, report: NodeReport) -> Result<NodeOrders, Error> {
        let request = pb::RegisterNodeRequest { request_id: id(), report: Some(report.into()) };
        need(call!(self, register_node, request)?.orders, "orders")?.try_into()
    }

    /// Says that a node is alive, and fetches its orders. A node that the masters don't know is
    /// [`Error::NotFound`]: register again.
    pub async fn heartbeat(&self, report: NodeReport) -> Result<NodeOrders, Error> {
        let request = pb::HeartbeatRequest { report: Some(report.into()) };
        need(call!(self, heartbeat, request)?.orders, "orders")?.try_into()
    }

    /// Forgets a node that is gone for good, with its devices.
    pub async fn forget_node(&self, node: &NodeName) -> Result<(), Error> {
        call!(self, forget_node, pb::ForgetNodeRequest { request_id: id(), node: node.0.clone() }).map(drop)
    }

    /// Takes a node out for a while, or back in.
    pub async fn set_maintenance(&self, node: &NodeName, on: bool) -> Result<(), Error> {
        call!(self, set_maintenance, pb::SetMaintenanceRequest { request_id: id(), node: node.0.clone(), on }).map(drop)
    }

    /// Begins to move all copies off a device, or stops doing so.
    pub async fn evacuate_device(&self, device: DeviceId, on: bool) -> Result<(), Error> {
        call!(self, evacuate_device, pb::EvacuateDeviceRequest { request_id: id(), device: device.0, on }).map(drop)
    }

    /// Strikes a device off for good; a conflict while any chunk has a copy on it.
    pub async fn remove_device(&self, device: DeviceId) -> Result<(), Error> {
        call!(self, remove_device, pb::RemoveDeviceRequest { request_id: id(), device: device.0 }).map(drop)
    }

    /// Whether a node's agent may stop now, and what is in the way.
    pub async fn check_stop(&self, node: &NodeName) -> Result<pb::CheckStopResponse, Error> {
        call!(self, check_stop, pb::CheckStopRequest { node: node.0.clone() })
    }

    /// The state of the cluster as the leader has it.
    pub async fn status(&self) -> Result<pb::Status, Error> {
        need(call!(self, get_status, pb::GetStatusRequest {})?.status, "status")
    }

    /// The members after one was added.
    pub async fn add_member(&self, member: u64, address: &str) -> Result<Vec<pb::Member>, Error> {
        Ok(call!(self, add_member, pb::AddMemberRequest { id: member, address: address.to_owned() })?.members)
    }

    /// The members after one was removed.
    pub async fn remove_member(&self, member: u64) -> Result<Vec<pb::Member>, Error> {
        Ok(call!(self, remove_member, pb::RemoveMemberRequest { id: member })?.members)
    }
}
