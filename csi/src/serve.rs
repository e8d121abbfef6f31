//! The process: flags, the socket, and which services are on it.

use crate::agent::{Agent, SocketAgent};
use crate::control_plane::ControlPlane;
use crate::controller::ControllerService;
use crate::host::{Host, LinuxHost};
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;
use crate::record::Records;
use crate::registration::register;
use api_telemetry::{CallMeter, Operation, table};
use api_types::NodeName;
use api_wire::master_client::{ConnectionOptions, MasterConnection};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

/// The largest request that is read, in bytes.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// How long calls under way may go on after a signal asked the driver to end.
const GOODBYE_LIMIT: Duration = Duration::from_secs(20);

/// Which services a process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Mode {
    /// What needs the masters: one or more in a cluster.
    Controller,
    /// What needs the agent: one on every node.
    Node,
    /// Both, for one machine.
    All,
}

/// Flags of `basalt csi`.
#[derive(Debug, Clone, clap::Args)]
pub struct CsiArgs {
    /// Socket to serve on, as unix:///path.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///run/basalt/csi.sock")]
    pub endpoint: String,
    /// Services to run.
    #[arg(long, value_enum, default_value_t = Mode::All)]
    pub mode: Mode,
    /// Name of this node, as Kubernetes has it. Needed on nodes.
    #[arg(long, env = "BASALT_NODE_NAME")]
    pub node_name: Option<String>,
    /// Masters, as host:port. Needed by the controller.
    #[arg(long, env = "BASALT_MASTERS", value_delimiter = ',')]
    pub masters: Vec<String>,
    /// Attach socket of the agent on this node.
    #[arg(long, default_value = "/run/basalt/attach.sock")]
    pub agent_socket: PathBuf,
    /// Where the node service keeps notes on filesystems being made. Should survive a restart of the node.
    #[arg(long, default_value = "/var/lib/basalt/csi")]
    pub state_dir: PathBuf,
    /// Kubelet's folder of plugins, /var/lib/kubelet/plugins_registry, to make the node service known in. Kubelet must see
    /// the CSI socket under the path of --endpoint. Without it somebody else makes the driver known.
    #[arg(long, env = "BASALT_KUBELET_REGISTRY")]
    pub kubelet_registry: Option<PathBuf>,
    /// Label of this node for the topology, as key=value. May be given several times.
    #[arg(long = "label", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Logs, metrics and traces; set up by whoever calls [`run`].
    #[command(flatten)]
    pub telemetry: api_telemetry::TelemetryArgs,
}

