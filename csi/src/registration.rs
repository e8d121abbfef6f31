//! Makes this node plugin known to kubelet: a socket in kubelet's folder of plugins, over which kubelet asks for the
//! driver's name and its CSI socket, and answers whether it took the driver. Kubelet watches the folder, so a driver that
//! comes back is found again.

use crate::DRIVER_NAME;
use crate::proto::registration as proto;
use crate::serve::{RunError, listen};
use proto::registration_server::{Registration, RegistrationServer};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Versions of CSI that kubelet may choose from: it compares the major number.
const CSI_VERSIONS: [&str; 1] = ["1.0.0"];

/// The largest request that is read, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The socket's path in kubelet's folder `dir`.
#[must_use]
pub fn socket_in(dir: &Path) -> PathBuf {
    dir.join(format!("{DRIVER_NAME}-reg.sock"))
}

struct Service {
    /// The CSI socket, as kubelet sees its path.
    endpoint: String,
    refusals: mpsc::Sender<String>,
}

/// Serves in kubelet's folder `dir` until `until` is ready. An error when kubelet refuses the driver: its process then
/// ends and is started again, which is what makes kubelet ask again.
pub async fn register(dir: &Path, endpoint: &Path, until: impl Future<Output = ()>) -> Result<(), RunError> {
    let socket = socket_in(dir);
    let listener = listen(&socket).await?;
    let (refusals, mut refused) = mpsc::channel(1);
    let service = Service { endpoint: endpoint.display().to_string(), refusals };
    let server = Server::builder()
        .add_service(RegistrationServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let result = tokio::select! {
        biased;
        Some(why) = refused.recv() => Err(RunError::Refused(why)),
        served = server => served.map_err(RunError::from),
        () = until => Ok(()),
    };
    std::fs::remove_file(&socket).ok();
    result
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<proto::InfoRequest>) -> Result<Response<proto::PluginInfo>, Status> {
        Ok(Response::new(proto::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: CSI_VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::RegistrationStatus>,
    ) -> Result<Response<proto::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("kubelet took the driver");
        } else {
            // Full: a refusal is on its way already.
            self.refusals.try_send(status.error).ok();
        }
        Ok(Response::new(proto::RegistrationStatusResponse {}))
    }
}
