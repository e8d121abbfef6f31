//! io_uring.

use super::{Completion, RawKind, RawOp};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Files one ring can know.
const FILES_MAX: u32 = 64;

pub(super) struct Ring {
    ring: IoUring,
    /// Whose number is taken among the registered files; empty when the kernel has none.
    registered: Vec<bool>,
    unsubmitted: bool,
}

impl Ring {
    pub(super) fn new(depth: u32) -> io::Result<(Self, OwnedFd)> {
        // Completion work runs when this thread asks for it instead of interrupting it; older kernels do without.
        let ring = IoUring::builder()
            .setup_clamp()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(depth)
            .or_else(|_| IoUring::builder().setup_clamp().build(depth))?;
        let event = eventfd()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let files = ring.submitter().register_files_sparse(FILES_MAX).is_ok();
        let registered = if files { vec![false; FILES_MAX as usize] } else { Vec::new() };
        Ok((Ring { ring, registered, unsubmitted: false }, event))
    }

    pub(super) fn register(&mut self, fd: RawFd) -> Option<u32> {
        let place = self.registered.iter().position(|taken| !taken)?;
        let number = u32::try_from(place).ok()?;
        self.ring.submitter().register_files_update(number, &[fd]).ok()?;
        self.registered[place] = true;
        Some(number)
    }

    pub(super) fn unregister(&mut self, number: u32) {
        // Should the kernel refuse, the number stays taken: a hole, no harm.
        if self.ring.submitter().register_files_update(number, &[-1]).is_ok() {
            self.registered[number as usize] = false;
        }
    }

    pub(super) fn push(&mut self, op: RawOp) -> io::Result<()> {
        let entry = entry(op);
        // SAFETY: the executor keeps the memory and the file of the request until its completion is reaped.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            // As many places as requests may be under way, so this happens only when the last flush was interrupted.
            self.ring.submit()?;
            // SAFETY: as above.
            unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        }
        self.unsubmitted = true;
        Ok(())
    }

    /// Submits what was pushed and lets the kernel post what has completed, in one call if either is there.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.unsubmitted || self.ring.submission().taskrun() {
            self.ring.submit()?;
            self.unsubmitted = !self.ring.submission().is_empty();
        }
        Ok(())
    }

    pub(super) fn reap(&mut self, into: &mut Vec<Completion>) {
        into.extend(self.ring.completion().map(|entry: cqueue::Entry| (entry.user_data() as usize, entry.result())));
    }

    pub(super) fn wait(&mut self) {
        let limit = types::Timespec::new().nsec(100_000_000);
        let _woken = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit));
    }
}

fn entry(op: RawOp) -> squeue::Entry {
    // The number of a registered file goes where a descriptor would, told apart by a flag.
    let (place, flags) = match op.registered {
        Some(number) => (number.cast_signed(), squeue::Flags::FIXED_FILE),
        None => (op.fd, squeue::Flags::empty()),
    };
    let target = types::Fd(place);
    let entry = match op.kind {
        RawKind::Read => opcode::Read::new(target, op.start, op.length).offset(op.offset).build(),
        RawKind::Write { dsync } => {
            let durable = if dsync { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(target, op.start, op.length).offset(op.offset).rw_flags(durable).build()
        }
        RawKind::Sync => opcode::Fsync::new(target).flags(types::FsyncFlags::DATASYNC).build(),
    };
    entry.flags(flags).user_data(op.key as u64)
}

pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: makes a new descriptor and touches no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
