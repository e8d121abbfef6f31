//! The way to an agent's unix socket.

use crate::connect::Connection;
use crate::failure::{Failure, Kind};
use anyhow::anyhow;
use api_types::NodeName;
use api_wire::proto::attach::attach_client::AttachClient;
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Where an agent listens when nothing else is said.
const DEFAULT_SOCKET: &str = "/run/basalt/attach.sock";

/// Which agent.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct AgentFlags {
    /// Attach socket of the agent. Default: that of the development cluster's agent, else /run/basalt/attach.sock.
    #[arg(long)]
    pub(crate) socket: Option<PathBuf>,
    /// The agent of this node of a development cluster. Default: its first.
    #[arg(long, conflicts_with = "socket")]
    pub(crate) node: Option<String>,
}

impl AgentFlags {
    /// The socket, where `likely` is the node to prefer when no flag says which.
    pub(crate) fn find(&self, connection: &Connection, likely: Option<&NodeName>) -> Result<PathBuf, Failure> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let agents = connection.known()?.map(|known| known.agents).unwrap_or_default();
        if let Some(node) = &self.node {
            let found = agents.iter().find(|agent| agent.node == *node);
            return found.map(|agent| agent.socket.clone()).ok_or_else(|| {
                Failure::new(Kind::NotFound, anyhow!("no agent of node {node} is known here"))
                    .fix("name its socket with --socket")
            });
        }
        let of_likely = likely.and_then(|node| agents.iter().find(|agent| agent.node == node.as_str()));
        Ok(of_likely.or_else(|| agents.first()).map_or_else(|| PathBuf::from(DEFAULT_SOCKET), |agent| agent.socket.clone()))
    }
}

/// Connects. `limit` bounds each call.
pub(crate) async fn connect(socket: &Path, limit: Duration) -> Result<AttachClient<Channel>, Failure> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) }
    });
    // The address is not used: the connector knows the socket.
    let channel = Endpoint::from_static("http://agent").timeout(limit).connect_with_connector(connector).await;
    let channel = channel.map_err(|error| {
        Failure::new(Kind::Unavailable, error)
            .context(format!("could not reach an agent at {}", socket.display()))
            .fix("start `basalt agent` on this node, or name its socket with --socket")
    })?;
    Ok(AttachClient::new(channel))
}
