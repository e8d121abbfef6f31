//! The doors for Prometheus, kubelet and people.

use crate::expose;
use crate::health::Health;
use crate::latency::{LatencyBook, Operation, Second, Stage};
use crate::metric::Registry;
use crate::trace::TraceHub;
use api_types::VolumeId;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest that a trace may be switched on for.
const TRACE_SECONDS_MAX: u64 = 3600;

#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) health: Health,
    pub(crate) traces: TraceHub,
}

pub(crate) fn router(doors: Doors) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/debug/latency", get(latency))
        .route("/debug/trace", get(kept_trace).post(start_trace).delete(stop_trace))
        .with_state(doors)
}

async fn metrics() -> Response {
    let text = expose::text(Registry::global(), LatencyBook::global());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn ready(State(doors): State<Doors>) -> Response {
    let problems = doors.health.problems();
    if problems.is_empty() {
        return "ready\n".into_response();
    }
    let text: String = problems.iter().map(|(name, reason)| format!("{name}: {reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

#[derive(Deserialize)]
struct LatencyQuery {
    /// Which operation; all of them, the newest second of each, when missing.
    op: Option<String>,
    stage: Option<String>,
    /// How far back, at most an hour.
    seconds: Option<u64>,
}

#[derive(Serialize)]
struct Series {
    op: &'static str,
    stage: &'static str,
    seconds: Vec<Second>,
}

async fn latency(Query(query): Query<LatencyQuery>) -> Result<Json<Vec<Series>>, (StatusCode, String)> {
    let book = LatencyBook::global();
    let Some(op) = query.op else {
        let newest = book.newest().into_iter();
        let series = |(operation, stage, second): (Operation, Stage, Second)| Series {
            op: operation.as_str(),
            stage: stage.as_str(),
            seconds: vec![second],
        };
        return Ok(Json(newest.map(series).collect()));
    };
    let operation = Operation::from_name(&op).ok_or_else(|| unknown("op", &op, Operation::ALL.iter().map(|op| op.as_str())))?;
    let stages = match &query.stage {
        None => Stage::ALL.to_vec(),
        Some(name) => {
            vec![Stage::from_name(name).ok_or_else(|| unknown("stage", name, Stage::ALL.iter().map(|stage| stage.as_str())))?]
        }
    };
    let since = crate::init::since_1970().as_secs().saturating_sub(query.seconds.unwrap_or(3600));
    let series = stages.into_iter().map(|stage| Series {
        op: operation.as_str(),
        stage: stage.as_str(),
        seconds: book.seconds(operation, stage, since),
    });
    Ok(Json(series.filter(|series| !series.seconds.is_empty()).collect()))
}

fn unknown<'a>(field: &str, value: &str, known: impl Iterator<Item = &'a str>) -> (StatusCode, String) {
    let known: Vec<_> = known.collect();
    (StatusCode::BAD_REQUEST, format!("`{field}` is `{value}`: use one of {}\n", known.join(", ")))
}

#[derive(Deserialize)]
struct TraceQuery {
    volume: String,
    seconds: Option<u64>,
    threshold_us: Option<u64>,
}

impl TraceQuery {
    fn volume(&self) -> Result<VolumeId, (StatusCode, String)> {
        self.volume.parse().map_err(|error| (StatusCode::BAD_REQUEST, format!("`volume`: {error}\n")))
    }
}

async fn kept_trace(State(doors): State<Doors>, Query(query): Query<TraceQuery>) -> Result<String, (StatusCode, String)> {
    let kept = doors.traces.kept(query.volume()?);
    Ok(kept.iter().map(|operation| format!("{operation}\n")).collect())
}

async fn start_trace(State(doors): State<Doors>, Query(query): Query<TraceQuery>) -> Result<String, (StatusCode, String)> {
    let volume = query.volume()?;
    let seconds = query.seconds.unwrap_or(10).clamp(1, TRACE_SECONDS_MAX);
    let threshold = Duration::from_micros(query.threshold_us.unwrap_or(0));
    doors.traces.start(volume, Duration::from_secs(seconds), threshold);
    Ok(format!("tracing {volume} for {seconds} s\n"))
}

async fn stop_trace(State(doors): State<Doors>, Query(query): Query<TraceQuery>) -> Result<String, (StatusCode, String)> {
    let volume = query.volume()?;
    doors.traces.stop(volume);
    Ok(format!("tracing {volume} stopped\n"))
}
