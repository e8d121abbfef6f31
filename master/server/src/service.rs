//! The door: every call of `master.proto`, turned into a command or a read.

use crate::leader::Leader;
use crate::status;
use api_types::master::{Error, Grant, NodeReport, SealChunk, VolumeRecord};
use api_types::{ChunkId, DeviceId, Epoch, NodeName, RequestId, StreamId, VolumeId};
use api_wire::convert::{need, request_id, to_status};
use api_wire::proto::master as pb;
use api_wire::proto::master::get_volume_request::By;
use api_wire::proto::master::master_server::Master;
use master_raft::{Consistency, Group, GroupError};
use master_state::{Body, Command, Entry, NewPool, NewVolume, Reply, State};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Chunks that one grant, look-up or deletion may name.
const CHUNKS_MAX: usize = 4096;

type Answer<T> = Result<Response<T>, Status>;

/// See the module.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) group: Group,
    pub(crate) leader: Arc<Leader>,
}

/// Why a call failed: decided by the state, or not decided.
enum Failed {
    State(Error),
    Group(GroupError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::State(error)
    }
}

impl From<Failed> for Status {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::State(error) => to_status(&error),
            Failed::Group(error) => status::group_failed(&error),
        }
    }
}

impl Service {
    async fn apply(&self, id: &[u8], body: Body) -> Result<Reply, Failed> {
        let request_id = request_id(id)?;
        self.apply_as(request_id, body).await
    }

    async fn apply_as(&self, request_id: RequestId, body: Body) -> Result<Reply, Failed> {
        let command = Command { request_id, at_ms: crate::leader::wall_ms(), seed: rand::random(), body };
        Ok(self.leader.commit(&self.group, command).await.map_err(Failed::Group)?.reply?)
    }

    /// A read that sees everything answered before it, as long as clocks run alike: a stale answer would only cost its
    /// reader a second question.
    async fn read<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, Failed> {
        self.read_at(Consistency::Lease, look).await
    }

    async fn read_at<T>(&self, consistency: Consistency, look: impl FnOnce(&State) -> T) -> Result<T, Failed> {
        self.group.read_barrier(consistency).await.map_err(Failed::Group)?;
        Ok(self.group.read(look))
    }

    async fn apply_volume(&self, id: &[u8], body: Body) -> Answer<pb::VolumeResponse> {
        match self.apply(id, body).await? {
            Reply::Volume(volume) => Ok(volume_response(volume)),
            other => Err(unexpected(&other)),
        }
    }

    async fn apply_entry(&self, id: &[u8], path: &str, body: Body) -> Answer<pb::EntryResponse> {
        match self.apply(id, body).await? {
            Reply::Entry(entry) => Ok(Response::new(pb::EntryResponse { entry: Some(entry_message(last_name(path), entry)) })),
            other => Err(unexpected(&other)),
        }
    }

    /// What every beat and every registration is answered.
    async fn orders(&self, report: NodeReport) -> Answer<pb::NodeOrdersResponse> {
        let lease_ms = self.leader.lease_ms();
        let orders = self
            .read(move |state| api_types::master::NodeOrders {
                orders: state.orders_for(&report.node),
                epochs: state.epochs_of(&report.volumes),
                lease_ms,
            })
            .await?;
        Ok(Response::new(pb::NodeOrdersResponse { orders: Some(orders.into()) }))
    }
}

fn unexpected(reply: &Reply) -> Status {
    Status::internal(format!("the state answered something else than was asked: {reply:?}"))
}

fn volume_response(volume: VolumeRecord) -> Response<pb::VolumeResponse> {
    Response::new(pb::VolumeResponse { volume: Some(volume.into()) })
}

