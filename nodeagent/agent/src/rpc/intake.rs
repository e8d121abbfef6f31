//! Frames out of a stream of bytes.
//!
//! Small frames are read many at a time into one window and their payloads copied once, into an aligned buffer that can
//! go to a disk as it is. The rest of a large payload is read straight into its buffer. Nothing is allocated for a
//! header that hasn't verified.

use api_types::Clock;
use api_wire::frame::{Frame, FrameError, HEADER_BYTES, Header};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nodeagent_reactor::{AlignedBuf, BufferPool, TakeError};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that one read may bring.
const WINDOW_BYTES: usize = 64 << 10;
/// A payload of which at least this much is missing is read straight into its buffer.
const DIRECT_BYTES: usize = 16 << 10;

/// Why no frame will come any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntakeError {
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the peer in the middle of a frame")]
    Truncated,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("no buffer for a payload: {0}")]
    Buffer(#[from] TakeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What to do when the pool is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenEmpty {
    /// Wait, and so stop reading: for what others send.
    Wait,
    /// Take ordinary memory: for answers, which are bounded by what was asked for. Waiting here for buffers that other
    /// answers must free would be a deadlock.
    Heap,
}

pub(crate) struct Intake {
    pool: BufferPool,
    when_empty: WhenEmpty,
    window: Vec<u8>,
    start: usize,
    end: usize,
    /// When the newest bytes of the window came.
    filled_at: Duration,
    state: State,
    received_bytes: u64,
}

enum State {
    Header,
    Waiting { header: Header, buffer: LocalBoxFuture<'static, Result<AlignedBuf, TakeError>> },
    Payload { header: Header, landing: Landing, filled: usize },
}

enum Landing {
    Pooled(AlignedBuf),
    Heap(Vec<u8>),
}

impl Landing {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Landing::Pooled(buffer) => buffer,
            Landing::Heap(buffer) => buffer,
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            Landing::Pooled(buffer) => buffer.freeze(),
            Landing::Heap(buffer) => buffer.into(),
        }
    }
}

impl Intake {
    pub(crate) fn new(pool: BufferPool, when_empty: WhenEmpty) -> Self {
        Intake {
            pool,
            when_empty,
            window: Vec::new(),
            start: 0,
            end: 0,
            filled_at: Duration::ZERO,
            state: State::Header,
            received_bytes: 0,
        }
    }

    /// Bytes received so far: whether a peer still moves.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// When the bytes of the frame that came last were received.
    pub(crate) fn filled_at(&self) -> Duration {
        self.filled_at
    }

    /// A frame has begun and isn't all here.
    pub(crate) fn has_part(&self) -> bool {
        self.start != self.end || !matches!(self.state, State::Header)
    }

    /// Gives the window's memory back while nothing comes.
    pub(crate) fn rest(&mut self) {
        if self.start == self.end {
            self.window = Vec::new();
            (self.start, self.end) = (0, 0);
        }
    }

    /// The next frame, whole and verified. Cancel-safe: what was received is kept.
    pub(crate) fn poll_frame<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        clock: &dyn Clock,
    ) -> Poll<Result<Frame, IntakeError>> {
        loop {
            match std::mem::replace(&mut self.state, State::Header) {
                State::Header => {
                    let Some(head) = self.window[self.start..self.end].first_chunk::<HEADER_BYTES>() else {
                        ready!(self.poll_fill(cx, socket, clock))?;
                        continue;
                    };
                    let header = Header::decode(head)?;
                    self.start += HEADER_BYTES;
                    if header.payload_bytes == 0 {
                        header.verify(&[])?;
                        return Poll::Ready(Ok(Frame { header, payload: Bytes::new() }));
                    }
                    self.state = self.land(header)?;
                }
                State::Waiting { header, mut buffer } => match buffer.poll_unpin(cx) {
                    Poll::Ready(buffer) => {
                        self.state = State::Payload { header, landing: Landing::Pooled(buffer?), filled: 0 };
                    }
                    Poll::Pending => {
                        self.state = State::Waiting { header, buffer };
                        return Poll::Pending;
                    }
                },
                State::Payload { header, mut landing, mut filled } => {
                    let taken = self.copy_from_window(&mut landing.bytes()[filled..]);
                    filled += taken;
                    let missing = landing.bytes().len() - filled;
                    if missing == 0 {
                        header.verify(landing.bytes())?;
                        return Poll::Ready(Ok(Frame { header, payload: landing.freeze() }));
                    }
                    let read = if missing >= DIRECT_BYTES {
                        self.poll_direct(cx, socket, clock, &mut landing.bytes()[filled..])
                    } else {
                        self.poll_fill(cx, socket, clock).map_ok(|()| 0)
                    };
                    if let Poll::Ready(Ok(count)) = &read {
                        filled += count;
                    }
                    self.state = State::Payload { header, landing, filled };
                    ready!(read)?;
                }
            }
        }
    }

    fn land(&self, header: Header) -> Result<State, TakeError> {
        let length = header.payload_bytes as usize;
        let landing = match self.pool.try_take(length) {
            Ok(buffer) => Landing::Pooled(buffer),
            Err(TakeError::Exhausted { .. }) if self.when_empty == WhenEmpty::Wait => {
                let pool = self.pool.clone();
                let buffer = async move { pool.take(length).await }.boxed_local();
                return Ok(State::Waiting { header, buffer });
            }
            Err(TakeError::TooLong { length }) => return Err(TakeError::TooLong { length }),
            Err(_) if self.when_empty == WhenEmpty::Heap => Landing::Heap(vec![0; length]),
            Err(error) => return Err(error),
        };
        Ok(State::Payload { header, landing, filled: 0 })
    }

    fn copy_from_window(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.end - self.start);
        into[..count].copy_from_slice(&self.window[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Reads into the window, once.
    fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        clock: &dyn Clock,
    ) -> Poll<Result<(), IntakeError>> {
        if self.window.is_empty() {
            self.window = vec![0; WINDOW_BYTES];
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.window.len() - self.end < DIRECT_BYTES {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut free = ReadBuf::new(&mut self.window[self.end..]);
        ready!(Pin::new(socket).poll_read(cx, &mut free))?;
        let count = free.filled().len();
        self.end += count;
        Poll::Ready(self.note(count, clock))
    }

    fn poll_direct<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        clock: &dyn Clock,
        into: &mut [u8],
    ) -> Poll<Result<usize, IntakeError>> {
        let mut free = ReadBuf::new(into);
        ready!(Pin::new(socket).poll_read(cx, &mut free))?;
        let count = free.filled().len();
        // The rest of this payload counts as a part even with an empty window.
        if count == 0 {
            return Poll::Ready(Err(IntakeError::Truncated));
        }
        Poll::Ready(self.note(count, clock).map(|()| count))
    }

    fn note(&mut self, count: usize, clock: &dyn Clock) -> Result<(), IntakeError> {
        if count == 0 {
            return Err(if self.has_part() { IntakeError::Truncated } else { IntakeError::Closed });
        }
        self.received_bytes += count as u64;
        self.filled_at = clock.now();
        Ok(())
    }
}
