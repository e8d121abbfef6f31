//! Nodes with one chunk store each, and masters that are one state, called directly.

use api_types::checksum::FooterSeed;
use api_types::chunk::{ChunkStore, ChunkTransport, Error as ChunkError, Read, Request, Response};
use api_types::clock::timeout;
use api_types::master::{
    BadCopy, ChunkRecord, DeviceAddress, DeviceReport, Error, Grant, MasterClient, NodeReport, Order, OrderResult, RootPointer,
    SealChunk, StreamRecord, VolumeLease, Work,
};
use api_types::unit::Alignment;
use api_types::{ChunkId, Clock, ClusterId, DeviceId, Epoch, NodeName, QosClass, RequestId, Rng, StreamId, VolumeId};
use client_stream::{Client, Deps};
use client_volume::{Config, OpenError, Volume};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use master_state::{Body, Command, NewPool, NewVolume, Reply, State};
use nodeagent_device::Memory;
use nodeagent_engine::{Engine, FormatOptions, OpenOptions, format};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId(77);
const BEAT: Duration = Duration::from_millis(100);

/// Chance from a seed.
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }
}

impl Rng for Dice {
    fn next_u64(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Virtual time.
#[derive(Clone)]
struct TestClock(tokio::time::Instant);

impl Clock for TestClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }
}

struct Node {
    name: NodeName,
    device: DeviceId,
    engine: Engine,
    down: Cell<bool>,
    done: RefCell<Vec<OrderResult>>,
}

/// The cluster.
pub(crate) struct World {
    nodes: Vec<Node>,
    by_device: BTreeMap<DeviceId, usize>,
    state: RefCell<State>,
    clock: TestClock,
    dice: Dice,
}

impl World {
    /// Runs a test on a fresh cluster of nodes with a device of so many bytes each.
    pub(crate) fn run(seed: u64, device_bytes: u64, nodes: usize, test: impl AsyncFnOnce(Rc<World>)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a test cluster works");
        runtime.block_on(tokio::task::LocalSet::new().run_until(async {
            let world = World::new(seed, device_bytes, nodes).await;
            let beats = world.clone();
            tokio::task::spawn_local(async move {
                loop {
                    tokio::time::sleep(BEAT).await;
                    beats.beat().await;
                }
            });
            test(world).await;
        }));
    }

    async fn new(seed: u64, device_bytes: u64, count: usize) -> Rc<World> {
        let (clock, dice) = (TestClock(tokio::time::Instant::now()), Dice::new(seed));
        let mut nodes = Vec::new();
        for number in 0..count {
            let memory = Rc::new(Memory::new(device_bytes, 512));
            let superblock = format(memory.clone(), FormatOptions::new(CLUSTER), &dice).await.expect("a test cluster works");
            let engine =
                Engine::open(memory, Rc::new(clock.clone()), OpenOptions::new(CLUSTER)).await.expect("a test cluster works");
            let name = NodeName(format!("n{number}"));
            nodes.push(Node { name, device: superblock.device, engine, down: Cell::new(false), done: RefCell::default() });
        }
        let by_device = nodes.iter().enumerate().map(|(number, node)| (node.device, number)).collect();
        let world = Rc::new(World { nodes, by_device, state: RefCell::new(State::new()), clock, dice });
        let pool = NewPool { chunk_bytes: 1 << 20, ..NewPool::default() };
        world.apply(Body::Bootstrap { cluster: CLUSTER, pools: vec![pool] }).expect("a test cluster works");
        for node in &world.nodes {
            world.apply(Body::Register(world.report(node))).expect("a test cluster works");
        }
        world
    }

    fn apply(&self, body: Body) -> Result<Reply, Error> {
        let command = Command { request_id: RequestId(0), at_ms: self.clock.wall_ms(), seed: self.dice.next_u64(), body };
        self.state.borrow_mut().apply(&command).reply
    }