/// Why the driver could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag can't be used; the text names it and the fix.
    #[error("{0}")]
    Flag(String),
    /// The socket can't be served.
    #[error("could not serve on {path}: {source}")]
    Socket {
        /// Which.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Another driver is there.
    #[error("another driver answers on {0}: stop it, or choose another --endpoint")]
    InUse(String),
    /// Kubelet doesn't take the driver.
    #[error("kubelet refused the driver: {0}")]
    Refused(String),
    /// The transport broke.
    #[error("the server stopped")]
    Transport(#[from] tonic::transport::Error),
}

/// The services of a process; tests put their own seams in.
pub struct Services {
    /// Masters, for the controller.
    pub masters: Option<Arc<dyn ControlPlane>>,
    /// The node service.
    pub node: Option<NodeService>,
}

/// Serves what `args.mode` says until SIGTERM or SIGINT.
pub async fn run(args: CsiArgs) -> Result<(), RunError> {
    let masters = match args.mode {
        Mode::Node => None,
        Mode::Controller | Mode::All => {
            let connection = MasterConnection::connect(args.masters.clone(), ConnectionOptions::default())
                .map_err(|error| RunError::Flag(format!("--masters: {error}")))?;
            Some(Arc::new(connection) as Arc<dyn ControlPlane>)
        }
    };
    let node = match args.mode {
        Mode::Controller => None,
        Mode::Node | Mode::All => Some(node_service(&args)?),
    };
    let path = socket_path(&args.endpoint)?;
    tracing::info!(endpoint = %args.endpoint, mode = ?args.mode, "serving CSI");
    let registry = args.kubelet_registry.filter(|_| node.is_some());
    let served = serve(&path, Services { masters, node }, ended_by_signal());
    match registry {
        None => served.await,
        Some(registry) => tokio::select! {
            biased;
            result = served => result,
            // Ends by its own only when kubelet refused, or the socket broke.
            result = register(&registry, &path, std::future::pending()) => result,
        },
    }
}

/// Serves the controller alone; see [`run`].
pub async fn run_controller(args: CsiArgs) -> Result<(), RunError> {
    run(CsiArgs { mode: Mode::Controller, ..args }).await
}

/// Serves the node alone; see [`run`].
pub async fn run_node(args: CsiArgs) -> Result<(), RunError> {
    run(CsiArgs { mode: Mode::Node, ..args }).await
}

fn node_service(args: &CsiArgs) -> Result<NodeService, RunError> {
    let Some(name) = args.node_name.clone().filter(|name| !name.is_empty()) else {
        return Err(RunError::Flag("--node-name is missing: a node service needs the name of its node".into()));
    };
    let records = Records::open(&args.state_dir).map_err(|error| RunError::Flag(format!("--state-dir: {error}")))?;
    let agent: Arc<dyn Agent> = Arc::new(SocketAgent::new(&args.agent_socket));
    let host: Arc<dyn Host> = Arc::new(LinuxHost);
    let labels: BTreeMap<_, _> = args.labels.iter().cloned().collect();
    Ok(NodeService::new(NodeName(name), labels, agent, host, records))
}

/// Serves on a unix socket until `until` is ready.
pub async fn serve(path: &Path, services: Services, until: impl Future<Output = ()>) -> Result<(), RunError> {
    let listener = listen(path).await?;
    let calls = CallMeter::new(&table::CSI_CALLS_TOTAL, Operation::CsiCall);
    let mut router = Server::builder().layer(calls).add_service(
        IdentityServer::new(IdentityService::new(services.masters.clone())).max_decoding_message_size(REQUEST_BYTES_MAX),
    );
    if let Some(masters) = services.masters {
        router = router
            .add_service(ControllerServer::new(ControllerService::new(masters)).max_decoding_message_size(REQUEST_BYTES_MAX));
    }
    if let Some(node) = services.node {
        router = router.add_service(NodeServer::new(node).max_decoding_message_size(REQUEST_BYTES_MAX));
    }
    let (asked, was_asked) = tokio::sync::oneshot::channel::<()>();
    let server = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
        until.await;
        asked.send(()).ok();
    });
    let bound = async {
        // Dropped without a word when the server fails: then its own result counts.
        if was_asked.await.is_ok() {
            tokio::time::sleep(GOODBYE_LIMIT).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let result = tokio::select! {
        biased;
        result = server => result.map_err(RunError::from),
        () = bound => Ok(()),
    };
    std::fs::remove_file(path).ok();
    result
}

/// Takes the path over from a driver that is gone, and from no other.
pub(crate) async fn listen(path: &Path) -> Result<UnixListener, RunError> {
    let name = path.display().to_string();
    let failed = |source| RunError::Socket { path: name.clone(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    match UnixStream::connect(path).await {
        Ok(_) => return Err(RunError::InUse(name)),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Whoever may write here may mount and delete volumes.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

fn socket_path(endpoint: &str) -> Result<PathBuf, RunError> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(RunError::Flag(format!("--endpoint `{endpoint}` must be unix:// and an absolute path")));
    }
    Ok(PathBuf::from(path))
}

async fn ended_by_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not key=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for text in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"] {
            assert_eq!(socket_path(text).unwrap(), Path::new("/run/x.sock"));
        }
        for text in ["tcp://1.2.3.4:5", "", "x.sock"] {
            assert!(matches!(socket_path(text), Err(RunError::Flag(_))), "{text}");
        }
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_taken_over_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = listen(&path).await.unwrap();
        assert!(matches!(listen(&path).await, Err(RunError::InUse(_))));
        drop(listener);
    }
}
