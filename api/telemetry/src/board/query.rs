//! PromQL over metrics of the table.

use crate::latency::{Operation, Stage};
use crate::metric::Metric;
use crate::table;
use std::fmt;

/// Over which time rates are taken: four scrapes of 15 s, so that one that fails leaves no gap.
const WINDOW: &str = "1m";

/// Labels that a scrape adds to every metric.
const TARGET_LABELS: [&str; 3] = ["instance", "pod", "node"];

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query(String);

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(metric: &Metric, labels: &[&str]) {
    for label in labels {
        let known = TARGET_LABELS.contains(label) || metric.labels().iter().any(|own| own.name == *label);
        assert!(known, "metric {} has no label {label}", metric.name());
    }
}

fn sum(by: &[&str], inner: &str) -> String {
    if by.is_empty() { format!("sum({inner})") } else { format!("sum by ({}) ({inner})", by.join(", ")) }
}

impl Query {
    /// The present value, summed over all but the labels `by`.
    ///
    /// # Panics
    /// When the metric has no such label: a programmer's error, found by the test that makes the files.
    #[must_use]
    pub fn now(metric: &Metric, by: &[&str]) -> Self {
        check(metric, by);
        Query(sum(by, metric.name()))
    }

    /// The same of the series whose label `label` is `value`.
    ///
    /// # Panics
    /// See [`Query::now`].
    #[must_use]
    pub fn now_where(metric: &Metric, label: &str, value: &str, by: &[&str]) -> Self {
        check(metric, by);
        check(metric, &[label]);
        Query(sum(by, &format!("{}{{{label}=\"{value}\"}}", metric.name())))
    }

    /// Growth per second.
    ///
    /// # Panics
    /// See [`Query::now`].
    #[must_use]
    pub fn rate(metric: &Metric, by: &[&str]) -> Self {
        check(metric, by);
        Query(sum(by, &format!("rate({}[{WINDOW}])", metric.name())))
    }

    /// Growth per second of the series whose label `label` is, or with `not` isn't, `value`.
    ///
    /// # Panics
    /// See [`Query::now`].
    #[must_use]
    pub fn rate_where(metric: &Metric, label: &str, not: bool, value: &str, by: &[&str]) -> Self {
        check(metric, by);
        check(metric, &[label]);
        let sign = if not { "!=" } else { "=" };
        Query(sum(by, &format!("rate({}{{{label}{sign}\"{value}\"}}[{WINDOW}])", metric.name())))
    }

    /// How long an operation, or a stage of it, takes: the share `quantile` took less. `by` as well as the operation.
    #[must_use]
    pub fn quantile(quantile: f64, operation: Operation, stage: Stage, by: &[&str]) -> Self {
        let metric = &table::OPERATION_SECONDS.metric;
        let series = format!("{}_bucket{{op=\"{}\",stage=\"{}\"}}", metric.name(), operation.as_str(), stage.as_str());
        let by = [&["le"], by].concat();
        Query(format!("histogram_quantile({quantile}, {})", sum(&by, &format!("rate({series}[{WINDOW}])"))))
    }

    /// One over the other.
    #[must_use]
    pub fn over(&self, other: &Query) -> Self {
        Query(format!("{self} / {other}"))
    }

    /// True while it compares so to `value`: `>`, `<` or `==`.
    #[must_use]
    pub fn is(&self, comparison: &str, value: f64) -> Self {
        Query(format!("{self} {comparison} {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_groups_by_labels_that_the_metric_has() {
        let query = Query::rate(&table::DEVICE_MOVED_BYTES_TOTAL.metric, &["device"]);
        assert_eq!(query.to_string(), "sum by (device) (rate(basalt_device_moved_bytes_total[1m]))");
        let ratio =
            Query::now(&table::DEVICE_FREE_BYTES.metric, &[]).over(&Query::now(&table::DEVICE_CAPACITY_BYTES.metric, &[]));
        assert_eq!(ratio.is("<", 0.1).to_string(), "sum(basalt_device_free_bytes) / sum(basalt_device_capacity_bytes) < 0.1");
    }

    #[test]
    #[should_panic(expected = "has no label volume")]
    fn a_label_that_is_not_there_is_refused() {
        let _ = Query::now(&table::DEVICE_FREE_BYTES.metric, &["volume"]);
    }
}