    fn report(&self, node: &Node) -> NodeReport {
        let stats = node.engine.stats().store;
        let address = DeviceAddress {
            device: node.device,
            node: node.name.clone(),
            endpoint: "memory:1".to_owned(),
            media: "memory".to_owned(),
        };
        let device = DeviceReport {
            address,
            capacity_bytes: stats.capacity_bytes,
            free_bytes: stats.free_bytes,
            alignment: Alignment::B512,
            healthy: true,
        };
        NodeReport {
            node: node.name.clone(),
            cluster: CLUSTER,
            labels: BTreeMap::new(),
            devices: vec![device],
            volumes: Vec::new(),
            done: node.done.borrow_mut().drain(..).collect(),
        }
    }

    /// One beat of every node that is up: news to the masters, orders done.
    async fn beat(&self) {
        if self.state.borrow().repairs_wanted(self.clock.wall_ms()) {
            let _ = self.apply(Body::PlanRepairs);
        }
        for node in self.nodes.iter().filter(|node| !node.down.get()) {
            let report = self.report(node);
            let news = self.state.borrow().news(&report).expect("a test cluster works");
            if let Some(news) = news {
                self.apply(news).expect("a test cluster works");
            }
            let orders = self.state.borrow().orders_for(&node.name);
            for order in orders {
                let result = self.obey(node, &order).await;
                node.done.borrow_mut().push(OrderResult { id: order.id, error: result.err().map(|error| error.to_string()) });
            }
        }
    }

    async fn obey(&self, node: &Node, order: &Order) -> Result<(), ChunkError> {
        match &order.work {
            Work::Delete(chunk) => node.engine.serve(Request::Delete(*chunk)).await.map(|_| ()),
            Work::Repair { shape, length, sources } => {
                let source = self.node(sources[0]);
                let mut restore = node.engine.restore(*shape, *length).await?;
                let mut offset = restore.written();
                while offset < *length {
                    let step = (*length - offset).min(1 << 20);
                    let read = Read { chunk: shape.chunk, offset, length: step, qos: QosClass::Repair };
                    let Response::Read(bytes) = source.engine.serve(Request::Read(read)).await? else { unreachable!() };
                    restore.write(offset, bytes).await?;
                    offset += step;
                }
                restore.finish().await.map(|_| ())
            }
        }
    }

    fn node(&self, device: DeviceId) -> &Node {
        &self.nodes[self.by_device[&device]]
    }

    /// One node, or none, can't be reached from now on.
    pub(crate) fn set_down(&self, down: Option<usize>) {
        self.nodes.iter().enumerate().for_each(|(number, node)| node.down.set(down == Some(number)));
    }

    /// Only one node can be reached from now on.
    pub(crate) fn set_all_down_but(&self, up: usize) {
        self.nodes.iter().enumerate().for_each(|(number, node)| node.down.set(up != number));
    }

    pub(crate) fn create_volume(&self, name: &str, size_bytes: u64) -> VolumeId {
        let new = NewVolume { name: name.to_owned(), size_bytes, ..NewVolume::default() };
        let Reply::Volume(volume) = self.apply(Body::CreateVolume(new)).expect("a test cluster works") else {
            unreachable!("another answer")
        };
        volume.volume
    }

    pub(crate) async fn lease(self: &Rc<Self>, volume: VolumeId) -> Result<VolumeLease, Error> {
        Wire(self.clone()).open_volume(volume, self.nodes[0].name.clone()).await
    }

