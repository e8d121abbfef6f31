//! Which size a claim gets.

use crate::error::Error;
use crate::proto::CapacityRange;

/// Sizes are multiples of this, where the limit allows it; always of 4096.
pub(crate) const STEP_BYTES: u64 = 1 << 20;

/// The smallest volume: mkfs.ext4 still makes a journal in it.
pub(crate) const SIZE_BYTES_MIN: u64 = 16 << 20;

/// The largest volume.
pub(crate) const SIZE_BYTES_MAX: u64 = 64 << 40;

/// The size of a claim that names none.
const SIZE_BYTES_DEFAULT: u64 = 10 << 30;

/// The smallest size within the range: rounded up to a whole step, or to a whole block where the limit forbids that.
pub(crate) fn choose(range: Option<&CapacityRange>) -> Result<u64, Error> {
    let Some((required, limit)) = read(range)? else {
        return Ok(SIZE_BYTES_DEFAULT);
    };
    if required > limit {
        return Err(Error::OutOfRange(format!("capacity_range: required_bytes {required} is above limit_bytes {limit}")));
    }
    if required > SIZE_BYTES_MAX || limit < SIZE_BYTES_MIN {
        return Err(Error::OutOfRange(format!(
            "capacity_range {required} to {limit} holds no possible size: volumes have {SIZE_BYTES_MIN} to {SIZE_BYTES_MAX} bytes"
        )));
    }
    let wanted = match required {
        0 => SIZE_BYTES_DEFAULT.min(limit / STEP_BYTES * STEP_BYTES),
        required => required.max(SIZE_BYTES_MIN),
    };
    [wanted.next_multiple_of(STEP_BYTES), wanted.next_multiple_of(u64::from(api_types::limits::BLOCK_BYTES))]
        .into_iter()
        .find(|size| *size <= limit)
        .ok_or_else(|| Error::OutOfRange(format!("capacity_range {required} to {limit} holds no multiple of 4096 bytes")))
}

/// An existing volume of that size is what the range asks for.
pub(crate) fn fits(size: u64, range: Option<&CapacityRange>) -> bool {
    match read(range) {
        Ok(None) => true,
        Ok(Some((required, limit))) => (required..=limit).contains(&size),
        Err(_) => false,
    }
}

fn read(range: Option<&CapacityRange>) -> Result<Option<(u64, u64)>, Error> {
    let Some(range) = range else { return Ok(None) };
    let read = |field: &str, bytes: i64| {
        u64::try_from(bytes).map_err(|_| Error::OutOfRange(format!("capacity_range.{field} {bytes} is negative")))
    };
    let (required, limit) = (read("required_bytes", range.required_bytes)?, read("limit_bytes", range.limit_bytes)?);
    Ok(match (required, limit) {
        (0, 0) => None,
        (required, 0) => Some((required, u64::MAX)),
        both => Some(both),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[test]
    fn the_smallest_fitting_size_is_chosen() {
        let mib = 1i64 << 20;
        let cases = [
            (None, SIZE_BYTES_DEFAULT),
            (Some(range(0, 0)), SIZE_BYTES_DEFAULT),
            (Some(range(1, 0)), SIZE_BYTES_MIN),
            (Some(range(100 * mib, 0)), 100 << 20),
            (Some(range(100 * mib + 1, 0)), 101 << 20),
            (Some(range(100 * mib + 1, 100 * mib + 8192)), (100 << 20) + 4096),
            (Some(range(0, 100 * mib)), 100 << 20),
            (Some(range(0, i64::MAX)), SIZE_BYTES_DEFAULT),
        ];
        for (range, size) in cases {
            assert_eq!(choose(range.as_ref()), Ok(size), "{range:?}");
            assert!(fits(size, range.as_ref()), "{range:?}");
        }
    }

    #[test]
    fn a_range_without_a_possible_size_is_out_of_range() {
        for (required, limit) in [(2, 1), (-1, 0), (0, -1), (1, 4096), (i64::MAX, 0), ((20 << 20) + 1, (20 << 20) + 2)] {
            let error = choose(Some(&range(required, limit))).unwrap_err();
            assert!(matches!(error, Error::OutOfRange(_)), "{required} {limit}: {error}");
        }
    }
}
