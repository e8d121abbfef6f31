//! One connection at the server: one task that reads, asks the store and writes.
//!
//! Each turn: read what is there (a burst at most) and give each request to the store in the order it came; poll the
//! store's answers; write them with one call. Reading stops while too many requests or bytes are under way, counted
//! until their answers are in the kernel's hands, so that a client that doesn't read can't make us hold more.

use super::intake::{Intake, IntakeError, WhenEmpty};
use super::observe::Served;
use super::outbox::{Outbox, Weight};
use super::server::ServerContext;
use api_types::QosClass;
use api_types::chunk::{ChunkStore, Error, Request, Response};
use api_wire::frame::{self, Ask, Frame, FrameError, Greeting, Header, Hello, Refusal, VERSION_MAX, VERSION_MIN};
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, Stream};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Frames taken in one turn before their answers are looked at.
const BURST: usize = 64;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The peer closed it between two frames, or was told why we won't talk.
    #[error("closed")]
    Closed,
    /// The peer went away in the middle of a frame, or the socket failed.
    #[error("broken: {0}")]
    Broken(String),
    /// What came isn't frames of ours.
    #[error("garbage: {0}")]
    Garbage(#[from] FrameError),
    /// The peer stopped in the middle of a frame, or takes no answers.
    #[error("stalled")]
    Stalled,
    /// Nothing was asked for long.
    #[error("idle")]
    Idle,
    /// We won't talk to this peer.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
}

impl End {
    /// The name used in metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            End::Closed => "closed",
            End::Broken(_) => "broken",
            End::Garbage(_) => "garbage",
            End::Stalled => "stalled",
            End::Idle => "idle",
            End::Refused(_) => "refused",
        }
    }
}

impl From<IntakeError> for End {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Closed => End::Closed,
            IntakeError::Frame(error) => End::Garbage(error),
            other => End::Broken(other.to_string()),
        }
    }
}

pub(crate) struct Connection<S> {
    socket: S,
    context: Rc<ServerContext>,
    intake: Intake,
    outbox: Outbox,
    phase: Phase,
    running: FuturesUnordered<Running>,
    /// Under way, from receipt until the answer is written.
    held: Weight,
    watch: Watch,
    peer: String,
}

enum Phase {
    Greeting,
    Serving(Rc<dyn ChunkStore>),
    /// Nothing more is read; ends when the outbox is empty.
    Refused(Refusal),
}

/// A request at the store.
struct Running {
    answer: LocalBoxFuture<'static, Result<Response, Error>>,
    header: Header,
    qos: QosClass,
    trace: bool,
    waited: Duration,
    began: Duration,
    weight: Weight,
}

impl Future for Running {
    type Output = (Result<Response, Error>, Header, QosClass, bool, Duration, Duration, Weight);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.answer.as_mut().poll(cx));
        Poll::Ready((result, self.header, self.qos, self.trace, self.waited, self.began, self.weight))
    }
}

/// Notices peers that stopped: looked at once a period, so that a request costs no timer.
struct Watch {
    tick: LocalBoxFuture<'static, ()>,
    received_bytes: u64,
    written_bytes: u64,
    quiet_periods: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(socket: S, context: Rc<ServerContext>) -> Self {
        let tick = context.clock.sleep(context.options.stall);
        let intake = Intake::new(context.pool.clone(), WhenEmpty::Wait);
        Connection {
            socket,
            context,
            intake,
            outbox: Outbox::default(),
            phase: Phase::Greeting,
            running: FuturesUnordered::new(),
            held: Weight::default(),
            watch: Watch { tick, received_bytes: 0, written_bytes: 0, quiet_periods: 0 },
            peer: String::new(),
        }
    }

