//! Page-aligned buffers that payloads are received into, so that they can go to a disk as they are.
//!
//! Freed buffers wait in a short list of the thread that freed them, one list per size, because a fresh megabyte costs
//! the kernel 256 page faults.

use bytes::Bytes;
use std::cell::RefCell;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Sizes that are kept, in pages.
const CLASS_PAGES: [usize; 5] = [1, 4, 16, 64, 256];
/// How many of each size one thread keeps: at most 16 MiB together with the largest class.
const KEPT: [usize; 5] = [256, 64, 32, 16, 12];

/// One page, with its alignment in the type.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

thread_local! {
    static FREE: RefCell<[Vec<Vec<Page>>; 5]> = const { RefCell::new([const { Vec::new() }; 5]) };
}

/// A page-aligned run of bytes. Its contents are whatever was there before, never another process's.
pub(crate) struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let wanted = len.div_ceil(4096).max(1);
        let Some(class) = CLASS_PAGES.iter().position(|&pages| pages >= wanted) else {
            return AlignedBuf { pages: fresh(wanted), len };
        };
        let kept = FREE.with_borrow_mut(|free| free[class].pop());
        AlignedBuf { pages: kept.unwrap_or_else(|| fresh(CLASS_PAGES[class])), len }
    }

    /// A buffer with a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.as_mut().copy_from_slice(bytes);
        buffer
    }

    /// Shortens it; the memory stays.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Shares it, without copying.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

/// Zeroed pages from the allocator. Running out of memory aborts, as it does in every Rust collection.
fn fresh(pages: usize) -> Vec<Page> {
    Page::new_vec_zeroed(pages).unwrap_or_else(|_| vec![Page([0; 4096]); pages])
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        &self.pages.as_slice().as_bytes()[..self.len]
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_slice().as_mut_bytes()[..self.len]
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        let Some(class) = CLASS_PAGES.iter().position(|&size| size == pages.len()) else { return };
        // While the thread ends its list may be gone already; then the memory is simply freed.
        let _ = FREE.try_with(|free| {
            if let Ok(mut free) = free.try_borrow_mut()
                && free[class].len() < KEPT[class]
            {
                free[class].push(pages);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let address = {
            let buffer = AlignedBuf::new(5000);
            assert_eq!(buffer.as_ref().len(), 5000);
            let address = buffer.as_ref().as_ptr() as usize;
            assert_eq!(address % 4096, 0);
            let shared = buffer.freeze();
            assert_eq!(shared.as_ptr() as usize, address);
            address
        };
        assert_eq!(AlignedBuf::new(16384).as_ref().as_ptr() as usize, address);
    }

    #[test]
    fn sizes_beyond_the_largest_class_work_too() {
        let mut buffer = AlignedBuf::new((1 << 20) + 1);
        buffer.as_mut()[1 << 20] = 7;
        buffer.truncate(10);
        assert_eq!(buffer.as_ref().len(), 10);
        assert_eq!(AlignedBuf::copy_of(&[1, 2, 3]).as_ref(), &[1, 2, 3]);
    }
}
