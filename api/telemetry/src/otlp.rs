//! The same metrics and the traced operations, sent to an OpenTelemetry collector. Only when an endpoint is set.

use crate::expose::samples;
use crate::latency::LatencyBook;
use crate::metric::{Kind, Metric, Registry, Sample};
use crate::table;
use crate::trace::TracedOperation;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a collector may take for one export, and how long the end of the process waits for the last one.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Both exporters. Their threads end with [`Otlp::shut_down`].
#[derive(Debug)]
pub(crate) struct Otlp {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Otlp {
    /// Must run within the runtime that will carry the connections. Connects when there is something to send.
    pub(crate) fn new(
        endpoint: &str,
        interval: Duration,
        component: &'static str,
        instance: &str,
    ) -> Result<Otlp, ExporterBuildError> {
        let resource = Resource::builder()
            .with_service_name(format!("basalt-{component}"))
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let spans = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT).build()?;
        let spans = SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build();
        let exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT).build()?;
        let reader = PeriodicReader::builder(exporter).with_interval(interval).build();
        let metrics = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
        observe_all(&metrics);
        Ok(Otlp { spans, metrics })
    }

    /// For spans of `tracing`.
    pub(crate) fn tracer(&self) -> SdkTracer {
        self.spans.tracer("basalt")
    }

    pub(crate) fn span_export(&self) -> SpanExport {
        SpanExport { tracer: self.tracer() }
    }

    pub(crate) fn shut_down(&self) {
        // Nobody is left to tell that the last second of it was lost.
        let _lost = self.spans.shutdown_with_timeout(EXPORT_TIMEOUT);
        let _lost = self.metrics.shutdown_with_timeout(EXPORT_TIMEOUT);
    }
}

/// Makes an observable instrument of every metric in the table. Of histograms, count and sum: their quantiles are a
/// metric of their own.
fn observe_all(provider: &SdkMeterProvider) {
    let meter = provider.meter("basalt");
    for metric in table::ALL.iter().copied() {
        let read = move || samples(metric, Registry::global(), LatencyBook::global());
        match metric.kind {
            Kind::Counter => {
                let counter = meter.f64_observable_counter(metric.name).with_description(metric.help);
                counter
                    .with_callback(move |observer| observe(metric, &read(), |value, labels| observer.observe(value, labels)))
                    .build();
            }
            Kind::Gauge => {
                let gauge = meter.f64_observable_gauge(metric.name).with_description(metric.help);
                gauge
                    .with_callback(move |observer| observe(metric, &read(), |value, labels| observer.observe(value, labels)))
                    .build();
            }
            Kind::Histogram => observe_histogram(&meter, metric),
        }
    }
}

fn observe(metric: &Metric, samples: &[Sample], mut observe: impl FnMut(f64, &[KeyValue])) {
    for sample in samples {
        let labels = metric.labels.iter().zip(&sample.labels).map(|(label, value)| KeyValue::new(label.name, value.clone()));
        observe(sample.value, &labels.collect::<Vec<_>>());
    }
}

fn observe_histogram(meter: &opentelemetry::metrics::Meter, metric: &'static Metric) {
    type Take = fn(&crate::latency::Totals) -> f64;
    let parts: [(&str, Take); 2] = [("count", |totals| totals.count as f64), ("sum", |totals| totals.seconds)];
    for (suffix, take) in parts {
        let read = move || {
            let totals = LatencyBook::global().totals();
            let sample = |(operation, stage, totals): &(crate::Operation, crate::Stage, crate::latency::Totals)| Sample {
                labels: vec![operation.as_str().to_owned(), stage.as_str().to_owned()],
                value: take(totals),
            };
            totals.iter().map(sample).collect::<Vec<_>>()
        };
        let counter = meter.f64_observable_counter(format!("{}_{suffix}", metric.name)).with_description(metric.help);
        counter.with_callback(move |observer| observe(metric, &read(), |value, labels| observer.observe(value, labels))).build();
    }
}

/// Sends traced operations as a span with one child per stage.
#[derive(Clone)]
pub(crate) struct SpanExport {
    tracer: SdkTracer,
}

impl fmt::Debug for SpanExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanExport")
    }
}

impl SpanExport {
    pub(crate) fn send(&self, operation: &TracedOperation) {
        let ended = UNIX_EPOCH + operation.ended;
        let began = ended - operation.total;
        let at = |since: Duration| -> SystemTime { began + since };
        let mut span = self
            .tracer
            .span_builder(operation.operation.as_str())
            .with_kind(SpanKind::Server)
            .with_start_time(began)
            .with_attributes([
                KeyValue::new("volume", operation.volume.to_string()),
                KeyValue::new("offset", i64::try_from(operation.offset).unwrap_or(i64::MAX)),
                KeyValue::new("length", i64::try_from(operation.length).unwrap_or(i64::MAX)),
            ])
            .start_with_context(&self.tracer, &Context::new());
        if let Some(error) = &operation.error {
            span.set_status(Status::error(error.clone()));
        }
        let parent = Context::new().with_remote_span_context(span.span_context().clone());
        for stage in &operation.stages {
            let mut builder = self.tracer.span_builder(stage.stage.as_str()).with_start_time(at(stage.begin));
            if let Some(device) = stage.device {
                builder = builder.with_attributes([KeyValue::new("device", device.to_string())]);
            }
            builder.start_with_context(&self.tracer, &parent).end_with_timestamp(at(stage.begin + stage.took));
        }
        span.end_with_timestamp(ended);
    }
}
