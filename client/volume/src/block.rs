//! The seam between a volume and the kernel's doors.

use bytes::Bytes;
use futures::future::LocalBoxFuture;

/// Why a block request failed. Each kind is something else for the front end to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Outside the device, or not aligned to the block.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The pool is full: ENOSPC.
    #[error("no space left in the pool")]
    NoSpace,
    /// Another writer took over: nothing will ever succeed again through this handle.
    #[error("this volume is served elsewhere now")]
    Fenced,
    /// The volume is closing or closed.
    #[error("the volume is closed")]
    Closed,
    /// Data can't be had: too few copies answer, or none verifies.
    #[error("data unavailable: {0}")]
    Unavailable(String),
}

/// A disk as front ends see it. Blocks of `api_types::limits::BLOCK_BYTES`; every offset and length is a multiple.
/// Owned by one thread, shared as `Rc<dyn BlockDevice>`. Requests run concurrently, and a later request sees what an
/// earlier *answered* one did. Dropping a future doesn't undo its request.
pub trait BlockDevice {
    /// Current size in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads; the parts together are `length` bytes long. Parts of unwritten space may share one page of zeros.
    fn read(&self, offset: u64, length: u32) -> LocalBoxFuture<'static, Result<Vec<Bytes>, BlockError>>;

    /// Writes; durable when answered. `data` is at most 1 MiB; up to `limits::UNIT_DATA_BYTES_MAX` it is atomic.
    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<(), BlockError>>;

    /// Everything answered before is durable (it is already: a flush costs nothing).
    fn flush(&self) -> LocalBoxFuture<'static, Result<(), BlockError>>;

    /// Forgets the bytes; they read as zeros afterwards.
    fn discard(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>>;

    /// Makes the bytes zeros without storing them.
    fn write_zeroes(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>>;
}
