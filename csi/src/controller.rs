//! The Controller service: claims become volumes at the masters. Holds no state of its own, so that any number of
//! controllers may come and go.

use crate::capability::Capability;
use crate::control_plane::ControlPlane;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::pending::Pending;
use crate::proto::controller_server::Controller;
use crate::proto::controller_service_capability::{Rpc, Type, rpc};
use crate::proto::{
    self, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};
use crate::sizes;
use crate::topology;
use api_types::master::{Error as MasterError, VolumeRecord};
use api_types::{NodeName, VolumeId};
use api_wire::master_client::CreateVolume;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// The longest a call may hold its key; above the bound of every call to the masters.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// The longest name of a volume, in bytes (a limit of the specification).
const NAME_BYTES_MAX: usize = 128;

/// Key of the publish context that tells a node to mount without writing.
pub(crate) const READ_ONLY_KEY: &str = "readOnly";

/// Key of the volume context that names the filesystem of the StorageClass.
pub(crate) const FILESYSTEM_KEY: &str = "fsType";

/// See the module.
pub struct ControllerService {
    masters: Arc<dyn ControlPlane>,
    pending: Pending,
}

impl ControllerService {
    /// A controller of these masters.
    #[must_use]
    pub fn new(masters: Arc<dyn ControlPlane>) -> Self {
        ControllerService { masters, pending: Pending::default() }
    }

    /// Runs `call` alone for `key`.
    async fn alone<T, F, Fut>(&self, key: String, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn ControlPlane>) -> Fut,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.masters));
        Ok(Response::new(self.pending.run(key, CALL_LIMIT, call).await?))
    }
}