    /// Takes a volume over and opens it, with a client of its own.
    pub(crate) async fn open(self: &Rc<Self>, volume: VolumeId) -> Result<Rc<Volume>, OpenError> {
        let lease = self.lease(volume).await?;
        let wire = Rc::new(Wire(self.clone()));
        let clock = Rc::new(self.clock.clone());
        let rng = Rc::new(Dice::new(self.dice.next_u64()));
        let deps = Deps {
            transport: wire.clone(),
            master: wire.clone(),
            clock: clock.clone(),
            rng: rng.clone(),
            seed: FooterSeed::of(CLUSTER),
        };
        let client = Client::new(deps, client_stream::Config { recover_limit: Duration::from_secs(5), ..Default::default() });
        let config = Config { checkpoint_log_bytes: 4 << 20, no_space_patience: Duration::from_secs(8), ..Config::default() };
        Volume::open(client, wire, clock, rng, lease, config).await
    }
}

/// How a client reaches the cluster.
struct Wire(Rc<World>);

impl ChunkTransport for Wire {
    fn call(&self, device: DeviceId, request: Request, limit: Duration) -> LocalBoxFuture<'static, Result<Response, ChunkError>> {
        let world = self.0.clone();
        // Asked now, so that requests arrive in the order of the calls; the answer takes a while.
        let node = world.node(device);
        if node.down.get() {
            return async { Err(ChunkError::Unreachable("down".to_owned())) }.boxed_local();
        }
        let served = node.engine.serve(request);
        let delay = Duration::from_micros(50 + world.dice.below(300));
        async move {
            let answer = timeout(&world.clock, limit, async {
                tokio::time::sleep(delay).await;
                served.await
            });
            let answer = answer.await.unwrap_or(Err(ChunkError::Deadline));
            if world.node(device).down.get() { Err(ChunkError::Unreachable("down".to_owned())) } else { answer }
        }
        .boxed_local()
    }
}

type Answer<T> = LocalBoxFuture<'static, Result<T, Error>>;

impl Wire {
    fn ask<T: 'static>(&self, body: Body, take: impl FnOnce(Reply) -> Option<T> + 'static) -> Answer<T> {
        let world = self.0.clone();
        async move {
            tokio::time::sleep(Duration::from_micros(200)).await;
            let reply = world.apply(body)?;
            Ok(take(reply).expect("the reply of the command"))
        }
        .boxed_local()
    }
}

fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

impl MasterClient for Wire {
    fn grant(&self, grant: Grant) -> Answer<Vec<ChunkRecord>> {
        self.ask(Body::Grant(grant), |reply| if let Reply::Chunks(chunks) = reply { Some(chunks) } else { None })
    }

    fn seal(&self, seal: SealChunk) -> Answer<u32> {
        self.ask(Body::Seal(seal), |reply| if let Reply::Length(length) = reply { Some(length) } else { None })
    }

    fn stream(&self, stream: StreamId) -> Answer<StreamRecord> {
        let answer = self.0.state.borrow().stream(stream);
        async move { answer }.boxed_local()
    }

    fn locate(&self, chunks: Vec<ChunkId>) -> Answer<Vec<ChunkRecord>> {
        let answer = self.0.state.borrow().locate(chunks);
        async move { Ok(answer) }.boxed_local()
    }

    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> Answer<()> {
        self.ask(Body::DeleteChunks { stream, epoch, chunks }, done)
    }

    fn report(&self, bad: BadCopy) -> Answer<()> {
        self.ask(Body::ReportBadCopy(bad), done)
    }

    fn devices(&self) -> Answer<Vec<DeviceAddress>> {
        let answer = self.0.state.borrow().devices();
        async move { Ok(answer) }.boxed_local()
    }

    fn open_volume(&self, volume: VolumeId, node: NodeName) -> Answer<VolumeLease> {
        self.ask(Body::OpenVolume { volume, node }, |reply| if let Reply::Lease(lease) = reply { Some(lease) } else { None })
    }

    fn close_volume(&self, volume: VolumeId, epoch: Epoch) -> Answer<()> {
        self.ask(Body::CloseVolume { volume, epoch }, done)
    }

    fn set_root(&self, volume: VolumeId, epoch: Epoch, root: RootPointer) -> Answer<()> {
        self.ask(Body::SetRoot { volume, epoch, root }, done)
    }
}
