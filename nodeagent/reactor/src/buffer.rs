//! Aligned memory for I/O, pooled and bounded.
//!
//! Slabs of 4 MiB are mapped (on huge pages where there are any) and cut into buffers of one size class each. A slab
//! none of whose buffers is out may change its class or go back to the system, so that the bound is on the process's
//! memory and not on each class. Buffers may be dropped on any thread.

#![expect(unsafe_code, reason = "maps memory and hands out disjoint parts of it")]

mod slab;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use parking_lot::Mutex;
use slab::{SLAB_BYTES, Slab};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use tokio::sync::oneshot;

pub use slab::Pages;

/// Every buffer starts at a multiple of this, which satisfies direct I/O on any disk.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// The longest buffer: the longest read of a chunk, widened to whole blocks at both ends.
pub const BUFFER_BYTES_MAX: usize = (1 << 20) + (8 << 10);

/// Sizes that buffers come in. Beyond 16 KiB a class is a power of two and 8 KiB, room for a unit's trailer and footer
/// beside its data; the largest unit (532 KiB) has one of its own.
const CLASS_BYTES: [usize; 10] =
    [4 << 10, 8 << 10, 16 << 10, 24 << 10, 40 << 10, 72 << 10, 136 << 10, 264 << 10, 536 << 10, BUFFER_BYTES_MAX];

const _: () = assert!(api_types::limits::UNIT_BYTES_MAX as usize <= CLASS_BYTES[8]);

/// The most callers that may wait for one pool.
const WAITERS_MAX: usize = 4096;

/// How a pool is made.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// The most memory the pool maps, in bytes; rounded up to whole slabs of 4 MiB.
    pub bytes_max: usize,
    /// Slabs kept mapped although nothing of them is in use.
    pub idle_slabs: usize,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { bytes_max: 256 << 20, idle_slabs: 8, huge_pages: true }
    }
}

/// What a pool holds right now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolInfo {
    /// The bound.
    pub bytes_max: usize,
    /// Mapped, in bytes.
    pub mapped_bytes: usize,
    /// In buffers that are out, by the size of their classes, in bytes.
    pub used_bytes: usize,
    /// Callers waiting.
    pub waiting: usize,
    /// The pages of the newest slab; `None` before the first.
    pub pages: Option<Pages>,
}

/// Why there is no buffer.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// No pool has such a buffer.
    #[error("a buffer of {length} bytes was asked for; the longest is {BUFFER_BYTES_MAX}")]
    TooLong {
        /// What was asked for, in bytes.
        length: usize,
    },
    /// All memory of the pool is in use.
    #[error("the buffer pool is exhausted: {bytes_max} bytes are in use; raise its limit or send less at once")]
    Exhausted {
        /// The pool's bound.
        bytes_max: usize,
    },
    /// The system gave no memory.
    #[error("mapping memory for buffers failed: {0}")]
    Map(#[from] io::Error),
}

impl From<TakeError> for io::Error {
    fn from(error: TakeError) -> Self {
        let kind = match &error {
            TakeError::TooLong { .. } => io::ErrorKind::InvalidInput,
            TakeError::Exhausted { .. } | TakeError::Map(_) => io::ErrorKind::OutOfMemory,
        };
        io::Error::new(kind, error)
    }
}

/// A bounded pool of [`AlignedBuf`]s. Clones share the memory; it may be used from several threads.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

impl BufferPool {
    /// An empty pool; memory is mapped when it is first needed.
    #[must_use]
    pub fn new(options: PoolOptions) -> Self {
        let slabs_max = options.bytes_max.div_ceil(SLAB_BYTES).max(1);
        BufferPool { shared: Arc::new(Shared { options, slabs_max, state: Mutex::new(State::default()) }) }
    }

    /// A buffer of `length` bytes, or an error at once. It holds whatever was in it before.
    pub fn try_take(&self, length: usize) -> Result<AlignedBuf, TakeError> {
        let class = class_of(length)?;
        let slot = self.shared.state.lock().take(&self.shared, class)?;
        Ok(AlignedBuf::new(slot, length, &self.shared))
    }

