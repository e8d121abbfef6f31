//! Counters and gauges of the metrics in the table.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Stands for a label value that is unknown, or one too many.
pub const OTHER: &str = "other";

/// What a metric does over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution; made by [`crate::Recorder`]s.
    Histogram,
}

/// What a metric counts in. Part of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Things.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// The values that a label may take.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// These, and [`OTHER`].
    Fixed(&'static [&'static str]),
    /// At most so many different ones in a process's life; further ones become [`OTHER`].
    AtMost(usize),
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub values: Values,
}

/// An entry of the table. Can only be made there.
#[derive(Debug)]
pub struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    pub(crate) help: &'static str,
    pub(crate) labels: &'static [Label],
}

impl Metric {
    /// Its name in Prometheus and OTLP.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it does over time.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it counts in.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// What it means, for people.
    #[must_use]
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// Its labels, in the order in which their values are given.
    #[must_use]
    pub fn labels(&self) -> &'static [Label] {
        self.labels
    }
}

/// A metric whose handles are of type `H`.
#[derive(Debug)]
pub struct Family<H> {
    pub(crate) metric: Metric,
    pub(crate) handles: PhantomData<fn() -> H>,
}

impl Family<Counter> {
    /// The counter with these label values, in the process's registry. Keep it: this takes a lock.
    ///
    /// # Panics
    /// When the number of values isn't the number of labels: a programmer's error.
    #[must_use]
    pub fn with(&'static self, values: &[&str]) -> Counter {
        Registry::global().counter(self, values)
    }
}

impl Family<Gauge> {
    /// The gauge with these label values, in the process's registry. It is shown for as long as a handle exists. Keep
    /// it: this takes a lock.
    ///
    /// # Panics
    /// When the number of values isn't the number of labels: a programmer's error.
    #[must_use]
    pub fn with(&'static self, values: &[&str]) -> Gauge {
        Registry::global().gauge(self, values)
    }
}

/// Counts up. Clones count together.
#[derive(Clone, Debug)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// One more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count, for tests and status views.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A level. Clones share it.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, level: i64) {
        self.0.store(level, Ordering::Relaxed);
    }

    /// Sets it to a number that doesn't fit when it is astronomical.
    pub fn set_u64(&self, level: u64) {
        self.set(i64::try_from(level).unwrap_or(i64::MAX));
    }

    /// Raises or lowers it.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// The level.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

type LabelValues = Vec<String>;

/// All counters and gauges of a process.
#[derive(Debug, Default)]
pub struct Registry {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counters: BTreeMap<&'static str, BTreeMap<LabelValues, Arc<AtomicU64>>>,
    gauges: BTreeMap<&'static str, BTreeMap<LabelValues, Arc<AtomicI64>>>,
    /// Distinct values seen per metric and label.
    seen: BTreeMap<(&'static str, &'static str), Vec<String>>,
}

/// One value as it is exposed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) labels: LabelValues,
    pub(crate) value: f64,
}

impl Registry {
    /// The process's.
    #[must_use]
    pub fn global() -> &'static Registry {
        static GLOBAL: Registry = Registry { state: Mutex::new(State::EMPTY) };
        &GLOBAL
    }

    /// The counter with these label values.
    pub(crate) fn counter(&self, family: &'static Family<Counter>, values: &[&str]) -> Counter {
        let mut state = self.state.lock();
        let values = state.bound(&family.metric, values);
        Counter(Arc::clone(state.counters.entry(family.metric.name).or_default().entry(values).or_default()))
    }

    /// The gauge with these label values.
    pub(crate) fn gauge(&self, family: &'static Family<Gauge>, values: &[&str]) -> Gauge {
        let mut state = self.state.lock();
        let values = state.bound(&family.metric, values);
        Gauge(Arc::clone(state.gauges.entry(family.metric.name).or_default().entry(values).or_default()))
    }

    /// The present values of a counter or gauge. Gauges without a handle are forgotten.
    pub(crate) fn samples(&self, metric: &'static Metric) -> Vec<Sample> {
        let mut state = self.state.lock();
        match metric.kind {
            Kind::Counter => state.counters.get(metric.name).map_or_else(Vec::new, |series| {
                let value = |count: &Arc<AtomicU64>| count.load(Ordering::Relaxed) as f64;
                series.iter().map(|(labels, count)| Sample { labels: labels.clone(), value: value(count) }).collect()
            }),
            Kind::Gauge => state.gauges.get_mut(metric.name).map_or_else(Vec::new, |series| {
                series.retain(|_, level| Arc::strong_count(level) > 1);
                let value = |level: &Arc<AtomicI64>| level.load(Ordering::Relaxed) as f64;
                series.iter().map(|(labels, level)| Sample { labels: labels.clone(), value: value(level) }).collect()
            }),
            Kind::Histogram => Vec::new(),
        }
    }
}

