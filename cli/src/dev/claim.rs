//! A claim as kubelet and the CSI sidecars make it: create, publish, stage, publish to the pod; and the way back.

use anyhow::{Context, Result};
use csi::proto::controller_client::ControllerClient;
use csi::proto::identity_client::IdentityClient;
use csi::proto::node_client::NodeClient;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use csi::proto::{
    CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ProbeRequest,
    VolumeCapability,
};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// The longest a call may take; mkfs of a large volume is the slowest.
const LIMIT: Duration = Duration::from_secs(120);

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) fs: String,
}

/// What CSI made of it.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) id: String,
    pub(crate) context: HashMap<String, String>,
}

impl Claim {
    fn capability(&self) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
            access_type: Some(AccessType::Mount(MountVolume { fs_type: self.fs.clone(), ..MountVolume::default() })),
        }
    }
}

async fn connect(socket: &Path) -> Result<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    // The address is never used: the connector goes to the socket.
    Endpoint::from_static("http://csi")
        .timeout(LIMIT)
        .connect_with_connector(connector)
        .await
        .context("could not reach the CSI socket")
}

/// The driver answers, and says that it is ready.
pub(crate) async fn probe(socket: &Path) -> Result<()> {
    let answer = IdentityClient::new(connect(socket).await?).probe(ProbeRequest {}).await.context("Probe")?.into_inner();
    anyhow::ensure!(answer.ready.unwrap_or(true), "the CSI driver is not ready yet");
    Ok(())
}

/// CreateVolume.
pub(crate) async fn create(socket: &Path, claim: &Claim) -> Result<Created> {
    let request = CreateVolumeRequest {
        name: claim.name.clone(),
        capacity_range: Some(CapacityRange { required_bytes: i64::try_from(claim.bytes)?, limit_bytes: 0 }),
        volume_capabilities: vec![claim.capability()],
        ..CreateVolumeRequest::default()
    };
    let answer = ControllerClient::new(connect(socket).await?).create_volume(request).await.context("CreateVolume")?.into_inner();
    let volume = answer.volume.context("CreateVolume answered no volume")?;
    Ok(Created { id: volume.volume_id, context: volume.volume_context })
}

/// ControllerPublishVolume, NodeStageVolume, NodePublishVolume. All are idempotent.
pub(crate) async fn mount(
    socket: &Path,
    claim: &Claim,
    created: &Created,
    node: &str,
    staging: &Path,
    target: &Path,
) -> Result<()> {
    let channel = connect(socket).await?;
    let capability = Some(claim.capability());
    let publish = ControllerPublishVolumeRequest {
        volume_id: created.id.clone(),
        node_id: node.to_owned(),
        volume_capability: capability.clone(),
        volume_context: created.context.clone(),
        ..ControllerPublishVolumeRequest::default()
    };
    let published = ControllerClient::new(channel.clone())
        .controller_publish_volume(publish)
        .await
        .context("ControllerPublishVolume")?
        .into_inner();
    std::fs::create_dir_all(staging).with_context(|| format!("could not make {}", staging.display()))?;
    let stage = NodeStageVolumeRequest {
        volume_id: created.id.clone(),
        publish_context: published.publish_context.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: capability.clone(),
        volume_context: created.context.clone(),
        ..NodeStageVolumeRequest::default()
    };
    let mut client = NodeClient::new(channel);
    client.node_stage_volume(stage).await.context("NodeStageVolume")?;
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
    }
    let publish = NodePublishVolumeRequest {
        volume_id: created.id.clone(),
        publish_context: published.publish_context,
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: capability,
        volume_context: created.context.clone(),
        ..NodePublishVolumeRequest::default()
    };
    client.node_publish_volume(publish).await.context("NodePublishVolume")?;
    Ok(())
}

/// NodeUnpublishVolume, NodeUnstageVolume, ControllerUnpublishVolume. All are idempotent.
pub(crate) async fn unmount(socket: &Path, id: &str, node: &str, staging: &Path, target: &Path) -> Result<()> {
    let channel = connect(socket).await?;
    let mut client = NodeClient::new(channel.clone());
    let unpublish = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: target.display().to_string() };
    client.node_unpublish_volume(unpublish).await.context("NodeUnpublishVolume")?;
    let unstage = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: staging.display().to_string() };
    client.node_unstage_volume(unstage).await.context("NodeUnstageVolume")?;
    let unpublish = ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    };
    ControllerClient::new(channel).controller_unpublish_volume(unpublish).await.context("ControllerUnpublishVolume")?;
    Ok(())
}