fn entry_message(name: &str, entry: Entry) -> pb::Entry {
    let (directory, stream) = match entry {
        Entry::Directory(id) => (id.0, 0),
        Entry::File(stream) => (0, stream.0),
    };
    pb::Entry { name: name.to_owned(), directory, stream }
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn at_most(count: usize, field: &str) -> Result<(), Failed> {
    if count <= CHUNKS_MAX {
        return Ok(());
    }
    Err(Failed::State(Error::Invalid(format!("field `{field}` names {count} chunks, {CHUNKS_MAX} at most"))))
}

#[tonic::async_trait]
impl Master for Service {
    async fn get_cluster(&self, _: Request<pb::GetClusterRequest>) -> Answer<pb::GetClusterResponse> {
        let cluster = self.read(State::cluster).await?;
        let cluster =
            cluster.ok_or_else(|| Error::Unavailable("the cluster has no name yet".into())).map_err(|e| to_status(&e))?;
        let members = self.group.members().into_iter().map(status::member).collect();
        Ok(Response::new(pb::GetClusterResponse { cluster: cluster.0.to_be_bytes().to_vec(), members }))
    }

    async fn grant_chunks(&self, request: Request<pb::GrantChunksRequest>) -> Answer<pb::GrantChunksResponse> {
        let request = request.into_inner();
        let id = request.request_id.clone();
        let grant = Grant::try_from(request).map_err(Failed::State)?;
        match self.apply(&id, Body::Grant(grant)).await? {
            Reply::Chunks(chunks) => {
                Ok(Response::new(pb::GrantChunksResponse { chunks: chunks.into_iter().map(Into::into).collect() }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn seal_chunk(&self, request: Request<pb::SealChunkRequest>) -> Answer<pb::SealChunkResponse> {
        let request = request.into_inner();
        let id = request.request_id.clone();
        match self.apply(&id, Body::Seal(SealChunk::from(request))).await? {
            Reply::Length(length) => Ok(Response::new(pb::SealChunkResponse { length })),
            other => Err(unexpected(&other)),
        }
    }

    async fn get_stream(&self, request: Request<pb::GetStreamRequest>) -> Answer<pb::GetStreamResponse> {
        let stream = StreamId(request.into_inner().stream);
        // Recovery decides by it which chunks an old owner could have used.
        let record = self.read_at(Consistency::Quorum, move |state| state.stream(stream)).await?.map_err(Failed::State)?;
        Ok(Response::new(pb::GetStreamResponse { stream: Some(record.into()) }))
    }

    async fn locate_chunks(&self, request: Request<pb::LocateChunksRequest>) -> Answer<pb::LocateChunksResponse> {
        let chunks = request.into_inner().chunks;
        at_most(chunks.len(), "chunks")?;
        let records = self.read(move |state| state.locate(chunks.into_iter().map(ChunkId))).await?;
        Ok(Response::new(pb::LocateChunksResponse { chunks: records.into_iter().map(Into::into).collect() }))
    }

    async fn delete_chunks(&self, request: Request<pb::DeleteChunksRequest>) -> Answer<pb::DeleteChunksResponse> {
        let request = request.into_inner();
        at_most(request.chunks.len(), "chunks")?;
        let body = Body::DeleteChunks {
            stream: StreamId(request.stream),
            epoch: Epoch(request.epoch),
            chunks: request.chunks.into_iter().map(ChunkId).collect(),
        };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::DeleteChunksResponse {}))
    }

    async fn report_bad_copy(&self, request: Request<pb::ReportBadCopyRequest>) -> Answer<pb::ReportBadCopyResponse> {
        let request = request.into_inner();
        let id = request.request_id.clone();
        tracing::warn!(chunk = request.chunk, device = request.device, reason = request.reason, "a copy failed its reader");
        self.apply(&id, Body::ReportBadCopy(request.into())).await?;
        Ok(Response::new(pb::ReportBadCopyResponse {}))
    }

    async fn list_devices(&self, _: Request<pb::ListDevicesRequest>) -> Answer<pb::ListDevicesResponse> {
        let devices = self.read(State::devices).await?;
        Ok(Response::new(pb::ListDevicesResponse { devices: devices.into_iter().map(Into::into).collect() }))
    }

    async fn create_volume(&self, request: Request<pb::CreateVolumeRequest>) -> Answer<pb::VolumeResponse> {
        let request = request.into_inner();
        let volume = NewVolume {
            name: request.name,
            size_bytes: request.size_bytes,
            pool: request.pool,
            qos: request.qos.map(Into::into).unwrap_or_default(),
            parameters: request.parameters.into_iter().collect(),
        };
        self.apply_volume(&request.request_id, Body::CreateVolume(volume)).await
    }

    async fn get_volume(&self, request: Request<pb::GetVolumeRequest>) -> Answer<pb::VolumeResponse> {
        let by = need(request.into_inner().by, "by").map_err(Failed::State)?;
        let found = self
            .read(move |state| match by {
                By::Volume(id) => state.volume(VolumeId(id)),
                By::Name(name) => state.volume_by_name(&name),
            })
            .await?;
        Ok(volume_response(found.map_err(Failed::State)?))
    }

    async fn list_volumes(&self, _: Request<pb::ListVolumesRequest>) -> Answer<pb::ListVolumesResponse> {
        let volumes = self.read(State::volumes).await?;
        Ok(Response::new(pb::ListVolumesResponse { volumes: volumes.into_iter().map(Into::into).collect() }))
    }

    async fn delete_volume(&self, request: Request<pb::DeleteVolumeRequest>) -> Answer<pb::DeleteVolumeResponse> {
        let request = request.into_inner();
        let body = Body::DeleteVolume { volume: VolumeId(request.volume), force: request.force };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::DeleteVolumeResponse {}))
    }

    async fn grow_volume(&self, request: Request<pb::GrowVolumeRequest>) -> Answer<pb::VolumeResponse> {
        let request = request.into_inner();
        let body = Body::GrowVolume { volume: VolumeId(request.volume), size_bytes: request.size_bytes };
        self.apply_volume(&request.request_id, body).await
    }

    async fn set_volume_qos(&self, request: Request<pb::SetVolumeQosRequest>) -> Answer<pb::VolumeResponse> {
        let request = request.into_inner();
        let qos = need(request.qos, "qos").map_err(Failed::State)?.into();
        self.apply_volume(&request.request_id, Body::SetQos { volume: VolumeId(request.volume), qos }).await
    }

    async fn publish_volume(&self, request: Request<pb::PublishVolumeRequest>) -> Answer<pb::VolumeResponse> {
        let request = request.into_inner();
        let body = Body::Publish { volume: VolumeId(request.volume), node: NodeName(request.node) };
        self.apply_volume(&request.request_id, body).await
    }

    async fn unpublish_volume(&self, request: Request<pb::UnpublishVolumeRequest>) -> Answer<pb::UnpublishVolumeResponse> {
        let request = request.into_inner();
        let node = (!request.node.is_empty()).then_some(NodeName(request.node));
        self.apply(&request.request_id, Body::Unpublish { volume: VolumeId(request.volume), node }).await?;
        Ok(Response::new(pb::UnpublishVolumeResponse {}))
    }

    async fn open_volume(&self, request: Request<pb::OpenVolumeRequest>) -> Answer<pb::OpenVolumeResponse> {
        let request = request.into_inner();
        let body = Body::OpenVolume { volume: VolumeId(request.volume), node: NodeName(request.node) };
        match self.apply(&request.request_id, body).await? {
            Reply::Lease(lease) => Ok(Response::new(lease.into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn close_volume(&self, request: Request<pb::CloseVolumeRequest>) -> Answer<pb::CloseVolumeResponse> {
        let request = request.into_inner();
        let body = Body::CloseVolume { volume: VolumeId(request.volume), epoch: Epoch(request.epoch) };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::CloseVolumeResponse {}))
    }

    async fn set_root(&self, request: Request<pb::SetRootRequest>) -> Answer<pb::SetRootResponse> {
        let request = request.into_inner();
        let root = need(request.root, "root").map_err(Failed::State)?.into();
        let body = Body::SetRoot { volume: VolumeId(request.volume), epoch: Epoch(request.epoch), root };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::SetRootResponse {}))
    }

    async fn make_directory(&self, request: Request<pb::MakeDirectoryRequest>) -> Answer<pb::EntryResponse> {
        let request = request.into_inner();
        self.apply_entry(&request.request_id, &request.path, Body::MakeDirectory(request.path.clone())).await
    }

    async fn create_file(&self, request: Request<pb::CreateFileRequest>) -> Answer<pb::EntryResponse> {
        let request = request.into_inner();
        let body = Body::CreateFile { path: request.path.clone(), pool: request.pool };
        self.apply_entry(&request.request_id, &request.path, body).await
    }

    async fn open_file(&self, request: Request<pb::OpenFileRequest>) -> Answer<pb::OpenFileResponse> {
        let request = request.into_inner();
        match self.apply(&request.request_id, Body::OpenFile(StreamId(request.stream))).await? {
            Reply::File(lease) => Ok(Response::new(pb::OpenFileResponse {
                epoch: lease.epoch.0,
                replication: Some(lease.replication.into()),
                chunk_bytes: lease.chunk_bytes,
            })),
            other => Err(unexpected(&other)),
        }
    }

    async fn lookup_path(&self, request: Request<pb::LookupPathRequest>) -> Answer<pb::EntryResponse> {
        let path = request.into_inner().path;
        let name = last_name(&path).to_owned();
        let entry = self.read(move |state| state.lookup(&path)).await?.map_err(Failed::State)?;
        Ok(Response::new(pb::EntryResponse { entry: Some(entry_message(&name, entry)) }))
    }

    async fn list_directory(&self, request: Request<pb::ListDirectoryRequest>) -> Answer<pb::ListDirectoryResponse> {
        let request = request.into_inner();
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let names = self.read(move |state| state.list(&request.path, &request.after, limit)).await?.map_err(Failed::State)?;
        let entries = names.into_iter().map(|(name, entry)| entry_message(&name, entry)).collect();
        Ok(Response::new(pb::ListDirectoryResponse { entries }))
    }

    async fn remove_path(&self, request: Request<pb::RemovePathRequest>) -> Answer<pb::RemovePathResponse> {
        let request = request.into_inner();
        self.apply(&request.request_id, Body::Remove(request.path)).await?;
        Ok(Response::new(pb::RemovePathResponse {}))
    }

    async fn create_pool(&self, request: Request<pb::CreatePoolRequest>) -> Answer<pb::PoolResponse> {
        let request = request.into_inner();
        let pool = NewPool {
            name: request.name,
            replication: need(request.replication, "replication").and_then(TryInto::try_into).map_err(Failed::State)?,
            chunk_bytes: request.chunk_bytes,
            failure_domain: request.failure_domain,
        };
        match self.apply(&request.request_id, Body::CreatePool(pool)).await? {
            Reply::Pool(pool) => Ok(Response::new(pb::PoolResponse { pool: Some(pool.into()) })),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_pools(&self, _: Request<pb::ListPoolsRequest>) -> Answer<pb::ListPoolsResponse> {
        let pools = self.read(State::pools).await?;
        Ok(Response::new(pb::ListPoolsResponse { pools: pools.into_iter().map(Into::into).collect() }))
    }

    async fn register_node(&self, request: Request<pb::RegisterNodeRequest>) -> Answer<pb::NodeOrdersResponse> {
        let request = request.into_inner();
        let report: NodeReport = need(request.report, "report").and_then(TryInto::try_into).map_err(Failed::State)?;
        self.apply(&request.request_id, Body::Register(report.clone())).await?;
        self.leader.beat(&report);
        tracing::info!(node = %report.node, devices = report.devices.len(), "a node registered");
        self.orders(report).await
    }

    async fn heartbeat(&self, request: Request<pb::HeartbeatRequest>) -> Answer<pb::NodeOrdersResponse> {
        let report: NodeReport =
            need(request.into_inner().report, "report").and_then(TryInto::try_into).map_err(Failed::State)?;
        let asked = report.clone();
        let news = self.read(move |state| state.news(&asked)).await?.map_err(Failed::State)?;
        self.leader.beat(&report);
        if let Some(body) = news {
            // Not a request that anybody will repeat: the next beat brings whatever got lost.
            self.apply_as(RequestId(0), body).await?;
        }
        self.orders(report).await
    }

    async fn forget_node(&self, request: Request<pb::ForgetNodeRequest>) -> Answer<pb::ForgetNodeResponse> {
        let request = request.into_inner();
        self.apply(&request.request_id, Body::ForgetNode(NodeName(request.node))).await?;
        Ok(Response::new(pb::ForgetNodeResponse {}))
    }

    async fn set_maintenance(&self, request: Request<pb::SetMaintenanceRequest>) -> Answer<pb::SetMaintenanceResponse> {
        let request = request.into_inner();
        let body = Body::SetMaintenance { node: NodeName(request.node), on: request.on };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::SetMaintenanceResponse {}))
    }

    async fn evacuate_device(&self, request: Request<pb::EvacuateDeviceRequest>) -> Answer<pb::EvacuateDeviceResponse> {
        let request = request.into_inner();
        let body = Body::EvacuateDevice { device: DeviceId(request.device), on: request.on };
        self.apply(&request.request_id, body).await?;
        Ok(Response::new(pb::EvacuateDeviceResponse {}))
    }

    async fn remove_device(&self, request: Request<pb::RemoveDeviceRequest>) -> Answer<pb::RemoveDeviceResponse> {
        let request = request.into_inner();
        self.apply(&request.request_id, Body::RemoveDevice(DeviceId(request.device))).await?;
        Ok(Response::new(pb::RemoveDeviceResponse {}))
    }

    async fn check_stop(&self, request: Request<pb::CheckStopRequest>) -> Answer<pb::CheckStopResponse> {
        let node = NodeName(request.into_inner().node);
        // Somebody will stop an agent because of it.
        let check = self.read_at(Consistency::Quorum, move |state| state.stop_check(&node)).await?.map_err(Failed::State)?;
        Ok(Response::new(pb::CheckStopResponse {
            may_stop: check.blockers.is_empty(),
            blockers: check.blockers,
            attached: check.attached.into_iter().map(|volume| volume.0).collect(),
        }))
    }

    async fn get_status(&self, _: Request<pb::GetStatusRequest>) -> Answer<pb::GetStatusResponse> {
        let status = status::status(&self.group, &self.leader);
        Ok(Response::new(pb::GetStatusResponse { status: Some(status) }))
    }

    async fn add_member(&self, request: Request<pb::AddMemberRequest>) -> Answer<pb::MembersResponse> {
        let request = request.into_inner();
        self.group.add_member(request.id, &request.address).await.map_err(Failed::Group)?;
        Ok(self.members())
    }

    async fn remove_member(&self, request: Request<pb::RemoveMemberRequest>) -> Answer<pb::MembersResponse> {
        let request = request.into_inner();
        self.group.remove_member(request.id).await.map_err(Failed::Group)?;
        Ok(self.members())
    }
}

impl Service {
    fn members(&self) -> Response<pb::MembersResponse> {
        let members = self.group.members().into_iter().map(status::member).collect();
        Response::new(pb::MembersResponse { members })
    }
}
