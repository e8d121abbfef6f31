//! The one system call that has no safe wrapper.

#![expect(unsafe_code, reason = "BLKDISCARD takes a pointer to its range")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `BLKDISCARD`, `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

pub(crate) fn discard(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = [offset, length];
    // SAFETY: the kernel reads two numbers from `range`, which lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
