//! One device seen from a client: a queue of requests, and the connection that carries them while there is one.
//!
//! | state | a call | what ends it |
//! |---|---|---|
//! | idle | connects, when there is an address and no pause is on; otherwise fails at once | |
//! | connecting | is queued | welcome → connected; failure, refusal or timeout → idle with a pause, all calls fail |
//! | connected | is queued and sent this tick | loss → idle with a short pause, all calls fail |
//!
//! A call that fails with `Unreachable` may have been done or not; the stream client knows what to do about that.

use super::client::Shared;
use super::intake::{Intake, IntakeError, WhenEmpty};
use super::outbox::{Outbox, Weight};
use super::socket;
use api_types::DeviceId;
use api_types::chunk::{Error, Request};
use api_types::clock::timeout;
use api_wire::frame::{self, Answer, FrameError, Hello, Opcode, Refusal};
use futures::future::LocalBoxFuture;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Frames moved to the outbox before the socket has taken some of them.
const OUTBOX_FRAMES_MAX: usize = 64;
/// Answers taken in one turn.
const BURST: usize = 64;

pub(crate) struct Link {
    pub(crate) device: DeviceId,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    running: bool,
    retry_at: Duration,
    pause: Duration,
    next_id: u64,
    calls: BTreeMap<u64, Call>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    waker: Option<Waker>,
}

/// A call without its answer.
struct Call {
    opcode: Opcode,
    /// Length that a read's answer must have.
    length: u32,
    answer: oneshot::Sender<Result<Answer, Error>>,
}

