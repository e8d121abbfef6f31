//! What every device refuses before anything is asked of the disk.

use crate::device::Info;
use std::io;

/// The longest single read or write, in bytes: the longest buffer there is.
pub const IO_BYTES_MAX: u32 = 1_056_768;

const _: () = assert!(IO_BYTES_MAX as usize == nodeagent_reactor::buffer::BUFFER_BYTES_MAX);

/// A request that breaks a rule of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Offset or length isn't a multiple of the block.
    #[error("offset {offset} and length {length} must be multiples of the device's block of {block_bytes} bytes")]
    Unaligned {
        /// What was asked for, in bytes.
        offset: u64,
        /// What was asked for, in bytes.
        length: u64,
        /// The device's block, in bytes.
        block_bytes: u32,
    },
    /// The range ends beyond the device.
    #[error("offset {offset} and length {length} end beyond the device's {size_bytes} bytes")]
    BeyondEnd {
        /// What was asked for, in bytes.
        offset: u64,
        /// What was asked for, in bytes.
        length: u64,
        /// The device's size, in bytes.
        size_bytes: u64,
    },
    /// Nothing, or more than [`IO_BYTES_MAX`], was asked for at once.
    #[error("length {length} must be 1 to {IO_BYTES_MAX} bytes: split the request")]
    Length {
        /// What was asked for, in bytes.
        length: u64,
    },
}

impl From<RangeError> for io::Error {
    fn from(error: RangeError) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Checks one read or write.
pub(crate) fn check_io(info: &Info, offset: u64, length: usize) -> Result<(), RangeError> {
    let length = length as u64;
    if length == 0 || length > u64::from(IO_BYTES_MAX) {
        return Err(RangeError::Length { length });
    }
    check_range(info, offset, length)
}

/// Checks a range of any length, as trims have it.
pub(crate) fn check_range(info: &Info, offset: u64, length: u64) -> Result<(), RangeError> {
    let block_bytes = info.block_bytes;
    let block = u64::from(block_bytes);
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(RangeError::Unaligned { offset, length, block_bytes });
    }
    match offset.checked_add(length) {
        Some(end) if end <= info.size_bytes => Ok(()),
        _ => Err(RangeError::BeyondEnd { offset, length, size_bytes: info.size_bytes }),
    }
}
