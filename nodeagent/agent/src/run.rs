//! The process: control threads around data cores, from flags to a clean end.

use crate::attach_service::Service;
use crate::config::{AgentArgs, Config, ConfigError};
use crate::cores::Cores;
use crate::heartbeat::{self, Beat};
use crate::side::{SideConfig, StartError};
use api_telemetry::TraceHub;
use api_wire::master_client::{ConnectError, ConnectionOptions, MasterConnection};
use api_wire::proto::attach::attach_server::AttachServer;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

/// How long the end of the control threads is waited for.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How often and after which waits the run directory's lock is tried.
const LOCK_TRIES: u32 = 1000;
const LOCK_WAIT: Duration = Duration::from_millis(5);

/// Why the agent didn't start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The masters can't be asked.
    #[error(transparent)]
    Masters(#[from] ConnectError),
    /// A core didn't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Another agent uses this run directory.
    #[error("another agent runs with the run directory {}: give each its own --run-dir", .0.display())]
    Twice(PathBuf),
    /// Telemetry didn't start.
    #[error("telemetry: {0}")]
    Telemetry(#[source] api_telemetry::InitError),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::Io { what, source }
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(args: AgentArgs) -> Result<(), RunError> {
    let config = args.validate()?;
    std::fs::create_dir_all(&config.run_dir).map_err(io_error(format!("could not make {}", config.run_dir.display())))?;
    let _lock = lock(&config.run_dir)?;
    // It has a thread and a runtime of its own, and so comes before ours.
    let telemetry = api_telemetry::init(&args.telemetry, "agent", config.node.as_str()).map_err(RunError::Telemetry)?;
    let control = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(io_error("could not start the control threads"))?;
    let result = control.block_on(serve(config, &telemetry));
    control.shutdown_timeout(END_LIMIT);
    result
}

async fn serve(config: Config, telemetry: &api_telemetry::Telemetry) -> Result<(), RunError> {
    let connection = MasterConnection::connect(config.masters.clone(), ConnectionOptions::default())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("could not wait for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("could not wait for SIGINT"))?;
    let (cores, threads) = Cores::start(sides(&config, &connection, telemetry.traces())).await?;
    let (beat_out, beat) = watch::channel(Beat::default());
    let (stop_out, stop) = watch::channel(false);
    tokio::spawn(watch_beats(telemetry.check("masters"), beat));
    let beating = tokio::spawn(heartbeat::run(config.clone(), cores.clone(), connection, beat_out, stop.clone()));
    let door = tokio::spawn(serve_attach(listen(&config.attach_socket)?, cores.clone(), config.allow_faults, stop));
    tracing::info!(node = %config.node, cluster = %config.cluster, "the agent serves");
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop_out.send_replace(true);
    // The tasks hold the last ways to the cores; with them the cores end.
    for task in [beating, door] {
        if tokio::time::timeout(END_LIMIT, task).await.is_err() {
            tracing::warn!("a control task did not end in time");
        }
    }
    drop(cores);
    let ended = tokio::task::spawn_blocking(move || threads.join());
    if ended.await.is_err() {
        tracing::error!("waiting for the data cores failed");
    }
    let _ = std::fs::remove_file(&config.attach_socket);
    Ok(())
}

/// Deals devices out to the cores in turn.
fn sides(config: &Config, connection: &MasterConnection, traces: &TraceHub) -> Vec<SideConfig> {
    (0..config.cores)
        .map(|index| SideConfig {
            index,
            node: config.node.clone(),
            cluster: config.cluster,
            devices: config.devices.iter().skip(usize::from(index)).step_by(usize::from(config.cores)).cloned().collect(),
            listen: SocketAddr::new(config.listen.ip(), config.listen.port() + index),
            advertise_host: config.advertise_host.clone(),
            // Attachments belong to cores: with another number of cores, each would look for its volumes elsewhere.
            run_dir: if index == 0 { config.run_dir.clone() } else { config.run_dir.join(format!("core-{index}")) },
            fuse_keeper: config.fuse_keeper.clone(),
            allow_faults: config.allow_faults,
            connection: connection.clone(),
            control: tokio::runtime::Handle::current(),
            traces: traces.clone(),
        })
        .collect()
}

/// The agent is ready while the masters answer its beats.
async fn watch_beats(check: api_telemetry::Check, mut beat: watch::Receiver<Beat>) {
    while beat.changed().await.is_ok() {
        let now = beat.borrow_and_update().clone();
        if now.answered {
            check.met();
        } else {
            check.failed(&format!("the masters have not answered: {}", now.trouble));
        }
    }
}

async fn serve_attach(listener: UnixListener, cores: Cores, allow_faults: bool, mut stop: watch::Receiver<bool>) {
    let stopped = async move {
        // An error is the end of the sender, and so of the agent.
        let _ = stop.changed().await;
    };
    let server = tonic::transport::Server::builder()
        .add_service(AttachServer::new(Service { cores, allow_faults }))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped);
    if let Err(error) = server.await {
        tracing::error!(%error, "the attach socket ended");
    }
}

/// Listens on a unix socket that only root may use; one left by an agent that was killed is replaced.
fn listen(path: &Path) -> Result<UnixListener, RunError> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(format!("could not replace {}", path.display()))(error)),
    }
    let listener = UnixListener::bind(path).map_err(io_error(format!("could not listen on {}", path.display())))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(io_error(format!("could not protect {}", path.display())))?;
    Ok(listener)
}

/// One agent a run directory.
fn lock(run_dir: &Path) -> Result<File, RunError> {
    let path = run_dir.join("lock");
    let file = File::create(&path).map_err(io_error(format!("could not make {}", path.display())))?;
    // An agent that was killed holds it until its last thread is gone, a moment after its end can be seen.
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT),
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(io_error(format!("could not lock {}", path.display()))(error));
            }
        }
    }
    Err(RunError::Twice(run_dir.to_owned()))
}
