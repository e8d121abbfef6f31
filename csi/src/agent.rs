//! The seam to the agent of the same node.

use crate::error::Error;
use api_types::VolumeId;
use api_wire::proto::attach::attach_client::AttachClient;
use api_wire::proto::attach::{AttachVolumeRequest, DetachVolumeRequest, FrontEnd, ListAttachedRequest, ResizeVolumeRequest};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// The longest the agent may take to open a volume: a crash recovery of its tail included.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// A volume that is attached to this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Which.
    pub volume: VolumeId,
    /// Its kernel device.
    pub device: PathBuf,
    /// Size of the device in bytes.
    pub size_bytes: u64,
}

/// What the node service asks of the agent. Every call is bounded in time and safe to repeat.
#[tonic::async_trait]
pub trait Agent: Send + Sync + 'static {
    /// Opens the volume here, taking it from a node that still has it, and gives it a kernel device; an attached one
    /// answers what it has.
    async fn attach(&self, volume: VolumeId) -> Result<Attached, Error>;
    /// Takes the device away. One that isn't attached is no error.
    async fn detach(&self, volume: VolumeId) -> Result<(), Error>;
    /// Takes a size that the masters recorded over to the device; answers it.
    async fn resize(&self, volume: VolumeId) -> Result<u64, Error>;
    /// The volume, if it is attached here.
    async fn attached(&self, volume: VolumeId) -> Result<Option<Attached>, Error>;
}

/// The real agent, over its unix socket. Connects when asked first, and again after the agent was restarted.
#[derive(Clone, Debug)]
pub struct SocketAgent {
    channel: Channel,
    path: PathBuf,
}

impl SocketAgent {
    /// The agent at this socket. Nothing is sent before the first call. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let socket = path.to_owned();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(socket).await?)) }
        });
        // The address is not used: the connector knows the socket.
        let channel = Endpoint::from_static("http://agent")
            .connect_timeout(Duration::from_secs(2))
            .timeout(CALL_LIMIT)
            .connect_with_connector_lazy(connector);
        SocketAgent { channel, path: path.to_owned() }
    }

    fn client(&self) -> AttachClient<Channel> {
        AttachClient::new(self.channel.clone())
    }

    /// Names the socket where the agent can't be reached: that is what a person must look at.
    fn explain(&self, status: tonic::Status) -> Error {
        match Error::from(status) {
            Error::Unavailable(text) => {
                Error::Unavailable(format!("{text} (socket {}: is `basalt agent` running on this node?)", self.path.display()))
            }
            other => other,
        }
    }
}

#[tonic::async_trait]
impl Agent for SocketAgent {
    async fn attach(&self, volume: VolumeId) -> Result<Attached, Error> {
        let request =
            AttachVolumeRequest { volume: volume.0, front_end: FrontEnd::Unspecified.into(), read_only: false, take_over: true };
        let response = self.client().attach_volume(request).await.map_err(|status| self.explain(status))?;
        let attached = response.into_inner().attached.ok_or_else(|| Error::Host("the agent answered nothing".into()))?;
        if !attached.trouble.is_empty() {
            return Err(Error::Unavailable(format!("volume {volume} does not serve: {}", attached.trouble)));
        }
        Ok(read(attached))
    }

    async fn detach(&self, volume: VolumeId) -> Result<(), Error> {
        let request = DetachVolumeRequest { volume: volume.0, force: false };
        self.client().detach_volume(request).await.map_err(|status| self.explain(status)).map(drop)
    }

    async fn resize(&self, volume: VolumeId) -> Result<u64, Error> {
        let response = self.client().resize_volume(ResizeVolumeRequest { volume: volume.0 }).await;
        Ok(response.map_err(|status| self.explain(status))?.into_inner().size_bytes)
    }

    async fn attached(&self, volume: VolumeId) -> Result<Option<Attached>, Error> {
        let response = self.client().list_attached(ListAttachedRequest {}).await.map_err(|status| self.explain(status))?;
        Ok(response.into_inner().attached.into_iter().find(|attached| attached.volume == volume.0).map(read))
    }
}

fn read(attached: api_wire::proto::attach::Attached) -> Attached {
    Attached { volume: VolumeId(attached.volume), device: PathBuf::from(attached.device_path), size_bytes: attached.size_bytes }
}
