//! Token buckets for a volume's foreground requests.

use api_types::master::QosLimits;
use std::time::Duration;

/// Burst when the limits name none.
const BURST_SECONDS_DEFAULT: u32 = 1;

/// One allowance. May go into debt, so that a request larger than the burst passes and the next ones wait for it.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Tokens a second; zero: no limit.
    rate: u64,
    burst: f64,
    tokens: f64,
}

impl Bucket {
    fn new(rate: u64, burst_seconds: u32) -> Self {
        let burst = rate as f64 * f64::from(burst_seconds);
        Bucket { rate, burst, tokens: burst }
    }

    fn refill(&mut self, passed: Duration) {
        self.tokens = (self.tokens + passed.as_secs_f64() * self.rate as f64).min(self.burst);
    }

    /// Takes `amount` at once and says how long to wait until the debt is paid.
    fn take(&mut self, amount: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        self.tokens -= amount as f64;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.rate as f64) }
    }
}

/// Limits on requests and on bytes, both with burst.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limiter {
    requests: Bucket,
    bytes: Bucket,
    last: Duration,
}

impl Limiter {
    pub(crate) fn new(limits: QosLimits, now: Duration) -> Self {
        let burst = if limits.burst_seconds == 0 { BURST_SECONDS_DEFAULT } else { limits.burst_seconds };
        Limiter { requests: Bucket::new(limits.iops, burst), bytes: Bucket::new(limits.bytes_per_second, burst), last: now }
    }

    /// Charges one request and says how long it must wait. Requests that wait are served in the order they were charged.
    pub(crate) fn charge(&mut self, bytes: u64, now: Duration) -> Duration {
        if self.requests.rate == 0 && self.bytes.rate == 0 {
            return Duration::ZERO;
        }
        let passed = now.saturating_sub(self.last);
        self.last = now;
        self.requests.refill(passed);
        self.bytes.refill(passed);
        self.requests.take(1).max(self.bytes.take(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(iops: u64, bytes_per_second: u64, burst_seconds: u32) -> QosLimits {
        QosLimits { iops, bytes_per_second, burst_seconds }
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut limiter = Limiter::new(QosLimits::default(), Duration::ZERO);
        assert_eq!(limiter.charge(1 << 30, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_burst_passes_at_once_and_what_follows_comes_at_the_rate() {
        let mut limiter = Limiter::new(limits(100, 0, 2), Duration::ZERO);
        for _ in 0..200 {
            assert_eq!(limiter.charge(4096, Duration::ZERO), Duration::ZERO);
        }
        assert_eq!(limiter.charge(4096, Duration::ZERO), Duration::from_millis(10));
        assert_eq!(limiter.charge(4096, Duration::ZERO), Duration::from_millis(20));
        assert_eq!(limiter.charge(4096, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn a_request_larger_than_the_burst_is_paid_for_by_those_after_it() {
        let mut limiter = Limiter::new(limits(0, 1 << 20, 1), Duration::ZERO);
        assert_eq!(limiter.charge(3 << 20, Duration::ZERO), Duration::from_secs(2));
        assert_eq!(limiter.charge(1 << 20, Duration::from_secs(2)), Duration::from_secs(1));
    }

    #[test]
    fn unused_allowance_is_kept_up_to_the_burst_only() {
        let mut limiter = Limiter::new(limits(10, 0, 1), Duration::ZERO);
        let after = Duration::from_secs(3600);
        for _ in 0..10 {
            assert_eq!(limiter.charge(0, after), Duration::ZERO);
        }
        assert!(limiter.charge(0, after) > Duration::ZERO);
    }
}
