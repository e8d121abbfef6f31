//! The data plane against a store in memory: over loopback sockets, and over pipes where time is simulated.

mod bad_peers;
mod calls;
mod store;

use super::connection::{Connection, End};
use super::*;
use api_types::chunk::{Append, Error, Read, Request};
use api_types::{ChunkId, Clock, ClusterId, DeviceId, Epoch, QosClass};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nodeagent_reactor::{BufferPool, PoolOptions};
use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use store::MemoryStore;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, LocalSet};

const CLUSTER: ClusterId = ClusterId(0xc1);
const DEVICE: DeviceId = DeviceId(0xd1);
const LIMIT: Duration = Duration::from_secs(20);

/// Tokio's clock: real, or simulated when the runtime's time is paused.
struct TokioClock(tokio::time::Instant);

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn wall_ms(&self) -> u64 {
        0
    }
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }
}

fn clock() -> Rc<dyn Clock> {
    Rc::new(TokioClock(tokio::time::Instant::now()))
}

fn on_a_core<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

/// Sleeps take no time: only for tests without sockets.
fn in_simulated_time<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

fn pool() -> BufferPool {
    BufferPool::new(PoolOptions { bytes_max: 64 << 20, idle_slabs: 1, huge_pages: false })
}

/// Remembers what it was told.
#[derive(Default)]
struct Notes {
    ends: RefCell<Vec<&'static str>>,
    served: RefCell<Vec<api_wire::frame::Opcode>>,
    lost: RefCell<Vec<String>>,
}

impl Observer for Notes {
    fn served(&self, served: &Served<'_>) {
        self.served.borrow_mut().push(served.opcode);
    }
    fn closed(&self, end: &End) {
        self.ends.borrow_mut().push(end.as_str());
    }
    fn lost(&self, _device: DeviceId, reason: &str) {
        self.lost.borrow_mut().push(reason.to_owned());
    }
}

fn context(store: &Rc<MemoryStore>, notes: &Rc<Notes>, options: ServerOptions) -> Rc<ServerContext> {
    let store = Rc::clone(store);
    Rc::new(ServerContext {
        options,
        cluster: CLUSTER,
        lookup: Rc::new(move |device| (device == DEVICE).then(|| Rc::clone(&store) as Rc<dyn api_types::chunk::ChunkStore>)),
        pool: pool(),
        clock: clock(),
        observer: Rc::clone(notes) as Rc<dyn Observer>,
    })
}

/// A server on a loopback socket.
struct Server {
    store: Rc<MemoryStore>,
    notes: Rc<Notes>,
    address: SocketAddr,
    task: JoinHandle<std::io::Error>,
}

impl Server {
    async fn start(options: ServerOptions) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Server::on(listener, options)
    }

    fn on(listener: TcpListener, options: ServerOptions) -> Server {
        let (store, notes) = (Rc::new(MemoryStore::new(DEVICE)), Rc::<Notes>::default());
        let address = listener.local_addr().unwrap();
        let task = tokio::task::spawn_local(serve(listener, context(&store, &notes, options)));
        Server { store, notes, address, task }
    }

    async fn stop(self) {
        self.task.abort();
        assert!(self.task.await.is_err());
    }

    fn client(&self) -> TcpTransport {
        client_to(self.address, CLUSTER)
    }
}

fn client_to(address: SocketAddr, cluster: ClusterId) -> TcpTransport {
    observed_client_to(address, cluster, Rc::new(NoObserver))
}

fn observed_client_to(address: SocketAddr, cluster: ClusterId, observer: Rc<dyn Observer>) -> TcpTransport {
    let directory =
        Directory { address: Rc::new(move |_| Some(address.to_string())), unknown: Rc::new(|_| {}), local: Rc::new(|_| None) };
    TcpTransport::new(ClientOptions::new(cluster, "test"), directory, pool(), clock(), observer)
}

fn append_at(chunk: u64, offset: u32, bytes: &Bytes) -> Request {
    Request::Append(Append {
        chunk: ChunkId(chunk),
        epoch: Epoch(1),
        offset,
        unit: bytes.clone(),
        create: offset == 0,
        qos: QosClass::Foreground,
    })
}

fn read_of(chunk: u64, offset: u32, length: u32) -> Request {
    Request::Read(Read { chunk: ChunkId(chunk), offset, length, qos: QosClass::Foreground })
}

/// Lets every task that can run do so.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Waits for what other tasks and sockets bring about.
async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