/// A handle as the orchestrator has it. One that isn't ours names a volume that doesn't exist. Read after the other
/// fields: a request that lacks one is wrong whatever volume it is about.
pub(crate) fn volume_id(handle: &str) -> Result<VolumeId, Error> {
    if handle.is_empty() {
        return Err(Error::missing("volume_id"));
    }
    handle.parse().map_err(|_| Error::NotFound(format!("volume {handle}")))
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        if name.is_empty() {
            return Err(Error::missing("name").into());
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::Invalid(format!("name is above {NAME_BYTES_MAX} bytes")).into());
        }
        self.alone(format!("name {name}"), |masters| create(masters, request)).await
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Result<Response<DeleteVolumeResponse>, Status> {
        let volume = match volume_id(&request.into_inner().volume_id) {
            Ok(volume) => volume,
            Err(Error::NotFound(_)) => return Ok(Response::new(DeleteVolumeResponse {})),
            Err(error) => return Err(error.into()),
        };
        self.alone(format!("volume {volume}"), |masters| async move {
            match masters.volume(volume).await {
                Ok(record) => not_in_use(&record)?,
                Err(MasterError::NotFound { .. }) => return Ok(DeleteVolumeResponse {}),
                Err(error) => return Err(error.into()),
            }
            masters.delete(volume).await?;
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.node_id.is_empty() {
            return Err(Error::missing("node_id").into());
        }
        let capability = Capability::parse("volume_capability", request.volume_capability.as_ref())?;
        let volume = volume_id(&request.volume_id)?;
        let node = NodeName(request.node_id);
        let read_only = request.readonly || capability.read_only;
        self.alone(format!("volume {volume}"), |masters| async move {
            let record = masters.volume(volume).await?;
            if !masters.nodes().await?.contains(&node) {
                return Err(Error::NotFound(format!("node {node}")));
            }
            if let Some(other) = record.published.as_ref().filter(|other| **other != node) {
                return Err(Error::Precondition(format!(
                    "volume {volume} is published to node {other}: unpublish it there first"
                )));
            }
            masters.publish(volume, &node).await?;
            let context = read_only.then(|| (READ_ONLY_KEY.to_owned(), "true".to_owned()));
            Ok(ControllerPublishVolumeResponse { publish_context: context.into_iter().collect() })
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = match volume_id(&request.volume_id) {
            Ok(volume) => volume,
            Err(Error::NotFound(_)) => return Ok(Response::new(ControllerUnpublishVolumeResponse {})),
            Err(error) => return Err(error.into()),
        };
        let node = Some(NodeName(request.node_id)).filter(|node| !node.as_str().is_empty());
        self.alone(format!("volume {volume}"), |masters| async move {
            // The masters compare the node and change nothing when the volume belongs to another one by now.
            match masters.unpublish(volume, node.as_ref()).await {
                Ok(()) | Err(MasterError::NotFound { .. }) => Ok(ControllerUnpublishVolumeResponse {}),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(Error::missing("volume_id").into());
        }
        if request.volume_capabilities.is_empty() {
            return Err(Error::missing("volume_capabilities").into());
        }
        let record = self.masters.volume(volume_id(&request.volume_id)?).await.map_err(Error::from)?;
        Ok(Response::new(match unfit(&record, &request) {
            Some(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(proto::validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: HashMap::new(),
                }),
                message: String::new(),
            },
        }))
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let limit = usize::try_from(request.max_entries)
            .map_err(|_| Error::Invalid(format!("max_entries {} is negative", request.max_entries)))?;
        let after = match request.starting_token.as_str() {
            "" => VolumeId(0),
            token => token.parse().map_err(|_| Error::BadToken(token.to_owned()))?,
        };
        let mut records = self.masters.volumes().await.map_err(Error::from)?;
        records.sort_by_key(|record| record.volume);
        records.retain(|record| record.volume > after);
        let mut next_token = String::new();
        if limit > 0 && records.len() > limit {
            records.truncate(limit);
            next_token = records.last().map(|record| record.volume.to_string()).unwrap_or_default();
        }
        let entries = records
            .iter()
            .map(|record| proto::list_volumes_response::Entry {
                volume: Some(describe(record)),
                status: Some(proto::list_volumes_response::VolumeStatus { published_node_ids: published(record) }),
            })
            .collect();
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let parameters = Parameters::parse(&request.parameters)?;
        let fit = request.volume_capabilities.is_empty() || Capability::parse_all(&request.volume_capabilities).is_ok();
        // Any node reaches any pool: the topology asked for changes nothing, and a node without disks has as much as
        // the others.
        let pools = self.masters.pools().await.map_err(Error::from)?;
        let available = pools.iter().find(|pool| fit && pool.name == parameters.pool).map_or(0, |pool| pool.available_bytes);
        let largest = available.min(sizes::SIZE_BYTES_MAX) / sizes::STEP_BYTES * sizes::STEP_BYTES;
        Ok(Response::new(GetCapacityResponse {
            available_capacity: i64::try_from(available).unwrap_or(i64::MAX),
            maximum_volume_size: Some(largest as i64),
            minimum_volume_size: Some(sizes::SIZE_BYTES_MIN as i64),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::PublishUnpublishVolume,
            rpc::Type::ListVolumes,
            rpc::Type::ListVolumesPublishedNodes,
            rpc::Type::GetCapacity,
            rpc::Type::ExpandVolume,
            rpc::Type::GetVolume,
            rpc::Type::SingleNodeMultiWriter,
        ]
        .into_iter()
        .map(|kind| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) })
        .collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let range = request.capacity_range.ok_or_else(|| Error::missing("capacity_range"))?;
        if request.volume_capability.is_some() {
            Capability::parse("volume_capability", request.volume_capability.as_ref())?;
        }
        let volume = volume_id(&request.volume_id)?;
        self.alone(format!("volume {volume}"), |masters| async move {
            let record = masters.volume(volume).await?;
            let size = sizes::choose(Some(&range))?;
            let grown = if size > record.size_bytes {
                masters.grow(volume, size).await?.size_bytes
            } else if sizes::fits(record.size_bytes, Some(&range)) {
                record.size_bytes
            } else {
                return Err(Error::OutOfRange(format!(
                    "volume {volume} has {} bytes, above limit_bytes {}: volumes don't shrink",
                    record.size_bytes, range.limit_bytes
                )));
            };
            // Always: a node may still have the old size, from an expansion whose second half never came.
            Ok(ControllerExpandVolumeResponse { capacity_bytes: grown as i64, node_expansion_required: true })
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let volume = volume_id(&request.into_inner().volume_id)?;
        let record = self.masters.volume(volume).await.map_err(Error::from)?;
        Ok(Response::new(ControllerGetVolumeResponse {
            volume: Some(describe(&record)),
            status: Some(proto::controller_get_volume_response::VolumeStatus { published_node_ids: published(&record) }),
        }))
    }
}

async fn create(masters: Arc<dyn ControlPlane>, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Error> {
    Capability::parse_all(&request.volume_capabilities)?;
    let parameters = Parameters::parse(&request.parameters)?;
    if request.volume_content_source.is_some() {
        return Err(Error::Invalid("volume_content_source is not supported: volumes start empty".into()));
    }
    if !request.mutable_parameters.is_empty() {
        return Err(Error::Invalid("mutable_parameters are not supported: put limits in the StorageClass".into()));
    }
    topology::check(request.accessibility_requirements.as_ref())?;
    let range = request.capacity_range.as_ref();
    let size_bytes = sizes::choose(range)?;
    let record = match masters.volume_named(&request.name).await {
        Ok(record) => record,
        Err(MasterError::NotFound { .. }) => {
            let wanted = CreateVolume {
                name: request.name.clone(),
                size_bytes,
                pool: parameters.pool.clone(),
                qos: parameters.qos,
                parameters: parameters.canonical(),
            };
            match masters.create(wanted).await {
                Ok(record) => record,
                // Another controller was faster.
                Err(MasterError::Conflict(_)) => masters.volume_named(&request.name).await?,
                Err(MasterError::NotFound { what }) => {
                    return Err(Error::Invalid(format!("{what} does not exist: name an existing pool in the StorageClass")));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    if !sizes::fits(record.size_bytes, range) || record.pool != parameters.pool || record.parameters != parameters.canonical() {
        return Err(Error::AlreadyExists(format!(
            "a volume named {} exists with {} bytes in pool {} and parameters {:?}, other than asked",
            record.name, record.size_bytes, record.pool, record.parameters
        )));
    }
    Ok(CreateVolumeResponse { volume: Some(describe(&record)) })
}

fn not_in_use(record: &VolumeRecord) -> Result<(), Error> {
    match record.published.as_ref().or(record.attached.as_ref()) {
        None => Ok(()),
        Some(node) => Err(Error::Precondition(format!("volume {} is in use on node {node}: unpublish it first", record.volume))),
    }
}

/// Why the volume isn't fit for what is asked; `None` when it is.
fn unfit(record: &VolumeRecord, request: &ValidateVolumeCapabilitiesRequest) -> Option<String> {
    if let Err(error) = Capability::parse_all(&request.volume_capabilities) {
        return Some(error.to_string());
    }
    if !request.mutable_parameters.is_empty() {
        return Some("mutable_parameters are not supported".to_owned());
    }
    match Parameters::parse(&request.parameters) {
        Err(error) => Some(error.to_string()),
        Ok(_) if request.parameters.is_empty() => None,
        Ok(parameters) if parameters.pool == record.pool && parameters.canonical() == record.parameters => None,
        Ok(_) => Some(format!("the volume was made in pool {} with other parameters", record.pool)),
    }
}

fn published(record: &VolumeRecord) -> Vec<String> {
    record.published.iter().map(|node| node.0.clone()).collect()
}

fn describe(record: &VolumeRecord) -> proto::Volume {
    let filesystem = record.parameters.get("fsType").map(|name| (FILESYSTEM_KEY.to_owned(), name.clone()));
    proto::Volume {
        capacity_bytes: record.size_bytes as i64,
        volume_id: record.volume.to_string(),
        volume_context: filesystem.into_iter().collect(),
        content_source: None,
        accessible_topology: vec![topology::anywhere()],
    }
}