    /// As [`Self::try_take`], but the bytes are zero.
    pub fn try_take_zeroed(&self, length: usize) -> Result<AlignedBuf, TakeError> {
        let mut buffer = self.try_take(length)?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// A buffer of `length` bytes, after others have been returned if it must be. Who waits for the same size is served
    /// in order. Fails when too many wait already. May be dropped at any time.
    pub async fn take(&self, length: usize) -> Result<AlignedBuf, TakeError> {
        let class = class_of(length)?;
        let granted = {
            let mut state = self.shared.state.lock();
            if !state.waiters.iter().any(|waiter| waiter.class == class) {
                match state.take(&self.shared, class) {
                    Ok(slot) => return Ok(AlignedBuf::new(slot, length, &self.shared)),
                    Err(TakeError::Exhausted { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if state.waiters.len() >= WAITERS_MAX {
                return Err(self.shared.exhausted());
            }
            let (sender, granted) = oneshot::channel();
            state.waiters.push_back(Waiter { class, length, sender });
            granted
        };
        granted.await.map_err(|_| self.shared.exhausted())
    }

    /// What the pool holds right now.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        let state = self.shared.state.lock();
        PoolInfo {
            bytes_max: self.shared.slabs_max * SLAB_BYTES,
            mapped_bytes: state.mapped * SLAB_BYTES,
            used_bytes: state.used_bytes,
            waiting: state.waiters.len(),
            pages: state.pages,
        }
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        BufferPool::new(PoolOptions::default())
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferPool").field(&self.info()).finish()
    }
}

/// `bytes` starts and ends at multiples of `alignment`, so that a disk with such blocks takes it as it is.
#[must_use]
pub fn is_aligned(bytes: &Bytes, alignment: u32) -> bool {
    let alignment = alignment as usize;
    bytes.as_ptr().addr().is_multiple_of(alignment) && bytes.len().is_multiple_of(alignment)
}

fn class_of(length: usize) -> Result<usize, TakeError> {
    CLASS_BYTES.iter().position(|bytes| length <= *bytes).ok_or(TakeError::TooLong { length })
}

/// Where a buffer is.
#[derive(Clone, Copy)]
struct Slot {
    start: NonNull<u8>,
    slab: usize,
    index: u16,
    class: usize,
}

/// Memory from a [`BufferPool`], aligned to [`BUFFER_ALIGNMENT`]; back to the pool on drop.
pub struct AlignedBuf {
    slot: Slot,
    length: usize,
    shared: Arc<Shared>,
}

// SAFETY: the slot belongs to this value alone until it is dropped, and the pool behind it takes returns on any thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference gives only shared access to the bytes.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn new(slot: Slot, length: usize, shared: &Arc<Shared>) -> Self {
        AlignedBuf { slot, length, shared: Arc::clone(shared) }
    }

    /// Bytes it may be stretched to by [`Self::set_len`].
    #[must_use]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.slot.class]
    }

    /// Makes it longer or shorter, `capacity` at most (anything above is cut to that). What is added holds whatever
    /// was there before.
    pub fn set_len(&mut self, length: usize) {
        self.length = length.min(self.capacity());
    }

    /// Shares it without copying. The memory returns to the pool when the last clone is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        if self.length == 0 { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is mapped, initialised memory of `capacity >= length` bytes that only this value may touch.
        unsafe { std::slice::from_raw_parts(self.slot.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the exclusive borrow makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.slot.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.length, self.capacity())
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.give(&self.shared, self.slot);
        // Served outside the lock: a waiter that has just left drops its buffer, which comes back through here.
        while let Some((waiter, slot)) = state.next_grant(&self.shared) {
            drop(state);
            let _gone = waiter.sender.send(AlignedBuf::new(slot, waiter.length, &self.shared));
            state = self.shared.state.lock();
        }
    }
}

struct Shared {
    options: PoolOptions,
    slabs_max: usize,
    state: Mutex<State>,
}

impl Shared {
    fn exhausted(&self) -> TakeError {
        TakeError::Exhausted { bytes_max: self.slabs_max * SLAB_BYTES }
    }
}

struct Waiter {
    class: usize,
    length: usize,
    sender: oneshot::Sender<AlignedBuf>,
}

#[derive(Default)]
struct State {
    /// Slabs by number; `None` where one was given back.
    slabs: Vec<Option<Slab>>,
    /// Per class, the slabs with a free buffer.
    open: [Vec<usize>; CLASS_BYTES.len()],
    mapped: usize,
    /// Slabs none of whose buffers is out.
    idle: usize,
    used_bytes: usize,
    waiters: VecDeque<Waiter>,
    pages: Option<Pages>,
}

impl State {
    fn take(&mut self, shared: &Shared, class: usize) -> Result<Slot, TakeError> {
        if self.open[class].is_empty() {
            self.open_slab(shared, class)?;
        }
        let number = self.open[class].last().copied().ok_or_else(|| shared.exhausted())?;
        let slab = self.slabs[number].as_mut().ok_or_else(|| shared.exhausted())?;
        let was_idle = slab.is_idle();
        let (index, start) = slab.take().ok_or_else(|| shared.exhausted())?;
        if slab.is_full() {
            self.open[class].pop();
        }
        self.idle -= usize::from(was_idle);
        self.used_bytes += CLASS_BYTES[class];
        Ok(Slot { start, slab: number, index, class })
    }

