//! One mapping, cut into buffers of one size.

use std::io;
use std::ptr::NonNull;

/// Bytes of one mapping: two huge pages.
pub(super) const SLAB_BYTES: usize = 4 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What pages the memory is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Reserved huge pages (hugetlbfs).
    HugeTlb,
    /// The kernel was asked to use huge pages where it finds some.
    Transparent,
    /// Ordinary pages.
    Normal,
}

impl Pages {
    /// The name used in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Pages::HugeTlb => "hugetlb",
            Pages::Transparent => "transparent",
            Pages::Normal => "normal",
        }
    }
}

pub(super) struct Slab {
    start: NonNull<u8>,
    pages: Pages,
    buffer_bytes: usize,
    /// Numbers of the buffers that are in; the last is taken next, so that low addresses are used first and the rest of
    /// the mapping costs no memory until it is needed.
    free: Vec<u16>,
}

// SAFETY: the slab owns its mapping, which any thread may use.
unsafe impl Send for Slab {}

impl Slab {
    pub(super) fn map(huge_pages: bool, buffer_bytes: usize) -> io::Result<Self> {
        let (start, pages) = map(huge_pages)?;
        let mut slab = Slab { start, pages, buffer_bytes, free: Vec::new() };
        slab.cut(buffer_bytes);
        Ok(slab)
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    fn buffers(&self) -> usize {
        SLAB_BYTES / self.buffer_bytes
    }

    /// Cuts an idle slab into buffers of another size.
    pub(super) fn cut(&mut self, buffer_bytes: usize) {
        assert!(self.free.is_empty() || self.is_idle(), "a slab in use was cut anew");
        self.buffer_bytes = buffer_bytes;
        let buffers = u16::try_from(self.buffers()).unwrap_or(u16::MAX);
        self.free.clear();
        self.free.extend((0..buffers).rev());
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.buffers()
    }

    /// No buffer is left in it.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<(u16, NonNull<u8>)> {
        let index = self.free.pop()?;
        // SAFETY: `index` is below `buffers()`, so the buffer lies within the mapping.
        let start = unsafe { self.start.add(usize::from(index) * self.buffer_bytes) };
        Some((index, start))
    }

    pub(super) fn give(&mut self, index: u16) {
        self.free.push(index);
        assert!(self.free.len() <= self.buffers(), "a buffer was returned twice");
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        unmap(self.start.as_ptr(), SLAB_BYTES);
    }
}

fn map(huge_pages: bool) -> io::Result<(NonNull<u8>, Pages)> {
    if huge_pages {
        if let Ok(start) = map_anonymous(SLAB_BYTES, libc::MAP_HUGETLB) {
            return Ok((start, Pages::HugeTlb));
        }
        // Mapped one huge page too long, then trimmed to where huge pages start.
        let start = map_anonymous(SLAB_BYTES + HUGE_PAGE_BYTES, 0)?;
        let before = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `before` is less than one huge page, by which the mapping is longer than a slab.
        let aligned = unsafe { start.add(before) };
        unmap(start.as_ptr(), before);
        // SAFETY: the end of the slab lies within the mapping, or is its end.
        let end = unsafe { aligned.add(SLAB_BYTES) };
        unmap(end.as_ptr(), HUGE_PAGE_BYTES - before);
        // SAFETY: advice on memory mapped above changes nothing of what it holds.
        let advised = unsafe { libc::madvise(aligned.as_ptr().cast(), SLAB_BYTES, libc::MADV_HUGEPAGE) };
        return Ok((aligned, if advised == 0 { Pages::Transparent } else { Pages::Normal }));
    }
    Ok((map_anonymous(SLAB_BYTES, 0)?, Pages::Normal))
}

fn map_anonymous(length: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

fn unmap(start: *mut u8, length: usize) {
    if length > 0 {
        // SAFETY: called only on whole pages of a mapping of this module that nothing refers to any more.
        unsafe { libc::munmap(start.cast(), length) };
    }
}