/// A request that hasn't been given to the socket.
struct Queued {
    id: u64,
    request: Request,
    payload_crc: u32,
    payload_bytes: usize,
    deadline: Duration,
    trace: bool,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("connecting to {address} failed: {error}")]
    Connect { address: String, error: io::Error },
    #[error("{0} did not answer in time")]
    Silent(String),
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    #[error("connection broken: {0}")]
    Broken(#[from] IntakeError),
    #[error("connection broken: {0}")]
    Write(io::Error),
    #[error("the peer stopped taking or sending bytes")]
    Stalled,
    #[error("an answer made no sense: {0}")]
    Answer(#[from] FrameError),
    #[error("an answer came to a question that wasn't asked")]
    Unasked,
}

impl Link {
    pub(crate) fn new(device: DeviceId) -> Self {
        Link { device, state: RefCell::default() }
    }

    /// Queues a request. The receiver gets its answer; it is dropped unanswered when the deadline passes before the
    /// request was sent.
    pub(crate) fn send(
        self: &Rc<Self>,
        shared: &Rc<Shared>,
        request: Request,
        limit: Duration,
        trace: bool,
    ) -> Result<oneshot::Receiver<Result<Answer, Error>>, Error> {
        let now = shared.clock.now();
        let mut state = self.state.borrow_mut();
        if !state.running {
            let address = self.may_connect(&state, shared, now)?;
            state.running = true;
            nodeagent_reactor::spawn_local("link", run(Rc::clone(self), Rc::clone(shared), address));
        }
        let payload = frame::payload_of(&request);
        let options = &shared.options;
        if state.calls.len() >= options.requests_max || state.queued_bytes + payload.len() > options.queued_bytes_max {
            return Err(Error::Busy);
        }
        state.next_id += 1;
        let id = state.next_id;
        let (answer, receiver) = oneshot::channel();
        let length = if let Request::Read(read) = &request { read.length } else { 0 };
        state.calls.insert(id, Call { opcode: Opcode::of(&request), length, answer });
        state.queued_bytes += payload.len();
        state.queue.push_back(Queued {
            id,
            payload_crc: shared.payload_crc(&payload),
            payload_bytes: payload.len(),
            request,
            deadline: now + limit,
            trace,
        });
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Ok(receiver)
    }

    fn may_connect(&self, state: &State, shared: &Shared, now: Duration) -> Result<String, Error> {
        if now < state.retry_at {
            return Err(Error::Unreachable("waiting before the next attempt to connect".to_owned()));
        }
        (shared.directory.address)(self.device).ok_or_else(|| {
            (shared.directory.unknown)(self.device);
            Error::Unreachable("no address is known for this device".to_owned())
        })
    }

    /// Nothing is connected, queued or awaited: it may be forgotten.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        let state = self.state.borrow();
        !state.running && state.calls.is_empty() && now >= state.retry_at
    }

    /// Moves queued requests to the outbox, as many as it should hold.
    fn dispatch(&self, shared: &Shared, outbox: &mut Outbox) {
        let mut state = self.state.borrow_mut();
        let now = shared.clock.now();
        while outbox.len() < OUTBOX_FRAMES_MAX {
            let Some(queued) = state.queue.pop_front() else { break };
            state.queued_bytes -= queued.payload_bytes;
            let budget = queued.deadline.saturating_sub(now);
            let abandoned = state.calls.get(&queued.id).is_none_or(|call| call.answer.is_closed());
            if abandoned || budget.is_zero() {
                state.calls.remove(&queued.id);
                continue;
            }
            let frame = frame::ask_frame(queued.id, &queued.request, queued.payload_crc, budget, queued.trace);
            outbox.push(frame, Weight::default());
        }
        shared.forget_payload();
    }

    fn remember(&self, waker: &Waker) {
        let mut state = self.state.borrow_mut();
        if !state.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
    }

    fn complete(&self, frame: frame::Frame) -> Result<(), Lost> {
        let (id, opcode) = (frame.header.id, frame.header.opcode);
        let payload_bytes = frame.header.payload_bytes;
        let answer = frame::read_answer(frame)?;
        let Some(call) = self.state.borrow_mut().calls.remove(&id) else { return Err(Lost::Unasked) };
        let short = call.opcode == Opcode::Read && answer.result.is_ok() && payload_bytes != call.length;
        if call.opcode != opcode || short {
            return Err(Lost::Unasked);
        }
        let _caller_gone = call.answer.send(Ok(answer));
        Ok(())
    }

    fn has_calls(&self) -> bool {
        !self.state.borrow().calls.is_empty()
    }

    /// Ends the connection's life: all calls fail, and the next attempt waits.
    fn finish(&self, shared: &Shared, lost: &Lost, was_up: bool) {
        let text = lost.to_string();
        let calls = {
            let mut state = self.state.borrow_mut();
            let options = &shared.options;
            let idle_close = was_up && state.calls.is_empty() && matches!(lost, Lost::Broken(IntakeError::Closed));
            state.pause = match () {
                () if idle_close => Duration::ZERO,
                () if was_up => options.pause_min,
                () => (state.pause * 2).clamp(options.pause_min, options.pause_max),
            };
            state.retry_at = shared.clock.now() + state.pause;
            state.running = false;
            state.queue.clear();
            state.queued_bytes = 0;
            state.waker = None;
            std::mem::take(&mut state.calls)
        };
        for (_, call) in calls {
            let _caller_gone = call.answer.send(Err(Error::Unreachable(text.clone())));
        }
        shared.observer.lost(self.device, &text);
        if matches!(lost, Lost::Refused(Refusal::UnknownDevice) | Lost::Connect { .. } | Lost::Silent(_)) {
            (shared.directory.unknown)(self.device);
        }
        // Most losses mend themselves; being refused or not understood is for a person to look at.
        let for_people = matches!(lost, Lost::Refused(_) | Lost::Answer(_) | Lost::Unasked);
        match for_people.then(|| shared.lines.allow(shared.clock.now())).flatten() {
            Some(held_back) => tracing::warn!(device = %self.device, held_back, "data connection lost: {text}"),
            None => tracing::debug!(device = %self.device, "data connection lost: {text}"),
        }
    }
}

async fn run(link: Rc<Link>, shared: Rc<Shared>, address: String) {
    let (lost, was_up) = match connect(&shared, &address).await {
        Ok(socket) => converse(&link, &shared, socket, &address).await,
        Err(lost) => (lost, false),
    };
    link.finish(&shared, &lost, was_up);
}

