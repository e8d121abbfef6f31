//! The writing end of a stream: the thin shell that carries out what the appender decides.

use crate::Error;
use crate::appender::{Appender, Command, Event, WriterStats};
use crate::blacklist::Doubt;
use crate::client::Client;
use api_types::chunk::{self as store, Request, Response};
use api_types::master::{ChunkRecord, Replication};
use api_types::{ChunkId, DeviceId, Epoch, LifetimeClass, OwnerId, QosClass, StreamId};
use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Where a unit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// In which chunk.
    pub chunk: ChunkId,
    /// Place of the chunk in the stream's order. Positions are ordered by (`index`, `offset`).
    pub index: u64,
    /// Where the unit, and so its data, starts.
    pub offset: u32,
    /// Where the next unit starts.
    pub end: u32,
}

/// What a writer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterOptions {
    /// The fencing group of the stream's chunks.
    pub owner: OwnerId,
    /// The writer's epoch, with which the stream was recovered.
    pub epoch: Epoch,
    /// Copies.
    pub replication: Replication,
    /// Capacity of new chunks, in bytes.
    pub chunk_bytes: u32,
    /// How long the bytes are expected to live.
    pub class: LifetimeClass,
    /// Who waits for the appends.
    pub qos: QosClass,
}

/// The only writer of a stream in its epoch. Dropping it stops it where it is, as a crash would; [`Writer::close`]
/// leaves nothing to recover.
pub struct Writer {
    shell: Rc<Shell>,
}

pub(crate) struct Shell {
    client: Client,
    stream: StreamId,
    epoch: Epoch,
    appender: RefCell<Appender>,
    next_id: Cell<u64>,
    waiters: RefCell<BTreeMap<u64, oneshot::Sender<Result<Position, Error>>>>,
    closers: RefCell<Vec<oneshot::Sender<Result<(), Error>>>>,
    sealed: RefCell<Vec<ChunkRecord>>,
    /// The time that the timer's task sleeps until; `None` while it waits to be woken.
    armed: Cell<Option<Duration>>,
    wake: Notify,
    /// The writer was dropped: answers that still come change nothing.
    dropped: Cell<bool>,
}

impl Writer {
    pub(crate) fn new(client: Client, stream: StreamId, options: WriterOptions) -> Self {
        let now = client.deps().clock.now();
        let epoch = options.epoch;
        let appender = Appender::new(stream, options, client.config().clone(), client.deps().seed, now);
        let shell = Rc::new(Shell {
            client,
            stream,
            epoch,
            appender: RefCell::new(appender),
            next_id: Cell::new(0),
            waiters: RefCell::default(),
            closers: RefCell::default(),
            sealed: RefCell::default(),
            armed: Cell::new(None),
            wake: Notify::new(),
            dropped: Cell::new(false),
        });
        tokio::task::spawn_local(tick(Rc::downgrade(&shell)));
        // Spares are asked for at once: the first append finds a chunk in hand.
        shell.handle(Event::Tick);
        Writer { shell }
    }

    pub(crate) fn shell(&self) -> &Rc<Shell> {
        &self.shell
    }

    /// Appends one unit. The append is queued by this call, so the order of calls is the order in the stream. Resolves,
    /// in stream order, once the unit is committed. Dropping the future doesn't undo the append.
    ///
    /// The future fails with [`Error::Fenced`], [`Error::NoSpace`], [`Error::Unavailable`] or [`Error::Closed`]; such a
    /// unit may still be found by a later recovery, at its own place in the order. [`Error::Invalid`] when data or
    /// trailer exceed `api_types::limits`.
    pub fn append(&self, data: Vec<Bytes>, trailer: Bytes) -> LocalBoxFuture<'static, Result<Position, Error>> {
        let id = self.shell.next_id.get();
        self.shell.next_id.set(id + 1);
        let (sender, receiver) = oneshot::channel();
        self.shell.waiters.borrow_mut().insert(id, sender);
        self.shell.handle(Event::Append { id, data, trailer });
        async move { receiver.await.unwrap_or(Err(Error::Closed)) }.boxed_local()
    }

    /// Where the last committed unit of this writer stands.
    #[must_use]
    pub fn committed(&self) -> Option<Position> {
        self.shell.appender.borrow().committed()
    }

    /// Chunks that this writer wrote to and has sealed since the last call, in stream order, as recorded at the masters.
    #[must_use]
    pub fn take_sealed(&self) -> Vec<ChunkRecord> {
        let mut sealed = std::mem::take(&mut *self.shell.sealed.borrow_mut());
        sealed.sort_by_key(|record| record.index);
        sealed
    }

    /// The chunk being written, with its length as committed.
    #[must_use]
    pub fn open_chunk(&self) -> Option<(ChunkRecord, u32)> {
        self.shell.appender.borrow().open_chunk().map(|(record, length)| (record.clone(), length))
    }

    /// `Some(error)` once no append can succeed any more.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        self.shell.appender.borrow().stopped().cloned()
    }

    /// What it has been through.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        self.shell.appender.borrow().stats()
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.shell.stream
    }

    /// Waits for what was appended, seals the open chunk, gives the spares back.
    ///
    /// # Errors
    /// Whatever kept an append from being committed, or the masters from recording the seal.
    pub async fn close(self) -> Result<(), Error> {
        let (sender, receiver) = oneshot::channel();
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        self.shell.closers.borrow_mut().push(sender);
        self.shell.handle(Event::Close);
        receiver.await.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shell.dropped.set(true);
        self.shell.client.writer_ends(self.shell.appender.borrow().stats());
        self.shell.waiters.borrow_mut().clear();
        self.shell.wake.notify_one();
    }
}

