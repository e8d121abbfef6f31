//! Linux AIO, by its system calls: asynchronous for direct I/O, and allowed in most sandboxes.

use super::{Completion, RawKind, RawOp, ring::eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FDSYNC: u16 = 3;
const RESULT_TO_EVENTFD: u32 = 1;

/// `struct iocb` of the kernel's ABI, little-endian layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

pub(super) struct Aio {
    context: libc::c_ulong,
    /// A copy of its own, so that the number stays valid as long as requests name it.
    event: OwnedFd,
    queue: Vec<Iocb>,
    /// Requests that the kernel refused one by one.
    failed: Vec<Completion>,
    events: Vec<Event>,
}

impl Aio {
    pub(super) fn new(depth: u32) -> io::Result<(Self, OwnedFd)> {
        let event = eventfd()?;
        let (own, events) = (event.try_clone()?, vec![Event::default(); depth as usize]);
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the new context's address into a variable of that size.
        check(unsafe { libc::syscall(libc::SYS_io_setup, libc::c_long::from(depth), &raw mut context) })?;
        let aio = Aio { context, event: own, queue: Vec::new(), failed: Vec::new(), events };
        Ok((aio, event))
    }

    pub(super) fn push(&mut self, op: RawOp) -> io::Result<()> {
        let (opcode, rw_flags) = match op.kind {
            RawKind::Read => (PREAD, 0),
            RawKind::Write { dsync: true } => (PWRITE, libc::RWF_DSYNC),
            RawKind::Write { dsync: false } => (PWRITE, 0),
            RawKind::Sync => (FDSYNC, 0),
        };
        self.queue.push(Iocb {
            data: op.key as u64,
            key: 0,
            rw_flags,
            opcode,
            priority: 0,
            fd: op.fd.cast_unsigned(),
            buffer: op.start.addr() as u64,
            length: u64::from(op.length),
            offset: op.offset.cast_signed(),
            reserved: 0,
            flags: RESULT_TO_EVENTFD,
            event: self.event.as_raw_fd().cast_unsigned(),
        });
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut start = 0;
        while start < self.queue.len() {
            let pointers: Vec<*const Iocb> = self.queue[start..].iter().map(std::ptr::from_ref).collect();
            let count = pointers.len() as libc::c_long;
            // SAFETY: `pointers` point to requests that live through the call; the memory and files that these name are
            // kept by the executor until their completions are reaped.
            let submitted = check(unsafe { libc::syscall(libc::SYS_io_submit, self.context, count, pointers.as_ptr()) });
            match submitted {
                Ok(count) if count > 0 => start += count,
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    self.queue.drain(..start);
                    return Err(io::Error::from_raw_os_error(libc::EBUSY));
                }
                Err(error) => {
                    // Speaks of the first one only.
                    let code = error.raw_os_error().unwrap_or(libc::EIO);
                    self.failed.push((self.queue[start].data as usize, -code));
                    start += 1;
                }
            }
        }
        self.queue.drain(..start);
        Ok(())
    }

    pub(super) fn reap(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.failed);
        self.get(into, 0);
    }

    pub(super) fn wait(&mut self) {
        let mut completions = Vec::new();
        self.get(&mut completions, 1);
        self.failed.append(&mut completions);
    }

    fn get(&mut self, into: &mut Vec<Completion>, least: libc::c_long) {
        let most = self.events.len() as libc::c_long;
        let limit = libc::timespec { tv_sec: 0, tv_nsec: if least > 0 { 100_000_000 } else { 0 } };
        let events = self.events.as_mut_ptr();
        // SAFETY: there is room for `most` events; the limit lives through the call.
        let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, least, most, events, &raw const limit) };
        let got = usize::try_from(got).unwrap_or(0).min(self.events.len());
        let codes = self.events[..got].iter();
        into.extend(codes.map(|event| (event.data as usize, i32::try_from(event.result).unwrap_or(i32::MAX))));
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: ends the context of this value, which nobody uses after this.
        let _ended = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
