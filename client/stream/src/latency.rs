//! How long a read takes, by kind of medium and by size, and so when a second copy is worth asking. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// Smoothed mean and mean deviation, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    mean: u64,
    deviation: u64,
}

/// Most kinds of media that are told apart; the names come from the masters.
const MEDIA_MAX: usize = 16;
/// Most backup reads that may be saved up.
const CREDIT_READS_MAX: u32 = 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct LatencyModel {
    media: Vec<String>,
    estimates: BTreeMap<(usize, u32), Estimate>,
    shortest: Duration,
    longest: Duration,
    percent_max: u32,
    /// In hundredths of a backup read.
    credit: u32,
}

impl LatencyModel {
    pub(crate) fn new(shortest: Duration, longest: Duration, percent_max: u32) -> Self {
        let credit = if percent_max == 0 { 0 } else { CREDIT_READS_MAX * 100 };
        LatencyModel { media: Vec::new(), estimates: BTreeMap::new(), shortest, longest, percent_max, credit }
    }

    /// A read of `bytes` took so long.
    pub(crate) fn observe(&mut self, media: &str, bytes: u32, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let Some(key) = self.key(media, bytes) else { return };
        let estimate = self.estimates.entry(key).or_insert(Estimate { mean: took, deviation: took / 2 });
        // The weights of TCP's round-trip estimator: a quarter for the deviation, an eighth for the mean.
        estimate.deviation = estimate.deviation - estimate.deviation / 4 + estimate.mean.abs_diff(took) / 4;
        estimate.mean = estimate.mean - estimate.mean / 8 + took / 8;
    }

    /// How long to wait for an answer before another copy is asked: what all but a few reads stay below.
    pub(crate) fn backup_delay(&mut self, media: &str, bytes: u32) -> Duration {
        let estimate = self.key(media, bytes).and_then(|key| self.estimates.get(&key));
        let delay = estimate.map_or(self.longest, |estimate| {
            Duration::from_nanos(estimate.mean.saturating_add(estimate.deviation.saturating_mul(4)))
        });
        delay.clamp(self.shortest, self.longest.max(self.shortest))
    }

    /// A read begins: earns its share of a backup read.
    pub(crate) fn earn(&mut self) {
        self.credit = (self.credit + self.percent_max).min(CREDIT_READS_MAX * 100);
    }

    /// Whether a backup read may be sent now; takes its price.
    pub(crate) fn spend(&mut self) -> bool {
        let may = self.credit >= 100;
        if may {
            self.credit -= 100;
        }
        may
    }

    fn key(&mut self, media: &str, bytes: u32) -> Option<(usize, u32)> {
        let known = self.media.iter().position(|known| known == media);
        let at = known.or_else(|| {
            (self.media.len() < MEDIA_MAX).then(|| {
                self.media.push(media.to_owned());
                self.media.len() - 1
            })
        })?;
        Some((at, bytes.next_power_of_two().ilog2()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> LatencyModel {
        LatencyModel::new(Duration::from_millis(1), Duration::from_millis(50), 5)
    }

    #[test]
    fn nothing_known_means_the_longest_wait() {
        assert_eq!(model().backup_delay("nvme", 4096), Duration::from_millis(50));
    }

    #[test]
    fn the_wait_follows_the_medium_and_the_size() {
        let mut model = model();
        for _ in 0..64 {
            model.observe("nvme", 4096, Duration::from_micros(100));
            model.observe("hdd", 4096, Duration::from_millis(10));
            model.observe("nvme", 1 << 20, Duration::from_millis(3));
        }
        assert_eq!(model.backup_delay("nvme", 4096), Duration::from_millis(1));
        let hdd = model.backup_delay("hdd", 4096);
        assert!(hdd >= Duration::from_millis(9) && hdd < Duration::from_millis(20), "{hdd:?}");
        let large = model.backup_delay("nvme", 1 << 20);
        assert!(large > Duration::from_millis(2) && large < Duration::from_millis(8), "{large:?}");
    }

    #[test]
    fn backup_reads_keep_to_their_share() {
        let mut model = model();
        let mut sent = 0;
        for _ in 0..1000 {
            model.earn();
            sent += u32::from(model.spend());
        }
        assert!((50..=60).contains(&sent), "{sent}");
    }
}
