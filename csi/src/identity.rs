//! The Identity service.

use crate::control_plane::ControlPlane;
use crate::proto::identity_server::Identity;
use crate::proto::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability,
    ProbeRequest, ProbeResponse,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// The driver's name, as in a CSIDriver object and a StorageClass's `provisioner`.
pub const DRIVER_NAME: &str = "csi.basalt.storage";

/// How long a probe may look for a leading master.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// See the module. A node process has no control plane: it is ready once it listens.
pub struct IdentityService {
    masters: Option<Arc<dyn ControlPlane>>,
}

impl IdentityService {
    /// `masters` are asked by a probe, if there are any.
    #[must_use]
    pub fn new(masters: Option<Arc<dyn ControlPlane>>) -> Self {
        IdentityService { masters }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(&self, _: Request<GetPluginInfoRequest>) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
        let online = Type::VolumeExpansion(VolumeExpansion { r#type: volume_expansion::Type::Online.into() });
        let capabilities =
            [service(service::Type::ControllerService), service(service::Type::VolumeAccessibilityConstraints), online]
                .into_iter()
                .map(|kind| PluginCapability { r#type: Some(kind) })
                .collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = match &self.masters {
            None => true,
            Some(masters) => tokio::time::timeout(PROBE_LIMIT, masters.is_ready()).await.unwrap_or(false),
        };
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}
