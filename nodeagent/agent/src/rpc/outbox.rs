//! Frames into a socket, as many as there are with one system call.

use api_wire::frame::{Frame, HEADER_BYTES};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Slices given to one writev: half of them headers.
const SLICES_MAX: usize = 64;

/// What a frame that has been written leaves behind: what it counted for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Weight {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Entry>,
    /// Bytes of the first entry that are written.
    written: usize,
    written_bytes: u64,
}

struct Entry {
    head: [u8; HEADER_BYTES],
    payload: Bytes,
    weight: Weight,
}

impl Entry {
    fn length(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }
}

impl Outbox {
    pub(crate) fn push(&mut self, frame: Frame, weight: Weight) {
        self.queue.push_back(Entry { head: frame.header.encode(), payload: frame.payload, weight });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Frames waiting to be written.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes written so far: whether a peer still takes any.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Writes what the socket takes and adds what was finished to `done`. Ready when nothing is left.
    pub(crate) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        done: &mut Weight,
    ) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let used = self.fill(&mut slices);
            let count = ready!(Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..used]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(count, done);
        }
        Poll::Ready(Ok(()))
    }

    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut used = 0;
        for (place, entry) in self.queue.iter().enumerate() {
            let skip = if place == 0 { self.written } else { 0 };
            for part in [&entry.head[skip.min(HEADER_BYTES)..], &entry.payload[skip.saturating_sub(HEADER_BYTES)..]] {
                if !part.is_empty() {
                    slices[used] = IoSlice::new(part);
                    used += 1;
                }
            }
            if used + 2 > SLICES_MAX {
                break;
            }
        }
        used
    }

    fn advance(&mut self, count: usize, done: &mut Weight) {
        self.written_bytes += count as u64;
        self.written += count;
        while let Some(first) = self.queue.front() {
            if self.written < first.length() {
                return;
            }
            self.written -= first.length();
            done.requests += first.weight.requests;
            done.bytes += first.weight.bytes;
            self.queue.pop_front();
        }
    }
}