async fn connect(shared: &Shared, address: &str) -> Result<TcpStream, Lost> {
    let attempt = async {
        let socket = TcpStream::connect(address).await?;
        socket::prepare(&socket)?;
        io::Result::Ok(socket)
    };
    match timeout(&*shared.clock, shared.options.connect_timeout, attempt).await {
        Ok(Ok(socket)) => Ok(socket),
        Ok(Err(error)) => Err(Lost::Connect { address: address.to_owned(), error }),
        Err(_elapsed) => Err(Lost::Silent(address.to_owned())),
    }
}

/// Hello, then requests and answers until the end. True when the hello was answered well.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(link: &Link, shared: &Shared, socket: S, address: &str) -> (Lost, bool) {
    let intake = Intake::new(shared.pool.clone(), WhenEmpty::Heap);
    let tick = shared.clock.sleep(shared.options.stall);
    let mut talk = Talk { link, shared, socket, intake, outbox: Outbox::default(), tick, received_bytes: 0, written_bytes: 0 };
    match timeout(&*shared.clock, shared.options.connect_timeout, talk.greet()).await {
        Ok(Ok(())) => {}
        Ok(Err(lost)) => return (lost, false),
        Err(_elapsed) => return (Lost::Silent(address.to_owned()), false),
    }
    shared.observer.connected(link.device);
    (poll_fn(|cx| talk.poll_turns(cx)).await, true)
}

/// A connection that is up.
struct Talk<'a, S> {
    link: &'a Link,
    shared: &'a Shared,
    socket: S,
    intake: Intake,
    outbox: Outbox,
    tick: LocalBoxFuture<'static, ()>,
    received_bytes: u64,
    written_bytes: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Talk<'_, S> {
    async fn greet(&mut self) -> Result<(), Lost> {
        let hello = Hello::new(self.shared.options.cluster, self.link.device, &self.shared.options.name);
        self.outbox.push(frame::hello_frame(0, &hello), Weight::default());
        poll_fn(|cx| self.outbox.poll_flush(cx, &mut self.socket, &mut Weight::default())).await.map_err(Lost::Write)?;
        let clock = Rc::clone(&self.shared.clock);
        let frame = poll_fn(|cx| self.intake.poll_frame(cx, &mut self.socket, &*clock)).await?;
        let _version = frame::read_greeting(&frame)??;
        Ok(())
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        self.link.remember(cx.waker());
        loop {
            self.link.dispatch(self.shared, &mut self.outbox);
            let flushed = match self.outbox.poll_flush(cx, &mut self.socket, &mut Weight::default()) {
                Poll::Ready(Err(error)) => return Poll::Ready(Lost::Write(error)),
                flushed => flushed.is_ready(),
            };
            let more = match self.poll_answers(cx) {
                Ok(more) => more,
                Err(lost) => return Poll::Ready(lost),
            };
            if let Poll::Ready(lost) = self.poll_watch(cx) {
                return Poll::Ready(lost);
            }
            let queued = !self.link.state.borrow().queue.is_empty();
            let resumed = flushed && queued;
            if !more && !resumed {
                return Poll::Pending;
            }
        }
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        for _ in 0..BURST {
            match self.intake.poll_frame(cx, &mut self.socket, &*self.shared.clock) {
                Poll::Pending => return Ok(false),
                Poll::Ready(frame) => self.link.complete(frame?)?,
            }
        }
        Ok(true)
    }

    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        while self.tick.as_mut().poll(cx).is_ready() {
            self.tick = self.shared.clock.sleep(self.shared.options.stall);
            let (received, written) = (self.intake.received_bytes(), self.outbox.written_bytes());
            let (reads, writes) = (received != self.received_bytes, written != self.written_bytes);
            (self.received_bytes, self.written_bytes) = (received, written);
            if (self.intake.has_part() && !reads) || (!self.outbox.is_empty() && !writes) {
                return Poll::Ready(Lost::Stalled);
            }
            if !reads && !writes && !self.link.has_calls() {
                self.intake.rest();
            }
        }
        Poll::Pending
    }
}
