//! Brings all of it up, once per process, from the same flags everywhere.

use crate::health::{Check, Health};
use crate::http::{Doors, router};
use crate::latency::LatencyBook;
use crate::otlp::Otlp;
use crate::table;
use crate::trace::TraceHub;
use clap::{Args, ValueEnum};
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry as Spans, fmt};

/// How often and after which waits an address that is taken is tried.
const BIND_TRIES: u32 = 600;
const BIND_WAIT: Duration = Duration::from_millis(5);

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Flags of every process.
#[derive(Clone, Debug, Args)]
pub struct TelemetryArgs {
    /// Address of /metrics, /healthz, /readyz and /debug; port 0 takes any free one. Not served when missing.
    #[arg(long, env = "BASALT_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,

    /// How log lines look.
    #[arg(long, env = "BASALT_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,

    /// Which log lines are written: a level, or `target=level` pairs. The consensus library's own lines are many.
    #[arg(long, env = "BASALT_LOG", value_name = "FILTER", default_value = "info,openraft=warn")]
    pub log_filter: String,

    /// OpenTelemetry collector (gRPC) that gets metrics and spans. Nothing is sent when missing.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Seconds between two exports of metrics to the collector.
    #[arg(long, env = "BASALT_OTLP_INTERVAL", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub otlp_interval: u64,
}

/// Why a process can't tell about itself.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The address is taken or isn't ours.
    #[error("metrics can't be served on {address}: {error}; change --metrics-listen")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The filter doesn't parse.
    #[error("--log-filter `{filter}` is not a filter: {reason}")]
    Filter {
        /// What was asked for.
        filter: String,
        /// Why not.
        reason: String,
    },
    /// Someone else in this process writes logs already.
    #[error("logs are set up already in this process")]
    Twice,
    /// The endpoint doesn't parse.
    #[error("--otlp-endpoint `{endpoint}` can't be used: {reason}")]
    Otlp {
        /// What was asked for.
        endpoint: String,
        /// Why not.
        reason: String,
    },
    /// No thread or no runtime could be had.
    #[error("no thread for telemetry: {0}")]
    Thread(#[from] io::Error),
}

/// Keeps it all up; dropping it sends what is left and stops.
#[derive(Debug)]
pub struct Telemetry {
    health: Health,
    traces: TraceHub,
    address: Option<SocketAddr>,
    otlp: Option<Otlp>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Shown while the process lives.
    _build: crate::Gauge,
}

/// Sets up logs, metrics, traces and health for a process. `component` is what it is (`agent`, `master`, `csi`),
/// `instance` which one. Call it once, from `main`.
pub fn init(args: &TelemetryArgs, component: &'static str, instance: &str) -> Result<Telemetry, InitError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = args.metrics_listen.map(listen).transpose()?;
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let otlp = {
        let _entered = runtime.enter();
        let interval = Duration::from_secs(args.otlp_interval);
        let endpoint = args.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty());
        let build = |endpoint: &str| {
            Otlp::new(endpoint, interval, component, instance)
                .map_err(|error| InitError::Otlp { endpoint: endpoint.to_owned(), reason: error.to_string() })
        };
        endpoint.map(build).transpose()?
    };
    init_logs(args, otlp.as_ref())?;
    let traces = TraceHub::new(otlp.as_ref().map(Otlp::span_export));
    let build = table::BUILD_INFO.with(&[component, env!("CARGO_PKG_VERSION")]);
    build.set(1);
    let mut telemetry = Telemetry { health: Health::default(), traces, address, otlp, stop: None, thread: None, _build: build };
    let (stop, stopped) = oneshot::channel();
    let doors = Doors { health: telemetry.health.clone(), traces: telemetry.traces.clone() };
    let work = move || runtime.block_on(run(listener, doors, stopped));
    telemetry.thread = Some(std::thread::Builder::new().name("telemetry".to_owned()).spawn(work)?);
    telemetry.stop = Some(stop);
    Ok(telemetry)
}

/// Binds, and for a while tries again while the address is taken: a process that was killed keeps it until its last
/// thread is gone, a moment after its end can be seen.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < BIND_TRIES => {
                tries += 1;
                std::thread::sleep(BIND_WAIT);
            }
            result => return result,
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, InitError> {
    let open = || {
        let listener = bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    open().map_err(|error| InitError::Listen { address, error })
}

/// The telemetry thread: turns a page of the latency book each second, serves the doors, carries OTLP's connections.
async fn run(listener: Option<TcpListener>, doors: Doors, stopped: oneshot::Receiver<()>) {
    let seconds = async {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            LatencyBook::global().turn(since_1970().as_secs());
        }
    };
    let serve = async {
        let Some(listener) = listener.and_then(|listener| tokio::net::TcpListener::from_std(listener).ok()) else {
            return std::future::pending().await;
        };
        if let Err(error) = axum::serve(listener, router(doors)).await {
            tracing::error!(%error, "metrics are served no more");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = stopped => {}
        () = serve => {}
        () = seconds => {}
    }
}

fn init_logs(args: &TelemetryArgs, otlp: Option<&Otlp>) -> Result<(), InitError> {
    let filter = EnvFilter::try_new(&args.log_filter)
        .map_err(|error| InitError::Filter { filter: args.log_filter.clone(), reason: error.to_string() })?;
    let spans = otlp.map(|otlp| tracing_opentelemetry::layer().with_tracer(otlp.tracer()));
    let registry = Spans::default().with(filter).with(spans).with(CountLines::new());
    let done = match args.log_format {
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(io::stderr)).try_init(),
        LogFormat::Text => {
            let ansi = io::stderr().is_terminal();
            registry.with(fmt::layer().with_ansi(ansi).with_writer(io::stderr)).try_init()
        }
    };
    done.map_err(|_| InitError::Twice)
}

impl Telemetry {
    /// Metrics, traces and health without logs and without a door: for tests, and for tools that run for a moment.
    #[must_use]
    pub fn quiet() -> Telemetry {
        Telemetry {
            health: Health::default(),
            traces: TraceHub::default(),
            address: None,
            otlp: None,
            stop: None,
            thread: None,
            _build: table::BUILD_INFO.with(&["test", env!("CARGO_PKG_VERSION")]),
        }
    }

    /// A new condition of being ready, not met as yet.
    #[must_use]
    pub fn check(&self, name: &'static str) -> Check {
        self.health.check(name)
    }

    /// All conditions of being ready.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Switches for tracing single operations.
    #[must_use]
    pub fn traces(&self) -> &TraceHub {
        &self.traces
    }

    /// Where /metrics and the others are served.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(otlp) = &self.otlp {
            otlp.shut_down();
        }
        if let Some(stop) = self.stop.take() {
            let _gone = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Counts what people should look at.
struct CountLines {
    errors: crate::Counter,
    warnings: crate::Counter,
}

impl CountLines {
    fn new() -> Self {
        let count = |level| table::LOG_LINES_TOTAL.with(&[level]);
        CountLines { errors: count("error"), warnings: count("warn") }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CountLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        match *event.metadata().level() {
            Level::ERROR => self.errors.increment(),
            Level::WARN => self.warnings.increment(),
            _ => {}
        }
    }
}

/// The wall clock, for people.
#[expect(clippy::disallowed_methods, reason = "stamps what people read; decides nothing")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
