//! One client: handshake, then many requests at once, answered as they finish.

use super::export::{Export, Exports};
use super::handshake::{Next, answer};
use super::wire::{self, Command, REQUEST_BYTES, Request, WireError};
use crate::buffer::AlignedBuf;
use crate::errno::to_nbd;
use crate::spawn;
use bytes::Bytes;
use futures::FutureExt;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A client that hasn't chosen an export by then is cut off.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// The most requests of one client under way.
const REQUESTS_MAX: usize = 256;
/// The most bytes of one client under way, in units of 4 KiB: one request of the largest size, and a quarter more.
const BUDGET_PAGES: usize = 10_240;
/// The most answers written with one call.
const BATCH_MAX: usize = 64;
/// How much is read ahead of the request that is looked at; at most this much of a large payload is copied.
const STAGING_BYTES: usize = 16 << 10;

/// Why a connection ended early. The process goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("no export was chosen within {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
}

/// Serves one client until it leaves.
pub(crate) async fn serve<R, W>(
    mut reader: R,
    mut writer: W,
    exports: Rc<Exports>,
    clock: &dyn api_types::Clock,
) -> Result<(), ConnectionError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let chosen = api_types::clock::timeout(clock, HANDSHAKE_LIMIT, handshake(&mut reader, &mut writer, &exports)).await;
    let Some(export) = chosen.map_err(|_| ConnectionError::Slow)?? else { return Ok(()) };
    let _client = export.enter();
    transmit(reader, writer, &export).await
}

async fn handshake<R, W>(reader: &mut R, writer: &mut W, exports: &Exports) -> Result<Option<Rc<Export>>, ConnectionError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    writer.write_all(&wire::greeting()).await?;
    let mut flags = [0; 4];
    reader.read_exact(&mut flags).await?;
    let no_zeroes = wire::client_flags(flags)?;
    loop {
        let mut head = [0; wire::OPTION_BYTES];
        reader.read_exact(&mut head).await?;
        let (number, length) = match wire::option_head(&head) {
            Ok(head) => head,
            Err(error) => {
                if let WireError::OptionTooBig { option, .. } = error {
                    let mut out = Vec::new();
                    wire::option_reply(&mut out, option, wire::reply::ERR_TOO_BIG, b"too much data");
                    writer.write_all(&out).await?;
                }
                return Err(error.into());
            }
        };
        let mut data = vec![0; length as usize];
        reader.read_exact(&mut data).await?;
        let (list, shown) = exports.snapshot();
        let mut out = Vec::new();
        let next = answer(number, &data, no_zeroes, &shown, &mut out);
        writer.write_all(&out).await?;
        match next {
            Next::Option => {}
            Next::Transmit(at) => return Ok(list.get(at).cloned()),
            Next::Close => return Ok(None),
        }
    }
}

/// What a request under way holds of its connection's bounds.
type Permits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

struct Reply {
    head: [u8; 16],
    parts: Vec<Bytes>,
    _permits: Permits,
}

/// Answers on their way to the writer. Bounded by the permits that each one holds.
#[derive(Default)]
struct Replies {
    queue: RefCell<VecDeque<Reply>>,
    changed: Notify,
    closed: Cell<bool>,
}

impl Replies {
    fn push(&self, reply: Reply) {
        if !self.closed.get() {
            self.queue.borrow_mut().push_back(reply);
            self.changed.notify_one();
        }
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.notify_one();
    }

    /// The next answers, all that are there up to a bound; none: closed and empty.
    async fn batch(&self) -> Vec<Reply> {
        loop {
            {
                let mut queue = self.queue.borrow_mut();
                if !queue.is_empty() || self.closed.get() {
                    let n = queue.len().min(BATCH_MAX);
                    return queue.drain(..n).collect();
                }
            }
            self.changed.notified().await;
        }
    }
}

async fn transmit<R, W>(reader: R, writer: W, export: &Rc<Export>) -> Result<(), ConnectionError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let replies = Rc::new(Replies::default());
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
    let budget = Arc::new(Semaphore::new(BUDGET_PAGES));
    let mut writing = tokio::task::spawn_local(write_replies(writer, Rc::clone(&replies)));
    let mut stop = export.stop.subscribe();
    let mut broken = false;
    let read = {
        let reading = read_requests(reader, export, &replies, &requests, &budget);
        tokio::select! {
            biased;
            // The sender lives as long as the export, which we hold.
            _ = stop.wait_for(|&stop| stop) => Ok(()),
            _ = &mut writing => { broken = true; Ok(()) }
            result = reading => result,
        }
    };
    if !broken {
        // All that were read are answered, whatever ended the reading, except when the client is gone.
        if !matches!(read, Err(ConnectionError::Io(_))) {
            let _all = requests.acquire_many(REQUESTS_MAX as u32).await;
        }
        replies.close();
        let _ = writing.await;
    }
    replies.close();
    read
}