    /// Finds a slab for a class that has none open: a new one while the bound allows, else an idle one of another class.
    fn open_slab(&mut self, shared: &Shared, class: usize) -> Result<(), TakeError> {
        if self.mapped < shared.slabs_max {
            let slab = Slab::map(shared.options.huge_pages, CLASS_BYTES[class])?;
            self.pages = Some(slab.pages());
            self.mapped += 1;
            self.idle += 1;
            let number = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
            if number == self.slabs.len() {
                self.slabs.push(Some(slab));
            } else {
                self.slabs[number] = Some(slab);
            }
            self.open[class].push(number);
            return Ok(());
        }
        if self.idle == 0 {
            return Err(shared.exhausted());
        }
        for open in &mut self.open {
            let idle = open.iter().position(|number| self.slabs[*number].as_ref().is_some_and(Slab::is_idle));
            if let Some(place) = idle {
                let number = open.swap_remove(place);
                if let Some(slab) = self.slabs[number].as_mut() {
                    slab.cut(CLASS_BYTES[class]);
                }
                self.open[class].push(number);
                return Ok(());
            }
        }
        Err(shared.exhausted())
    }

    fn give(&mut self, shared: &Shared, slot: Slot) {
        self.used_bytes -= CLASS_BYTES[slot.class];
        let Some(slab) = self.slabs[slot.slab].as_mut() else { return };
        if slab.is_full() {
            self.open[slot.class].push(slot.slab);
        }
        slab.give(slot.index);
        if slab.is_idle() {
            self.idle += 1;
            if self.idle > shared.options.idle_slabs && self.waiters.is_empty() {
                self.open[slot.class].retain(|number| *number != slot.slab);
                self.slabs[slot.slab] = None;
                self.mapped -= 1;
                self.idle -= 1;
            }
        }
    }

    /// The first waiter that can be served now, with its buffer.
    fn next_grant(&mut self, shared: &Shared) -> Option<(Waiter, Slot)> {
        let mut tried = [false; CLASS_BYTES.len()];
        let mut place = 0;
        while place < self.waiters.len() {
            let class = self.waiters[place].class;
            if self.waiters[place].sender.is_closed() {
                self.waiters.remove(place);
                continue;
            }
            if !tried[class] {
                tried[class] = true;
                if let Ok(slot) = self.take(shared, class) {
                    return self.waiters.remove(place).map(|waiter| (waiter, slot));
                }
            }
            place += 1;
        }
        None
    }
}
