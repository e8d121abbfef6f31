//! Durations in 448 buckets: exact to 128 ns below 2 µs, to a sixteenth above, up to 68 s and more.

use std::time::Duration;

/// Nanoseconds in the finest step, as a power of two.
const STEP_SHIFT: u32 = 7;
/// Buckets per doubling, as a power of two.
const SPLIT_SHIFT: u32 = 4;
const SPLIT: usize = 1 << SPLIT_SHIFT;
/// The highest bit, in steps, that has buckets of its own: 2^30 × 128 ns is 137 s.
const TOP_BIT: u32 = 30;

/// How many buckets there are.
pub(crate) const BUCKETS: usize = (TOP_BIT - SPLIT_SHIFT + 2) as usize * SPLIT;

/// The bucket of a duration. Durations beyond the last bucket count in it.
pub(crate) fn bucket_of(duration: Duration) -> usize {
    let steps = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) >> STEP_SHIFT;
    if steps < SPLIT as u64 {
        return steps as usize;
    }
    let top = steps.ilog2();
    if top > TOP_BIT {
        return BUCKETS - 1;
    }
    let shift = top - SPLIT_SHIFT;
    let within = (steps >> shift) as usize - SPLIT;
    (shift as usize + 1) * SPLIT + within
}

/// Where a bucket ends: nothing in it is this long.
pub(crate) fn end_of(bucket: usize) -> Duration {
    let next = bucket + 1;
    let steps = if next < SPLIT {
        next as u64
    } else {
        let shift = (next / SPLIT - 1) as u32;
        ((next % SPLIT + SPLIT) as u64) << shift
    };
    Duration::from_nanos(steps << STEP_SHIFT)
}

/// The bucket within which this share of all values lies. `counts` must hold `total` values, at least one.
pub(crate) fn quantile(counts: &[u32; BUCKETS], total: u64, share: f64) -> usize {
    let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += u64::from(*count);
        if seen >= wanted {
            return bucket;
        }
    }
    BUCKETS - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_just_below_the_end_of_its_bucket() {
        let mut nanos = 1_u64;
        while nanos < 137_000_000_000 {
            let duration = Duration::from_nanos(nanos);
            let end = end_of(bucket_of(duration));
            assert!(duration < end, "{duration:?} in a bucket that ends at {end:?}");
            let allowed = duration.mul_f64(1.0 + 1.0 / 16.0) + Duration::from_nanos(129);
            assert!(end <= allowed, "{duration:?} in a bucket that ends at {end:?}");
            nanos += nanos / 37 + 1;
        }
    }

    #[test]
    fn buckets_grow_and_the_last_takes_everything() {
        assert!((1..BUCKETS).all(|bucket| end_of(bucket) > end_of(bucket - 1)));
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket_of(Duration::ZERO), 0);
    }

    #[test]
    fn quantiles_are_of_the_values_counted() {
        let mut counts = [0; BUCKETS];
        counts[3] = 98;
        counts[50] = 1;
        counts[400] = 1;
        assert_eq!(quantile(&counts, 100, 0.5), 3);
        assert_eq!(quantile(&counts, 100, 0.99), 50);
        assert_eq!(quantile(&counts, 100, 0.999), 400);
        assert_eq!(quantile(&counts, 100, 1.0), 400);
    }
}
