//! The client's door: a [`ChunkTransport`] over sockets, with a short way to stores of the same core.

use super::link::Link;
use super::observe::{Called, LogLimit, Observer};
use api_types::checksum::crc32c;
use api_types::chunk::{ChunkStore, ChunkTransport, Error, Request, Response};
use api_types::clock::timeout;
use api_types::{ChunkId, Clock, ClusterId, DeviceId};
use api_wire::frame::{Opcode, check_request};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use nodeagent_reactor::BufferPool;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// `host:port` of a device, as last heard from the masters.
pub type AddressBook = Rc<dyn Fn(DeviceId) -> Option<String>>;
/// Stores of this very core.
pub type LocalStores = Rc<dyn Fn(DeviceId) -> Option<Rc<dyn ChunkStore>>>;

/// Links kept before idle ones are forgotten.
const LINKS_KEPT: usize = 256;

/// Bounds and names of one core's client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Our cluster.
    pub cluster: ClusterId,
    /// Our name, for the server's logs.
    pub name: String,
    /// Requests without an answer per device; more get `Busy`.
    pub requests_max: usize,
    /// Payload bytes not yet given to the socket per device; more get `Busy`.
    pub queued_bytes_max: usize,
    /// For connecting, and again for the hello.
    pub connect_timeout: Duration,
    /// After a connection is lost, calls fail at once for this long.
    pub pause_min: Duration,
    /// The pause doubles with each failure in a row, up to this.
    pub pause_max: Duration,
    /// A peer that doesn't go on in the middle of a frame or takes no bytes is cut off after this long to twice as long.
    pub stall: Duration,
}

impl ClientOptions {
    /// The usual bounds.
    #[must_use]
    pub fn new(cluster: ClusterId, name: &str) -> Self {
        ClientOptions {
            cluster,
            name: name.to_owned(),
            requests_max: 4096,
            queued_bytes_max: 64 << 20,
            connect_timeout: Duration::from_secs(1),
            pause_min: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            stall: Duration::from_secs(10),
        }
    }
}

/// How devices are found.
#[derive(Clone)]
pub struct Directory {
    /// Where a device can be reached. Read at each attempt to connect.
    pub address: AddressBook,
    /// A device has no address, or isn't where it was said to be: ask the masters again. Called often; the owner limits
    /// how often it really asks.
    pub unknown: Rc<dyn Fn(DeviceId)>,
    /// Stores that are called directly.
    pub local: LocalStores,
}

pub(crate) struct Shared {
    pub(crate) options: ClientOptions,
    pub(crate) directory: Directory,
    pub(crate) pool: BufferPool,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) observer: Rc<dyn Observer>,
    pub(crate) lines: LogLimit,
    links: RefCell<BTreeMap<DeviceId, Rc<Link>>>,
    /// The payload summed last: a unit goes to several replicas in a row, and is summed once. Held only until it is
    /// sent.
    summed: RefCell<Option<(Bytes, u32)>>,
}

impl Shared {
    pub(crate) fn payload_crc(&self, payload: &Bytes) -> u32 {
        if payload.is_empty() {
            return crc32c(&[]);
        }
        let mut summed = self.summed.borrow_mut();
        // The bytes can't have changed while we hold them, so the place says it all.
        if let Some((known, crc)) = &*summed
            && known.as_ptr() == payload.as_ptr()
            && known.len() == payload.len()
        {
            return *crc;
        }
        let crc = crc32c(payload);
        *summed = Some((payload.clone(), crc));
        crc
    }

    pub(crate) fn forget_payload(&self) {
        self.summed.borrow_mut().take();
    }

    fn link(&self, device: DeviceId) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        if links.len() > LINKS_KEPT && !links.contains_key(&device) {
            let now = self.clock.now();
            links.retain(|_, link| !link.is_idle(now));
        }
        Rc::clone(links.entry(device).or_insert_with(|| Rc::new(Link::new(device))))
    }
}

/// The way from one core to every store. Clones share the connections. Lives on a `LocalSet`.
#[derive(Clone)]
pub struct TcpTransport {
    shared: Rc<Shared>,
}

impl TcpTransport {
    /// Connects to nothing yet.
    #[must_use]
    pub fn new(
        options: ClientOptions,
        directory: Directory,
        pool: BufferPool,
        clock: Rc<dyn Clock>,
        observer: Rc<dyn Observer>,
    ) -> Self {
        let lines = LogLimit::new(Duration::from_secs(10));
        let (links, summed) = (RefCell::default(), RefCell::default());
        let shared = Shared { options, directory, pool, clock, observer, lines, links, summed };
        TcpTransport { shared: Rc::new(shared) }
    }

    /// Sends a request: queued before this returns.
    fn send(&self, device: DeviceId, request: Request, limit: Duration, trace: bool) -> Sent {
        if let Err(error) = check_request(&request) {
            return Sent::Failed(error);
        }
        if let Some(store) = (self.shared.directory.local)(device) {
            return Sent::Local(store.serve(request));
        }
        match self.shared.link(device).send(&self.shared, request, limit, trace) {
            Ok(receiver) => Sent::Remote(receiver),
            Err(error) => Sent::Failed(error),
        }
    }
}

enum Sent {
    Failed(Error),
    Local(LocalBoxFuture<'static, Result<Response, Error>>),
    Remote(tokio::sync::oneshot::Receiver<Result<api_wire::frame::Answer, Error>>),
}

impl ChunkTransport for TcpTransport {
    fn call(&self, device: DeviceId, request: Request, limit: Duration) -> LocalBoxFuture<'static, Result<Response, Error>> {
        let shared = Rc::clone(&self.shared);
        let (opcode, trace) = (Opcode::of(&request), shared.observer.traces());
        let (chunk, offset) = place_of(&request);
        let began = shared.clock.now();
        let (local, answer) = match self.send(device, request, limit, trace) {
            Sent::Failed(error) => return ready(Err(error)).boxed_local(),
            Sent::Local(answer) => (true, answer.map(|result| (result, None)).left_future()),
            Sent::Remote(receiver) => (false, receiver.map(from_receiver).right_future()),
        };
        async move {
            let done = timeout(&*shared.clock, limit, answer).await;
            let (result, device_time) = done.unwrap_or((Err(Error::Deadline), None));
            let total = shared.clock.now().saturating_sub(began);
            shared.observer.called(&Called {
                device,
                opcode,
                chunk,
                offset,
                began,
                total,
                device_time: if local { total } else { device_time.unwrap_or_default() },
                error: result.as_ref().err(),
                local,
                trace,
            });
            result
        }
        .boxed_local()
    }
}

type Received = Result<Result<api_wire::frame::Answer, Error>, tokio::sync::oneshot::error::RecvError>;

fn from_receiver(received: Received) -> (Result<Response, Error>, Option<Duration>) {
    match received {
        Ok(Ok(answer)) => (answer.result, Some(answer.device_time)),
        Ok(Err(error)) => (Err(error), None),
        // Not sent before its deadline.
        Err(_dropped) => (Err(Error::Deadline), None),
    }
}

/// The chunk and the offset that a request is about.
fn place_of(request: &Request) -> (ChunkId, u32) {
    match request {
        Request::Append(append) => (append.chunk, append.offset),
        Request::Read(read) => (read.chunk, read.offset),
        Request::Seal(seal) => (seal.chunk, 0),
        Request::Delete(chunk) | Request::Stat(chunk) | Request::Scrub(chunk) | Request::List(chunk) => (*chunk, 0),
        Request::Probe => (ChunkId(0), 0),
    }
}