impl State {
    const EMPTY: State = State { counters: BTreeMap::new(), gauges: BTreeMap::new(), seen: BTreeMap::new() };

    /// The label values, each one that is out of bounds replaced.
    fn bound(&mut self, metric: &Metric, values: &[&str]) -> LabelValues {
        assert_eq!(values.len(), metric.labels.len(), "{} has other labels", metric.name);
        let pairs = metric.labels.iter().zip(values);
        pairs
            .map(|(label, value)| {
                let allowed = match label.values {
                    Values::Fixed(all) => all.contains(value),
                    Values::AtMost(limit) => {
                        let seen = self.seen.entry((metric.name, label.name)).or_default();
                        let known = seen.iter().any(|known| known == value);
                        if !known && seen.len() < limit {
                            seen.push((*value).to_owned());
                        }
                        known || seen.last().is_some_and(|last| last == value)
                    }
                };
                if allowed { (*value).to_owned() } else { OTHER.to_owned() }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn a_counter_is_one_whoever_asks_for_it() {
        let registry = Registry::default();
        registry.counter(&table::RPC_SERVED_TOTAL, &["append", "ok"]).add(2);
        registry.counter(&table::RPC_SERVED_TOTAL, &["append", "ok"]).increment();
        let samples = registry.samples(&table::RPC_SERVED_TOTAL.metric);
        assert_eq!(samples, [Sample { labels: vec!["append".to_owned(), "ok".to_owned()], value: 3.0 }]);
    }

    #[test]
    fn an_unknown_value_of_a_fixed_label_becomes_other() {
        let registry = Registry::default();
        registry.counter(&table::RPC_SERVED_TOTAL, &["append", "no such result"]).increment();
        assert_eq!(registry.samples(&table::RPC_SERVED_TOTAL.metric)[0].labels, ["append", OTHER]);
    }

    #[test]
    fn values_beyond_the_bound_become_other() {
        let registry = Registry::default();
        let handles: Vec<_> =
            (0..2000).map(|number| registry.gauge(&table::VOLUME_SIZE_BYTES, &[&format!("v-{number:x}")])).collect();
        let samples = registry.samples(&table::VOLUME_SIZE_BYTES.metric);
        let Values::AtMost(limit) = table::VOLUME_SIZE_BYTES.metric.labels[0].values else { panic!("not bounded") };
        assert_eq!(samples.len(), limit + 1);
        assert!(samples.iter().any(|sample| sample.labels == [OTHER]));
        drop(handles);
    }

    #[test]
    fn a_gauge_without_a_handle_is_not_shown() {
        let registry = Registry::default();
        let gauge = registry.gauge(&table::VOLUME_SIZE_BYTES, &["v-1"]);
        gauge.set(5);
        assert_eq!(registry.samples(&table::VOLUME_SIZE_BYTES.metric).len(), 1);
        drop(gauge);
        assert!(registry.samples(&table::VOLUME_SIZE_BYTES.metric).is_empty());
    }
}
