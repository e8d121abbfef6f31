//! The Node service: puts volumes of the agent under the folders of pods. What is true is in the kernel's table of
//! mounts and at the agent; every call looks there first and does what is missing, so that a call that was broken off
//! anywhere is finished by its retry.

mod expand;
mod publish;
mod stage;
mod stats;

use crate::agent::Agent;
use crate::capability::Capability;
use crate::controller::{FILESYSTEM_KEY, READ_ONLY_KEY, volume_id};
use crate::error::Error;
use crate::host::Host;
use crate::mounts::{self, Mount};
use crate::parameters::Filesystem;
use crate::pending::Pending;
use crate::proto::node_server::Node;
use crate::proto::node_service_capability::{Rpc, Type, rpc};
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use crate::record::Records;
use crate::topology;
use api_types::NodeName;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// The longest a call may hold its volume: above the bounds of the steps it is made of.
const CALL_LIMIT: Duration = Duration::from_secs(2400);

/// The most mounts on top of each other that are taken away in one call.
const STACKED_MAX: usize = 16;

/// What every call of the node service works with.
pub(crate) struct Site {
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) records: Records,
}

/// See the module.
pub struct NodeService {
    site: Arc<Site>,
    pending: Pending,
    node: NodeName,
    labels: BTreeMap<String, String>,
}

/// How a volume is wanted on this node: the capability, with what the contexts of the request add.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) capability: Capability,
    /// Of the StorageClass, for a capability that names none.
    pub(crate) class_filesystem: Option<Filesystem>,
}

impl Wanted {
    fn parse(
        capability: Option<&crate::proto::VolumeCapability>,
        volume_context: &HashMap<String, String>,
        publish_context: &HashMap<String, String>,
    ) -> Result<Self, Error> {
        let mut capability = Capability::parse("volume_capability", capability)?;
        capability.read_only |= publish_context.get(READ_ONLY_KEY).is_some_and(|value| value == "true");
        let class_filesystem =
            volume_context.get(FILESYSTEM_KEY).map(|name| Filesystem::parse("volume_context.fsType", name)).transpose()?;
        Ok(Wanted { capability, class_filesystem })
    }
}

impl NodeService {
    /// The service of node `node`, which works through `agent` and `host` and keeps its notes in `records`.
    #[must_use]
    pub fn new(
        node: NodeName,
        labels: BTreeMap<String, String>,
        agent: Arc<dyn Agent>,
        host: Arc<dyn Host>,
        records: Records,
    ) -> Self {
        NodeService { site: Arc::new(Site { agent, host, records }), pending: Pending::default(), node, labels }
    }

    /// Runs `call` alone for the volume.
    async fn alone<T, F, Fut>(&self, handle: &str, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Site>) -> Fut,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.site));
        Ok(Response::new(self.pending.run(format!("volume {handle}"), CALL_LIMIT, call).await?))
    }
}

/// A path of a request: absolute and without `..`, or an error that names the field.
fn path(field: &str, text: &str) -> Result<PathBuf, Error> {
    if text.is_empty() {
        return Err(Error::missing(field));
    }
    let path = Path::new(text);
    let climbs = path.components().any(|part| matches!(part, std::path::Component::ParentDir));
    if !path.is_absolute() || climbs || text.contains('\0') {
        return Err(Error::Invalid(format!("{field} `{text}` must be an absolute path without `..`")));
    }
    Ok(path.components().collect())
}

impl Site {
    /// The mount that is seen at `target`.
    pub(crate) async fn mount_at(&self, target: &Path) -> Result<Option<Mount>, Error> {
        Ok(mounts::at(&self.host.mounts().await?, target).cloned())
    }

    /// Takes every mount at `target` away. An error as long as one is left: a caller must never hear "done" while
    /// something is mounted.
    pub(crate) async fn clear(&self, target: &Path) -> Result<(), Error> {
        for _ in 0..STACKED_MAX {
            if self.mount_at(target).await?.is_none() {
                return Ok(());
            }
            self.host.unmount(target).await?;
        }
        match self.mount_at(target).await? {
            None => Ok(()),
            Some(mount) => Err(Error::Host(format!("{} is still mounted on {}", mount.source.display(), target.display()))),
        }
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let wanted = Wanted::parse(request.volume_capability.as_ref(), &request.volume_context, &request.publish_context)?;
        let volume = volume_id(&request.volume_id)?;
        self.alone(&request.volume_id, |site| async move {
            stage::stage(&site, volume, &staging, &wanted).await?;
            Ok(NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let volume = unknown_is_none(volume_id(&request.volume_id))?;
        self.alone(&request.volume_id, |site| async move {
            stage::unstage(&site, volume, &staging).await?;
            Ok(NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let target = path("target_path", &request.target_path)?;
        let wanted = Wanted::parse(request.volume_capability.as_ref(), &request.volume_context, &request.publish_context)?;
        if request.staging_target_path.is_empty() {
            return Err(Error::Precondition("staging_target_path is missing: stage the volume first".into()).into());
        }
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let read_only = request.readonly || wanted.capability.read_only;
        let volume = volume_id(&request.volume_id)?;
        self.alone(&request.volume_id, |site| async move {
            publish::publish(&site, volume, &staging, &target, &wanted, read_only).await?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let target = path("target_path", &request.target_path)?;
        unknown_is_none(volume_id(&request.volume_id))?;
        self.alone(&request.volume_id, |site| async move {
            publish::unpublish(&site, &target).await?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let path = path("volume_path", &request.volume_path)?;
        let volume = volume_id(&request.volume_id)?;
        Ok(Response::new(stats::stats(&self.site, volume, &path).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = path("volume_path", &request.volume_path)?;
        if request.volume_capability.is_some() {
            Capability::parse("volume_capability", request.volume_capability.as_ref())?;
        }
        let range = request.capacity_range;
        let volume = volume_id(&request.volume_id)?;
        self.alone(&request.volume_id, |site| async move {
            let capacity_bytes = expand::expand(&site, volume, &path, range.as_ref()).await? as i64;
            Ok(NodeExpandVolumeResponse { capacity_bytes })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities =
            [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume, rpc::Type::SingleNodeMultiWriter]
                .into_iter()
                .map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) })
                .collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node.0.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(topology::of_node(self.node.as_str(), &self.labels)),
        }))
    }
}

/// A volume that nobody knows can't be mounted: taking it away succeeds.
fn unknown_is_none<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
