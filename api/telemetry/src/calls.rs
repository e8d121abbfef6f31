//! Counts and times the calls of a gRPC server: a layer for tonic.

use crate::latency::{Operation, Recorder, Stage};
use crate::metric::{Counter, Family};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::Code;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// Put around a server with `Server::builder().layer(…)`. Clones count together.
#[derive(Clone)]
pub struct CallMeter {
    meter: Arc<Meter>,
}

struct Meter {
    calls: &'static Family<Counter>,
    counters: Mutex<BTreeMap<(String, i32), Counter>>,
    time: Mutex<Recorder>,
}

impl CallMeter {
    /// Counts in `calls`, whose labels are the call and its code, and times as `operation`.
    #[must_use]
    pub fn new(calls: &'static Family<Counter>, operation: Operation) -> Self {
        let time = Mutex::new(Recorder::new(operation, Stage::Total));
        CallMeter { meter: Arc::new(Meter { calls, counters: Mutex::default(), time }) }
    }
}

impl Meter {
    fn count(&self, path: &str, code: Code) {
        let call = path.rsplit('/').next().unwrap_or_default();
        let mut counters = self.counters.lock();
        let key = (call.to_owned(), code as i32);
        counters.entry(key).or_insert_with(|| self.calls.with(&[call, name(code)])).increment();
    }
}

/// The name of a code, as gRPC spells it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

impl<S> Layer<S> for CallMeter {
    type Service = Metered<S>;

    fn layer(&self, inner: S) -> Metered<S> {
        Metered { inner, meter: Arc::clone(&self.meter) }
    }
}

/// A server with a meter around it.
#[derive(Clone)]
pub struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S, In, Out> Service<Request<In>> for Metered<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        #[expect(clippy::disallowed_methods, reason = "a call is timed by the process's own clock")]
        let began = Instant::now();
        let path = request.uri().path().to_owned();
        let meter = Arc::clone(&self.meter);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let result = answer.await;
            // A unary call that fails says so before any message; a stream that fails later counts as begun well.
            let code = result.as_ref().ok().map_or(Code::Unknown, |response| {
                let status = response.headers().get("grpc-status");
                status.map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
            });
            meter.count(&path, code);
            meter.time.lock().record(began.elapsed());
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[tokio::test]
    async fn calls_are_counted_by_name_and_code() {
        let meter = CallMeter::new(&table::MASTER_CALLS_TOTAL, Operation::MasterServe);
        let answer = |code: Option<&'static str>| {
            tower::service_fn(move |_: Request<()>| async move {
                let mut response = Response::new(());
                if let Some(code) = code {
                    response.headers_mut().insert("grpc-status", code.parse().unwrap());
                }
                Ok::<_, std::convert::Infallible>(response)
            })
        };
        let request = || Request::builder().uri("/basalt.master.v1.Master/MeteredCall").body(()).unwrap();
        meter.layer(answer(None)).call(request()).await.unwrap();
        meter.layer(answer(Some("14"))).call(request()).await.unwrap();
        assert_eq!(table::MASTER_CALLS_TOTAL.with(&["MeteredCall", "OK"]).get(), 1);
        assert_eq!(table::MASTER_CALLS_TOTAL.with(&["MeteredCall", "UNAVAILABLE"]).get(), 1);
    }
}
