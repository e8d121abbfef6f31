//! Byte-granular requests on a device of whole blocks: bounds, splitting, read-modify-write, and the observer.

use crate::buffer::AlignedBuf;
use crate::front_end::{Answered, Context, Op};
use crate::ranges::RangeLock;
use api_types::VolumeId;
use api_types::limits::BLOCK_BYTES;
use bytes::Bytes;
use client_volume::{BlockDevice, BlockError};
use futures::future::try_join_all;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The most bytes of one request to the device; longer ones are cut.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// A device as front ends use it. One per attachment; two attachments of one device must not both do unaligned writes.
pub(crate) struct Adapter {
    volume: VolumeId,
    device: Rc<dyn BlockDevice>,
    locks: RangeLock,
    context: Context,
    /// The error of the last request that failed for the device's own reasons, until another succeeds.
    trouble: RefCell<Option<BlockError>>,
    troubled: Cell<bool>,
}

fn whole(range: &Range<u64>) -> bool {
    range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK)
}

/// The blocks that `range` touches.
fn widened(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)
}

/// The whole blocks inside `range`; empty when there are none.
fn narrowed(range: &Range<u64>) -> Range<u64> {
    let start = range.start.next_multiple_of(BLOCK);
    start..(range.end / BLOCK * BLOCK).max(start)
}

/// Cuts `range` at steps of [`PIECE_BYTES`] from the block it begins in.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    let origin = range.start / BLOCK * BLOCK;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let next = (origin + ((at - origin) / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end);
            let piece = at..next;
            at = next;
            piece
        })
    })
}

/// Takes `skip` bytes off the front of `parts` and keeps `keep`.
fn cut(parts: Vec<Bytes>, mut skip: usize, mut keep: usize) -> Vec<Bytes> {
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        let drop = skip.min(part.len());
        skip -= drop;
        let take = keep.min(part.len() - drop);
        keep -= take;
        if take > 0 {
            out.push(part.slice(drop..drop + take));
        }
    }
    out
}

impl Adapter {
    pub(crate) fn new(volume: VolumeId, device: Rc<dyn BlockDevice>, context: Context) -> Rc<Self> {
        Rc::new(Adapter {
            volume,
            device,
            locks: RangeLock::default(),
            context,
            trouble: RefCell::new(None),
            troubled: Cell::new(false),
        })
    }

    /// The device's present size.
    pub(crate) fn size(&self) -> u64 {
        self.device.size_bytes()
    }

    pub(crate) fn clock(&self) -> &Rc<dyn api_types::Clock> {
        &self.context.clock
    }

