//! A whole process's telemetry, from its flags: doors answer, and a collector gets metrics and spans.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use api_telemetry::{LogFormat, Operation, Recorder, Stage, TelemetryArgs, init, table};
use api_types::VolumeId;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{MetricsService, MetricsServiceServer};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Names of the metrics and spans that came.
#[derive(Clone, Default)]
struct Collector {
    names: Arc<Mutex<BTreeSet<String>>>,
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let scopes = request.into_inner().resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let names = scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name);
        self.names.lock().unwrap().extend(names);
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        let names = scopes.flat_map(|scope| scope.spans).map(|span| format!("span {}", span.name));
        self.names.lock().unwrap().extend(names);
        Ok(Response::new(Default::default()))
    }
}

fn collector() -> (Collector, SocketAddr) {
    let (collector, listener) = (Collector::default(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let served = collector.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder()
                .add_service(MetricsServiceServer::new(served.clone()))
                .add_service(TraceServiceServer::new(served));
            server.serve_with_incoming(incoming).await.unwrap();
        });
    });
    (collector, address)
}

fn ask(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

// One test: logs can be set up once in a process.
#[test]
fn a_process_tells_everything_it_should() {
    let (collector, collector_address) = collector();
    let args = TelemetryArgs {
        metrics_listen: Some("127.0.0.1:0".parse().unwrap()),
        log_format: LogFormat::Json,
        log_filter: "warn".to_owned(),
        otlp_endpoint: Some(format!("http://{collector_address}")),
        otlp_interval: 1,
    };
    let telemetry = init(&args, "agent", "node-a").unwrap();
    let address = telemetry.address().unwrap();
    assert!(init(&TelemetryArgs { metrics_listen: Some(address), ..args.clone() }, "agent", "x").is_err(), "address is taken");

    let check = telemetry.check("masters");
    assert_eq!(ask(address, "GET", "/healthz"), (200, "alive\n".to_owned()));
    assert_eq!(ask(address, "GET", "/readyz"), (503, "masters: starting\n".to_owned()));
    check.met();
    assert_eq!(ask(address, "GET", "/readyz").0, 200);

    table::RPC_SERVED_TOTAL.with(&["append", "ok"]).add(5);
    tracing::warn!("counted");
    let recorder = Recorder::new(Operation::Write, Stage::Total);
    recorder.record(Duration::from_micros(300));
    until(|| ask(address, "GET", "/debug/latency?op=write").1.contains("\"count\":1"));
    let (status, text) = ask(address, "GET", "/metrics");
    assert_eq!(status, 200);
    for line in [
        "basalt_rpc_served_total{op=\"append\",result=\"ok\"} 5",
        "basalt_log_lines_total{level=\"warn\"} 1",
        "basalt_operation_seconds_count{op=\"write\",stage=\"total\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
    }
    assert_eq!(ask(address, "GET", "/debug/latency?op=nonsense").0, 400);
    assert_eq!(ask(address, "POST", "/debug/trace?volume=nonsense").0, 400);

    assert_eq!(ask(address, "POST", "/debug/trace?volume=v-7&seconds=60&threshold_us=100").0, 200);
    let sink = telemetry.traces().sink(VolumeId(7));
    let ms = Duration::from_millis(1);
    let mut operation = sink.begin(Operation::Read, 4096, 4096, ms).unwrap();
    operation.stage(Stage::Network, ms, 2 * ms);
    operation.finish(3 * ms, None);
    let (_, kept) = ask(address, "GET", "/debug/trace?volume=v-7");
    assert!(kept.contains("v-7 read 4096+4096 2000 us: network@0=1000"), "{kept}");
    drop(telemetry);
    let names = collector.names.lock().unwrap();
    for name in ["basalt_rpc_served_total", "basalt_operation_seconds_count", "span read", "span network"] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
}