async fn write_replies<W: AsyncWrite + Unpin>(mut writer: W, replies: Rc<Replies>) -> io::Result<()> {
    loop {
        let batch = replies.batch().await;
        if batch.is_empty() {
            return writer.shutdown().await;
        }
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(batch.len() * 2);
        for reply in &batch {
            slices.push(IoSlice::new(&reply.head));
            slices.extend(reply.parts.iter().map(|part| IoSlice::new(part)));
        }
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let n = writer.write_vectored(&rest[..rest.len().min(512)]).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut rest, n);
        }
    }
}

/// Bytes read from the socket and not looked at yet.
struct Staging {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    fn new() -> Self {
        Staging { bytes: vec![0; STAGING_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The next request's head. `None`: the client closed at a border between requests.
    async fn head<R: AsyncRead + Unpin>(&mut self, reader: &mut R) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        while self.end - self.start < REQUEST_BYTES {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let n = reader.read(&mut self.bytes[self.end..]).await?;
            if n == 0 {
                return if self.end == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.end += n;
        }
        let mut head = [0; REQUEST_BYTES];
        head.copy_from_slice(&self.bytes[self.start..self.start + REQUEST_BYTES]);
        self.start += REQUEST_BYTES;
        Ok(Some(head))
    }

    /// A payload: what was read ahead is copied, the rest lands where it stays.
    async fn payload<R: AsyncRead + Unpin>(&mut self, reader: &mut R, length: usize) -> io::Result<Bytes> {
        let mut buffer = AlignedBuf::new(length);
        let n = length.min(self.end - self.start);
        buffer.as_mut()[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
        self.start += n;
        reader.read_exact(&mut buffer.as_mut()[n..]).await?;
        Ok(buffer.freeze())
    }
}

async fn read_requests<R: AsyncRead + Unpin>(
    mut reader: R,
    export: &Rc<Export>,
    replies: &Rc<Replies>,
    requests: &Arc<Semaphore>,
    budget: &Arc<Semaphore>,
) -> Result<(), ConnectionError> {
    let mut staging = Staging::new();
    while let Some(head) = staging.head(&mut reader).await? {
        let request = match Request::parse(&head) {
            Ok(request) => request,
            Err(error) => {
                // The client hears why; the payload can't be skipped in bounded time, so the connection ends.
                if let (WireError::PayloadTooBig { cookie, .. }, Ok(permits)) = (&error, permits(requests, budget, 0).await) {
                    let head = wire::simple_reply(*cookie, wire::error::EINVAL);
                    replies.push(Reply { head, parts: Vec::new(), _permits: permits });
                }
                return Err(error.into());
            }
        };
        if request.command == Command::Disconnect {
            return Ok(());
        }
        let pages = if matches!(request.command, Command::Read | Command::Write) { request.length.div_ceil(4096) } else { 0 };
        let permits = permits(requests, budget, pages.min(BUDGET_PAGES as u32)).await?;
        let data = staging.payload(&mut reader, request.payload()).await?;
        let (export, replies) = (Rc::clone(export), Rc::clone(replies));
        let task = async move {
            let (error, parts) = match perform(&export, request, data).await {
                Ok(parts) => (0, parts),
                Err(error) => (error, Vec::new()),
            };
            let head = wire::simple_reply(request.cookie, error);
            replies.push(Reply { head, parts, _permits: permits });
        };
        spawn::start(task.boxed_local()).await;
    }
    Ok(())
}

/// Waits until one more request with that much payload may be under way.
async fn permits(requests: &Arc<Semaphore>, budget: &Arc<Semaphore>, pages: u32) -> io::Result<Permits> {
    // Neither semaphore is ever closed.
    let one = Arc::clone(requests).acquire_owned().await.map_err(io::Error::other)?;
    let bytes = Arc::clone(budget).acquire_many_owned(pages).await.map_err(io::Error::other)?;
    Ok((one, bytes))
}

/// Does one request; the answer is the data of a read, or an NBD error.
async fn perform(export: &Export, request: Request, data: Bytes) -> Result<Vec<Bytes>, u32> {
    let adapter = &export.adapter;
    request.check(adapter.size(), export.read_only)?;
    if export.closing.get() {
        return Err(wire::error::ESHUTDOWN);
    }
    let (offset, length) = (request.offset, request.length);
    let done = match request.command {
        Command::Read => return adapter.read(offset, length).await.map_err(|error| to_nbd(&error)),
        Command::Write => adapter.write(offset, data).await,
        Command::Flush => adapter.flush().await,
        Command::Trim => adapter.discard(offset, length.into()).await,
        // NO_HOLE asks that later writes find their space reserved. A log never reserves space for a place, so storing
        // zeros would cost without giving that: both kinds only touch the map.
        Command::WriteZeroes => adapter.write_zeroes(offset, length.into()).await,
        Command::Disconnect | Command::Unknown(_) => return Err(wire::error::EINVAL),
    };
    done.map(|()| Vec::new()).map_err(|error| to_nbd(&error))
}