    fn range(&self, offset: u64, length: u64) -> Result<Range<u64>, BlockError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size() => Ok(offset..end),
            _ => Err(BlockError::Invalid("beyond the end of the device")),
        }
    }

    fn observe<T>(&self, op: Op, at: (u64, u64), start: Duration, result: &Result<T, BlockError>) {
        let latency = self.context.clock.now().saturating_sub(start);
        let answered = Answered { volume: self.volume, op, offset: at.0, bytes: at.1, latency, error: result.as_ref().err() };
        self.context.observer.answered(answered);
        match result {
            Ok(_) if !self.troubled.get() => {}
            Ok(_) => self.note(None),
            Err(BlockError::Invalid(_)) => {}
            Err(error) => self.note(Some(error.clone())),
        }
    }

    fn note(&self, error: Option<BlockError>) {
        // A fenced handle stays fenced, whatever an empty flush answers.
        if !matches!(*self.trouble.borrow(), Some(BlockError::Fenced)) {
            self.troubled.set(error.is_some());
            *self.trouble.borrow_mut() = error;
        }
    }

    /// Why the device doesn't serve, as its last answers say.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().as_ref().map(ToString::to_string)
    }

    /// Reads; the parts together have `length` bytes.
    pub(crate) async fn read(&self, offset: u64, length: u32) -> Result<Vec<Bytes>, BlockError> {
        let start = self.context.clock.now();
        let result = self.read_parts(offset, length).await;
        self.observe(Op::Read, (offset, length.into()), start, &result);
        result
    }

    async fn read_parts(&self, offset: u64, length: u32) -> Result<Vec<Bytes>, BlockError> {
        let range = self.range(offset, length.into())?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if whole(&range) && u64::from(length) <= PIECE_BYTES {
            return checked(self.device.read(offset, length).await?, length as usize);
        }
        let wide = widened(&range);
        let reads = pieces(wide.clone()).map(|piece| {
            let bytes = (piece.end - piece.start) as u32;
            let read = self.device.read(piece.start, bytes);
            async move { checked(read.await?, bytes as usize) }
        });
        let parts = try_join_all(reads).await?.into_iter().flatten().collect();
        Ok(cut(parts, (range.start - wide.start) as usize, length as usize))
    }

    /// Writes; durable when answered.
    pub(crate) async fn write(&self, offset: u64, data: Bytes) -> Result<(), BlockError> {
        let start = self.context.clock.now();
        let bytes = data.len() as u64;
        let result = self.write_pieces(offset, data).await;
        self.observe(Op::Write, (offset, bytes), start, &result);
        result
    }

    async fn write_pieces(&self, offset: u64, data: Bytes) -> Result<(), BlockError> {
        let range = self.range(offset, data.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        let _guard = self.locks.acquire(widened(&range), !whole(&range)).await;
        if whole(&range) && data.len() as u64 <= PIECE_BYTES {
            return self.device.write(offset, data).await;
        }
        let writes = pieces(range.clone()).map(|piece| {
            let part = data.slice((piece.start - offset) as usize..(piece.end - offset) as usize);
            self.write_piece(piece, part)
        });
        try_join_all(writes).await?;
        Ok(())
    }

    /// Writes at most one piece, with the rest of its first and last block read and written back when it begins or
    /// ends inside a block. The caller holds the range.
    async fn write_piece(&self, range: Range<u64>, data: Bytes) -> Result<(), BlockError> {
        if whole(&range) {
            return self.device.write(range.start, data).await;
        }
        let wide = widened(&range);
        let mut buffer = AlignedBuf::new((wide.end - wide.start) as usize);
        let last = wide.end - BLOCK;
        if range.start != wide.start || last == wide.start {
            self.read_block(wide.start, &mut buffer.as_mut()[..BLOCK as usize]).await?;
        }
        if range.end != wide.end && last != wide.start {
            self.read_block(last, &mut buffer.as_mut()[(last - wide.start) as usize..]).await?;
        }
        let at = (range.start - wide.start) as usize;
        buffer.as_mut()[at..at + data.len()].copy_from_slice(&data);
        self.device.write(wide.start, buffer.freeze()).await
    }

    async fn read_block(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let parts = checked(self.device.read(offset, BLOCK_BYTES).await?, into.len())?;
        let mut at = 0;
        for part in parts {
            into[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        Ok(())
    }

    /// Everything answered before is durable.
    pub(crate) async fn flush(&self) -> Result<(), BlockError> {
        let start = self.context.clock.now();
        let result = self.device.flush().await;
        self.observe(Op::Flush, (0, 0), start, &result);
        result
    }

    /// Makes the bytes zeros without storing them; parts of blocks at the ends are written.
    pub(crate) async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.clear(Op::WriteZeroes, offset, length).await
    }

    /// Forgets the bytes. They read as zeros afterwards, to the byte: holes punched into our FUSE file must.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.clear(Op::Discard, offset, length).await
    }

    async fn clear(&self, op: Op, offset: u64, length: u64) -> Result<(), BlockError> {
        let start = self.context.clock.now();
        let result = self.clear_pieces(op, offset, length).await;
        self.observe(op, (offset, length), start, &result);
        result
    }

    async fn clear_pieces(&self, op: Op, offset: u64, length: u64) -> Result<(), BlockError> {
        let range = self.range(offset, length)?;
        if range.is_empty() {
            return Ok(());
        }
        let _guard = self.locks.acquire(widened(&range), !whole(&range)).await;
        let middle = narrowed(&range);
        let head = range.start..middle.start.min(range.end);
        let tail = middle.end.max(head.end)..range.end;
        for edge in [head, tail].into_iter().filter(|edge| !edge.is_empty()) {
            let zeros = AlignedBuf::copy_of(&[0; BLOCK as usize][..(edge.end - edge.start) as usize]);
            self.write_piece(edge, zeros.freeze()).await?;
        }
        if middle.is_empty() {
            return Ok(());
        }
        let bytes = middle.end - middle.start;
        match op {
            Op::Discard => self.device.discard(middle.start, bytes).await,
            _ => self.device.write_zeroes(middle.start, bytes).await,
        }
    }
}

/// A device that answers another length than was asked would shift every byte behind it: refuse the answer.
fn checked(parts: Vec<Bytes>, length: usize) -> Result<Vec<Bytes>, BlockError> {
    if parts.iter().map(Bytes::len).sum::<usize>() == length {
        Ok(parts)
    } else {
        Err(BlockError::Unavailable("the volume answered another length than was asked".to_owned()))
    }
}

#[cfg(test)]
mod tests;
