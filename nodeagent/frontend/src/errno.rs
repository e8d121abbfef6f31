//! The one place where a volume's errors become numbers for the kernel and for NBD clients.
//!
//! | `BlockError` | Linux | NBD | why |
//! |---|---|---|---|
//! | `Invalid` | `EINVAL` | `EINVAL` | the request is wrong, repeating it is useless |
//! | `NoSpace` | `ENOSPC` | `ENOSPC` | filesystems tell their users, and recover when space is freed |
//! | `Fenced` | `EIO` | `EIO` | this handle is dead for ever; a block device knows no better word |
//! | `Closed` | `EIO` | `ESHUTDOWN` | the server goes away; NBD has a word for it |
//! | `Unavailable` | `EIO` | `EIO` | the data can't be had |

use client_volume::BlockError;

/// The errno a kernel request is answered with (positive).
pub(crate) fn to_errno(error: &BlockError) -> i32 {
    match error {
        BlockError::Invalid(_) => libc::EINVAL,
        BlockError::NoSpace => libc::ENOSPC,
        BlockError::Fenced | BlockError::Closed | BlockError::Unavailable(_) => libc::EIO,
    }
}

/// The error number of an NBD reply. NBD numbers are its own, and equal Linux's for these.
pub(crate) fn to_nbd(error: &BlockError) -> u32 {
    match error {
        BlockError::Invalid(_) => 22,
        BlockError::NoSpace => 28,
        BlockError::Closed => 108,
        BlockError::Fenced | BlockError::Unavailable(_) => 5,
    }
}
