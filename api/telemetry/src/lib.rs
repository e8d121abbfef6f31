//! What a process tells about itself: metrics, latencies, traces of single operations, logs, alive and ready.
//!
//! ```text
//!  rooms ──▶ Counter, Gauge ─────┐                       ┌─▶ /metrics   (Prometheus)
//!        ──▶ Recorder ──▶ one-second summaries of an hour┼─▶ /debug/latency
//!        ──▶ TraceSink ──▶ the slow operations ──────────┼─▶ /debug/trace
//!        ──▶ Check ──────────────┘                       └─▶ OTLP (metrics, spans), when an endpoint is set
//! ```
//! Contract: a metric exists only if it stands in [`table`], the one registry that dashboards and alerts are made from;
//! its labels are bounded. Recording is a few plain loads and stores on the recorder's own memory: no lock, no
//! allocation, no system call. All the rest happens on one thread of its own, which wakes once a second.
//!
//! Never here: a decision that depends on a metric, or a log line on the hot path.

pub mod board;
mod buckets;
mod calls;
mod expose;
mod health;
mod http;
mod init;
mod latency;
mod metric;
mod otlp;
mod process;
pub mod table;
mod trace;

pub use calls::{CallMeter, Metered};
pub use health::{Check, Health};
pub use init::{InitError, LogFormat, Telemetry, TelemetryArgs, bind, init};
pub use latency::{LatencyBook, Operation, Recorder, Second, Stage};
pub use metric::{Counter, Family, Gauge, Kind, Label, Metric, OTHER, Registry, Unit, Values};
pub use trace::{OpenOperation, StageTime, TraceHub, TraceSink, TracedOperation};