impl Shell {
    /// See [`Writer::stats`]; `None` once the writer was dropped: then its client has counted it.
    pub(crate) fn stats(&self) -> Option<WriterStats> {
        (!self.dropped.get()).then(|| self.appender.borrow().stats())
    }

    /// The devices to stay away from have changed.
    pub(crate) fn listed(self: &Rc<Self>, devices: BTreeSet<DeviceId>) {
        self.handle(Event::Listed(devices));
    }

    fn handle(self: &Rc<Self>, event: Event) {
        if self.dropped.get() {
            return;
        }
        let now = self.client.deps().clock.now();
        let mut commands = Vec::new();
        self.appender.borrow_mut().handle(now, event, &mut commands);
        for command in commands {
            self.execute(command);
        }
        let deadline = self.appender.borrow().deadline();
        // A later deadline than the armed one needs no wake: the timer looks again when it fires.
        if let Some(deadline) = deadline
            && self.armed.get().is_none_or(|armed| deadline < armed)
        {
            self.wake.notify_one();
        }
    }

    fn execute(self: &Rc<Self>, command: Command) {
        let config = self.client.config();
        let master = &self.client.deps().master;
        match command {
            Command::Append { device, ticket, append } => {
                let answer = self.client.call(device, Request::Append(append), config.append_timeout);
                self.then(answer, move |answer| Event::Appended {
                    ticket,
                    result: answer.and_then(|response| match response {
                        Response::Append(length) => Ok(length),
                        _ => Err(wrong_answer()),
                    }),
                });
            }
            Command::Seal { device, seal } => {
                let chunk = seal.chunk;
                let answer = self.client.call(device, Request::Seal(seal), config.seal_timeout);
                self.then(answer, move |answer| Event::Sealed {
                    chunk,
                    device,
                    result: answer.and_then(|response| match response {
                        Response::Seal(sealed) => Ok(sealed),
                        _ => Err(wrong_answer()),
                    }),
                });
            }
            Command::Grant(grant) => self.then(master.grant(grant), Event::Granted),
            Command::Record(seal) => {
                let chunk = seal.chunk;
                self.then(master.seal(seal), move |result| Event::Recorded { chunk, result });
            }
            Command::Delete(chunk) => {
                let answer = master.delete_chunks(self.stream, self.epoch, vec![chunk]);
                self.then(answer, move |result| Event::Deleted { chunk, result });
            }
            Command::Complete { id, result } => {
                if let Some(waiter) = self.waiters.borrow_mut().remove(&id) {
                    // Whoever stopped waiting doesn't want to know.
                    let _ = waiter.send(result);
                }
            }
            Command::Suspect(device) => self.client.doubt(device, Doubt::Probable),
            Command::Opened(record) => self.client.directory().insert(record),
            Command::Finished(record) => {
                self.client.directory().insert(record.clone());
                self.sealed.borrow_mut().push(record);
            }
            Command::Closed(result) => {
                for closer in self.closers.borrow_mut().drain(..) {
                    let _ = closer.send(result.clone());
                }
            }
        }
    }

    /// Feeds an answer back once it comes.
    fn then<T: 'static>(self: &Rc<Self>, answer: LocalBoxFuture<'static, T>, event: impl FnOnce(T) -> Event + 'static) {
        let shell = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let answer = answer.await;
            if let Some(shell) = shell.upgrade() {
                shell.handle(event(answer));
            }
        });
    }
}

fn wrong_answer() -> store::Error {
    store::Error::Invalid("the store answered something else than was asked".to_owned())
}

/// Tells the appender when a time has come that it waits for.
async fn tick(shell: Weak<Shell>) {
    loop {
        let Some(strong) = shell.upgrade() else { return };
        if strong.dropped.get() {
            return;
        }
        let clock = strong.client.deps().clock.clone();
        let (deadline, now) = (strong.appender.borrow().deadline(), clock.now());
        strong.armed.set(deadline);
        match deadline {
            Some(deadline) if deadline <= now => {
                strong.handle(Event::Tick);
                // A deadline that stays in the past must not keep the core from everything else.
                tokio::task::yield_now().await;
            }
            Some(deadline) => {
                let sleep = clock.sleep(deadline - now);
                tokio::select! {
                    biased;
                    () = strong.wake.notified() => {}
                    () = sleep => {}
                }
            }
            None => strong.wake.notified().await,
        }
    }
}