    /// Serves until the connection ends. Dropping it drops the answers of what is under way, not the requests.
    pub(crate) async fn run(mut self) -> (End, String) {
        let end = poll_fn(|cx| self.poll_turns(cx)).await;
        (end, self.peer)
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let full = !self.may_read();
            let more = match self.poll_requests(cx) {
                Ok(more) => more,
                Err(end) => return Poll::Ready(end),
            };
            self.poll_answers(cx);
            let mut done = Weight::default();
            let flushed = self.outbox.poll_flush(cx, &mut self.socket, &mut done);
            self.held.requests -= done.requests;
            self.held.bytes -= done.bytes;
            match flushed {
                Poll::Ready(Err(error)) => return Poll::Ready(End::Broken(error.to_string())),
                Poll::Ready(Ok(())) => {
                    if let Phase::Refused(refusal) = &self.phase {
                        return Poll::Ready(End::Refused(*refusal));
                    }
                }
                Poll::Pending => {}
            }
            if let Poll::Ready(end) = self.poll_watch(cx) {
                return Poll::Ready(end);
            }
            // What was full has room again, or the burst ended early: nobody would wake us for the rest.
            let resumed = full && self.may_read();
            if !more && !resumed {
                return Poll::Pending;
            }
        }
    }

    fn may_read(&self) -> bool {
        let options = &self.context.options;
        !matches!(self.phase, Phase::Refused(_))
            && self.held.requests < options.requests_max
            && self.held.bytes < options.bytes_max
    }

    /// Takes a burst of requests. True when there may be more at once.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        for _ in 0..BURST {
            if !self.may_read() {
                return Ok(false);
            }
            match self.intake.poll_frame(cx, &mut self.socket, &*self.context.clock) {
                Poll::Pending => return Ok(false),
                Poll::Ready(frame) => self.accept(frame?)?,
            }
        }
        Ok(true)
    }

    fn accept(&mut self, frame: Frame) -> Result<(), End> {
        let store = match &self.phase {
            Phase::Greeting => return self.greet(&frame),
            Phase::Serving(store) => Rc::clone(store),
            Phase::Refused(_) => return Ok(()),
        };
        let header = frame.header;
        let Ask { request, budget, trace } = frame::read_ask(frame)?;
        let now = self.context.clock.now();
        let waited = now.saturating_sub(self.intake.filled_at());
        let expected_bytes = match &request {
            Request::Read(read) => read.length as usize,
            _ => header.payload_bytes as usize,
        };
        let weight = Weight { requests: 1, bytes: expected_bytes };
        self.held.requests += weight.requests;
        self.held.bytes += weight.bytes;
        if waited >= budget {
            self.outbox.push(frame::refusal_frame(&header, &Error::Deadline), weight);
            return Ok(());
        }
        let qos = qos_of(&request);
        let answer = store.serve(request);
        self.running.push(Running { answer, header, qos, trace, waited, began: now, weight });
        Ok(())
    }

    fn greet(&mut self, frame: &Frame) -> Result<(), End> {
        let hello = frame::read_hello(frame)?;
        let greeting = self.decide(&hello);
        self.peer = hello.peer;
        self.outbox.push(frame::welcome_frame(&frame.header, greeting), Weight::default());
        Ok(())
    }

    fn decide(&mut self, hello: &Hello) -> Greeting {
        let greeting = if hello.cluster != self.context.cluster {
            Err(Refusal::WrongCluster)
        } else {
            frame::choose_version(hello, VERSION_MIN..=VERSION_MAX)
        };
        let found = greeting.and_then(|version| {
            let store = (self.context.lookup)(hello.device).ok_or(Refusal::UnknownDevice)?;
            Ok((version, store))
        });
        match found {
            Ok((version, store)) => {
                self.phase = Phase::Serving(store);
                Ok(version)
            }
            Err(refusal) => {
                self.phase = Phase::Refused(refusal);
                Err(refusal)
            }
        }
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.running).poll_next(cx) {
            let (result, header, qos, trace, waited, began, weight) = done;
            let Phase::Serving(store) = &self.phase else { continue };
            let took = self.context.clock.now().saturating_sub(began);
            let device = store.device();
            let answer_bytes = if let Ok(Response::Read(bytes)) = &result { bytes.len() } else { 0 };
            self.context.observer.served(&Served {
                device,
                opcode: header.opcode,
                chunk: header.chunk,
                qos,
                waited,
                store: took,
                request_bytes: header.payload_bytes as usize,
                answer_bytes,
                error: result.as_ref().err(),
                trace,
            });
            self.outbox.push(frame::answer_frame(&header, result, took), weight);
        }
    }

    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        while self.watch.tick.as_mut().poll(cx).is_ready() {
            self.watch.tick = self.context.clock.sleep(self.context.options.stall);
            let (received, written) = (self.intake.received_bytes(), self.outbox.written_bytes());
            let reads = received != self.watch.received_bytes;
            let writes = written != self.watch.written_bytes;
            (self.watch.received_bytes, self.watch.written_bytes) = (received, written);
            // Half a frame is the peer's fault only while we are willing to read the other half.
            let owes_bytes = self.may_read() && (self.intake.has_part() || matches!(self.phase, Phase::Greeting));
            if (owes_bytes && !reads) || (!self.outbox.is_empty() && !writes) {
                return Poll::Ready(End::Stalled);
            }
            self.watch.quiet_periods = if reads || writes || self.held.requests > 0 { 0 } else { self.watch.quiet_periods + 1 };
            if self.watch.quiet_periods >= self.context.options.idle_periods {
                return Poll::Ready(End::Idle);
            }
            if self.watch.quiet_periods > 0 {
                self.intake.rest();
            }
        }
        Poll::Pending
    }
}

fn qos_of(request: &Request) -> QosClass {
    match request {
        Request::Append(append) => append.qos,
        Request::Read(read) => read.qos,
        Request::Scrub(_) => QosClass::Scrub,
        _ => QosClass::Foreground,
    }
}
