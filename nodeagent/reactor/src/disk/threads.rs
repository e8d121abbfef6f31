//! A few threads that block.

use super::{Completion, RawKind, RawOp, ring::eventfd};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub(super) struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    pushed: Condvar,
    completed: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Bounded by the executor's depth.
    queue: VecDeque<Job>,
    done: Vec<Completion>,
    closing: bool,
}

struct Job(RawOp);

// SAFETY: the executor keeps the memory and the file of a request, untouched, until its completion is reaped.
unsafe impl Send for Job {}

impl Threads {
    pub(super) fn new(threads: u32) -> io::Result<(Self, OwnedFd)> {
        let event = eventfd()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            pushed: Condvar::new(),
            completed: Condvar::new(),
            event: event.try_clone()?,
        });
        let pool = Threads { shared: Arc::clone(&shared) };
        for number in 0..threads.clamp(1, 64) {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("disk-{number}")).spawn(move || work(&shared))?;
        }
        Ok((pool, event))
    }

    pub(super) fn push(&self, op: RawOp) -> io::Result<()> {
        self.shared.state.lock().queue.push_back(Job(op));
        self.shared.pushed.notify_one();
        Ok(())
    }

    pub(super) fn reap(&self, into: &mut Vec<Completion>) {
        into.append(&mut self.shared.state.lock().done);
    }

    pub(super) fn wait(&self) {
        let mut state = self.shared.state.lock();
        if state.done.is_empty() {
            self.shared.completed.wait_for(&mut state, Duration::from_millis(100));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        // What nobody began and nobody waits for has no memory behind it any more.
        state.queue.clear();
        self.shared.pushed.notify_all();
    }
}

fn work(shared: &Shared) {
    loop {
        let Job(op) = {
            let mut state = shared.state.lock();
            loop {
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                if state.closing {
                    return;
                }
                shared.pushed.wait(&mut state);
            }
        };
        let result = perform(op);
        let first = {
            let mut state = shared.state.lock();
            state.done.push((op.key, result));
            state.done.len() == 1
        };
        shared.completed.notify_one();
        if first {
            signal(&shared.event);
        }
    }
}

fn perform(op: RawOp) -> i32 {
    let offset = op.offset.cast_signed();
    let vector = libc::iovec { iov_base: op.start.cast(), iov_len: op.length as usize };
    loop {
        let result = match op.kind {
            // SAFETY: the memory is the executor's until the completion is reaped, and nobody else writes to it.
            RawKind::Read => unsafe { libc::pread(op.fd, op.start.cast(), op.length as usize, offset) },
            RawKind::Write { dsync } => {
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                // SAFETY: as above; the kernel only reads it.
                unsafe { libc::pwritev2(op.fd, &raw const vector, 1, offset, flags) }
            }
            // SAFETY: touches no memory of ours.
            RawKind::Sync => unsafe { libc::fdatasync(op.fd) as isize },
        };
        if result >= 0 {
            return i32::try_from(result).unwrap_or(i32::MAX);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return -error.raw_os_error().unwrap_or(libc::EIO);
        }
    }
}

fn signal(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes eight bytes of this stack frame to an eventfd. Its counter can't overflow in the machine's life.
    let _written = unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}
