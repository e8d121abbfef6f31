//! The Prometheus text format.

use crate::buckets::end_of;
use crate::latency::{LatencyBook, Totals};
use crate::metric::{Kind, Metric, Registry, Sample};
use crate::{process, table};
use std::fmt::Write;
use std::time::Duration;

/// Upper bounds of the exposed buckets: 128 ns times powers of four, where recorded buckets end too, from 16 µs to 17 s.
/// Enough to see an order of magnitude; quantiles stand beside them.
const BOUNDS: usize = 11;
const BOUND_NANOS_MIN: u64 = 16_384;

/// Everything the process tells, once.
pub(crate) fn text(registry: &Registry, book: &LatencyBook) -> String {
    let mut out = String::with_capacity(16 << 10);
    for metric in table::ALL {
        let mut lines = String::new();
        if std::ptr::eq(*metric, &table::OPERATION_SECONDS.metric) {
            for (operation, stage, totals) in book.totals() {
                histogram(&mut lines, metric, &[operation.as_str(), stage.as_str()], &totals);
            }
        } else {
            for sample in samples(metric, registry, book) {
                line(&mut lines, metric.name, "", metric, &sample.labels, &[], sample.value);
            }
        }
        if !lines.is_empty() {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let _infallible = write!(out, "# HELP {} {}\n# TYPE {} {kind}\n{lines}", metric.name, metric.help, metric.name);
        }
    }
    out
}

/// The values of any metric but the histogram.
pub(crate) fn samples(metric: &'static Metric, registry: &Registry, book: &LatencyBook) -> Vec<Sample> {
    if std::ptr::eq(metric, &table::OPERATION_LAST_SECONDS.metric) {
        return last_seconds(book);
    }
    let mut samples = registry.samples(metric);
    samples.extend(process::samples(metric));
    samples
}

fn last_seconds(book: &LatencyBook) -> Vec<Sample> {
    let quantiles = |(operation, stage, second): (crate::Operation, crate::Stage, crate::Second)| {
        [("0.5", second.p50), ("0.99", second.p99), ("0.999", second.p999), ("1", second.max)].map(|(quantile, value)| {
            let labels = [operation.as_str(), stage.as_str(), quantile].map(str::to_owned).to_vec();
            Sample { labels, value }
        })
    };
    book.newest().into_iter().flat_map(quantiles).collect()
}

fn histogram(out: &mut String, metric: &Metric, labels: &[&str], totals: &Totals) {
    let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    let mut counted = 0;
    let mut buckets = totals.buckets.iter().enumerate().peekable();
    for place in 0..BOUNDS {
        let bound = Duration::from_nanos(BOUND_NANOS_MIN << (2 * place));
        while let Some((_, count)) = buckets.next_if(|(bucket, _)| end_of(*bucket) <= bound) {
            counted += count;
        }
        let le = bound.as_secs_f64().to_string();
        line(out, metric.name, "_bucket", metric, &labels, &[("le", &le)], counted as f64);
    }
    line(out, metric.name, "_bucket", metric, &labels, &[("le", "+Inf")], totals.count as f64);
    line(out, metric.name, "_sum", metric, &labels, &[], totals.seconds);
    line(out, metric.name, "_count", metric, &labels, &[], totals.count as f64);
}

fn line(out: &mut String, name: &str, suffix: &str, metric: &Metric, values: &[String], more: &[(&str, &str)], value: f64) {
    let own = metric.labels.iter().zip(values).map(|(label, value)| (label.name, value.as_str()));
    let pairs: Vec<String> =
        own.chain(more.iter().copied()).map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
    let _infallible = writeln!(out, "{name}{suffix}{labels} {value}");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Stage};

    #[test]
    fn counters_gauges_and_histograms_have_this_form() {
        let (registry, book) = (Registry::default(), LatencyBook::default());
        registry.counter(&table::RPC_SERVED_TOTAL, &["append", "ok"]).add(3);
        let gauge = registry.gauge(&table::VOLUME_SIZE_BYTES, &["a\"b"]);
        gauge.set(4096);
        let recorder = book.recorder(Operation::Write, Stage::Total);
        recorder.record(Duration::from_micros(100));
        recorder.record(Duration::from_secs(40));
        book.turn(1);
        let text = text(&registry, &book);
        for line in [
            "# TYPE basalt_rpc_served_total counter",
            "basalt_rpc_served_total{op=\"append\",result=\"ok\"} 3",
            "basalt_volume_size_bytes{volume=\"a\\\"b\"} 4096",
            "# TYPE basalt_operation_seconds histogram",
            "basalt_operation_seconds_bucket{op=\"write\",stage=\"total\",le=\"0.000065536\"} 0",
            "basalt_operation_seconds_bucket{op=\"write\",stage=\"total\",le=\"0.000262144\"} 1",
            "basalt_operation_seconds_bucket{op=\"write\",stage=\"total\",le=\"17.179869184\"} 1",
            "basalt_operation_seconds_bucket{op=\"write\",stage=\"total\",le=\"+Inf\"} 2",
            "basalt_operation_seconds_sum{op=\"write\",stage=\"total\"} 40.0001",
            "basalt_operation_seconds_count{op=\"write\",stage=\"total\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
        }
        assert!(text.contains("basalt_operation_last_seconds{op=\"write\",stage=\"total\",quantile=\"0.5\"}"));
        assert!(text.contains("basalt_process_resident_bytes "));
    }
}
