//! A device in main memory.

use crate::device::{Device, Info, Media, Write};
use crate::range::{check_io, check_range};
use api_types::QosClass;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

const PAGE_BYTES: u64 = 4096;

/// A sparse device in main memory. Clones are handles to the same bytes, so keeping one is how they survive the
/// "restart" of who uses it. Every request is done by the time the call returns, and everything is durable; wrap it in
/// [`Faulty`](crate::Faulty) for a device that takes time and forgets.
#[derive(Clone, Debug)]
pub struct Memory {
    info: Rc<Info>,
    pages: Rc<RefCell<BTreeMap<u64, Box<[u8]>>>>,
}

impl Memory {
    /// A device of zeros. The size is cut to whole blocks.
    ///
    /// # Panics
    /// When `block_bytes` is neither 512 nor 4096.
    #[must_use]
    pub fn new(size_bytes: u64, block_bytes: u32) -> Self {
        assert!(block_bytes == 512 || block_bytes == 4096, "a block has 512 or 4096 bytes, not {block_bytes}");
        let info = Info {
            name: "memory".to_owned(),
            size_bytes: size_bytes - size_bytes % u64::from(block_bytes),
            block_bytes,
            volatile_cache: false,
            trims: true,
            media: Media::Memory,
            backend: "memory",
        };
        Memory { info: Rc::new(info), pages: Rc::default() }
    }

    /// A copy of the device as it is now, with bytes of its own.
    #[must_use]
    pub fn fork(&self) -> Self {
        Memory { info: Rc::clone(&self.info), pages: Rc::new(RefCell::new(self.pages.borrow().clone())) }
    }

    /// Bytes that were ever written and not trimmed, in whole pages of 4 KiB.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.pages.borrow().len() as u64 * PAGE_BYTES
    }

    /// Copies bytes out, aligned or not. What lies beyond the end reads as zero.
    #[must_use]
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let pages = self.pages.borrow();
        each_page(offset, length, |page, within, at, count| {
            if let Some(stored) = pages.get(&page) {
                bytes[at..at + count].copy_from_slice(&stored[within..within + count]);
            }
        });
        bytes
    }

    /// Overwrites bytes behind the back of who uses the device, aligned or not. What lies beyond the end is ignored.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(self.info.size_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        let mut pages = self.pages.borrow_mut();
        each_page(offset, bytes.len(), |page, within, at, count| {
            let stored = pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES as usize].into_boxed_slice());
            stored[within..within + count].copy_from_slice(&bytes[at..at + count]);
        });
    }

    fn forget(&self, offset: u64, length: u64) {
        let mut pages = self.pages.borrow_mut();
        let (first, last) = (offset.div_ceil(PAGE_BYTES), (offset + length) / PAGE_BYTES);
        if first < last {
            let mut rest = pages.split_off(&first);
            pages.append(&mut rest.split_off(&last));
        }
    }
}

/// Calls `part(page, offset within it, offset within the range, count)` for each page of a range.
fn each_page(offset: u64, length: usize, mut part: impl FnMut(u64, usize, usize, usize)) {
    let mut at = 0;
    while at < length {
        let place = offset + at as u64;
        let within = (place % PAGE_BYTES) as usize;
        let count = (PAGE_BYTES as usize - within).min(length - at);
        part(place / PAGE_BYTES, within, at, count);
        at += count;
    }
}

impl Device for Memory {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read(&self, offset: u64, length: u32, _qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let answer = check_io(&self.info, offset, length as usize);
        ready(answer.map(|()| Bytes::from(self.peek(offset, length as usize))).map_err(io::Error::from)).boxed_local()
    }

    fn write(&self, write: Write) -> LocalBoxFuture<'static, io::Result<()>> {
        let answer = check_io(&self.info, write.offset, write.data.len());
        if answer.is_ok() {
            self.poke(write.offset, &write.data);
        }
        ready(answer.map_err(io::Error::from)).boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Ok(())).boxed_local()
    }

    fn trim(&self, offset: u64, length: u64) -> LocalBoxFuture<'static, io::Result<()>> {
        let answer = check_range(&self.info, offset, length);
        if answer.is_ok() {
            self.forget(offset, length);
        }
        ready(answer.map_err(io::Error::from)).boxed_local()
    }

    fn queued(&self) -> u32 {
        0
    }
}
