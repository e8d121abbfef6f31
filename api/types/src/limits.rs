//! Every bound that two rooms must agree on, asserted against the others.

/// The block of a volume, in bytes. All block addresses count these.
pub const BLOCK_BYTES: u32 = 4096;

/// The unit of space on a device, in bytes.
pub const EXTENT_BYTES: u32 = 1 << 20;

/// The smallest and the largest capacity of a chunk, in bytes.
pub const CHUNK_BYTES_MIN: u32 = 1 << 20;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_MAX: u32 = 1 << 31;

/// The most caller's data one unit may hold, in bytes.
pub const UNIT_DATA_BYTES_MAX: u32 = 512 << 10;

/// The most trailer one unit may hold, in bytes.
pub const UNIT_TRAILER_BYTES_MAX: u32 = 16 << 10;

/// The longest unit, in bytes: data, trailer, footer and the padding between them at the larger alignment.
pub const UNIT_BYTES_MAX: u32 = UNIT_DATA_BYTES_MAX + UNIT_TRAILER_BYTES_MAX + 4096;

/// The most bytes one read of a chunk may ask for, and so the largest payload of a frame.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// The most replicas a chunk may have.
pub const REPLICAS_MAX: usize = 8;

const _: () = {
    assert!(UNIT_BYTES_MAX <= EXTENT_BYTES, "a unit crosses at most one border between extents");
    assert!(UNIT_BYTES_MAX <= READ_BYTES_MAX, "a whole unit can be read with one request");
    assert!(CHUNK_BYTES_MIN >= UNIT_BYTES_MAX, "every chunk holds at least one unit");
    assert!(UNIT_DATA_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
};
