//! Everything that belongs to one data core: its disks and their stores, its sockets, its way to the cluster, and the
//! volumes it serves. Made on the core's thread and never leaving it.

use crate::address_book::AddressBook;
use crate::attachments::{Attachments, Door};
use crate::disks::{self, Disk, DiskError};
use crate::masters::Masters;
use crate::meters::{BlockMeters, OperationTimes, Spans, StreamMeters};
use crate::orders::Worker;
use crate::rpc::{self, ClientOptions, Directory, ServerContext, ServerOptions, TcpTransport};
use crate::trace::{self, Recorded};
use crate::volumes::{self, Ground, Host};
use api_telemetry::TraceHub;
use api_types::checksum::FooterSeed;
use api_types::chunk::{ChunkStore, ChunkTransport};
use api_types::master::{DeviceAddress, DeviceReport, MasterClient, NodeOrders, OrderResult, PoolRecord};
use api_types::unit::Alignment;
use api_types::{Clock, ClusterId, DeviceId, Epoch, NodeName, Rng, VolumeId};
use api_wire::master_client::MasterConnection;
use client_stream::{Client, Deps};
use nodeagent_engine::Engine;
use nodeagent_frontend::{Context, FrontEnd, HolderCommand, LoopFuse, Nbd, NbdOptions};
use nodeagent_reactor::{BufferPool, PoolOptions, RealClock, RealRng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpListener;

/// What one core is to be.
pub(crate) struct SideConfig {
    pub(crate) index: u16,
    pub(crate) node: NodeName,
    pub(crate) cluster: ClusterId,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise_host: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) fuse_keeper: Option<PathBuf>,
    pub(crate) allow_faults: bool,
    pub(crate) connection: MasterConnection,
    pub(crate) control: tokio::runtime::Handle,
    pub(crate) traces: TraceHub,
}

/// Why a core didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No thread or no runtime.
    #[error("could not start a data core: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread ended before it served.
    #[error("a data core ended while it started")]
    Died,
    /// The address is taken, or not ours.
    #[error("could not listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A disk can't be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The list of attachments can't be read.
    #[error("could not read the list of attachments: {0}")]
    Attachments(#[source] std::io::Error),
}

/// See the module.
pub(crate) struct Side {
    pub(crate) host: Rc<Host>,
    worker: Rc<Worker>,
    disks: Vec<Disk>,
    engines: Rc<RefCell<BTreeMap<DeviceId, Engine>>>,
    pool: BufferPool,
    client: Client,
    streams: StreamMeters,
    spans: Rc<Spans>,
    clock: Rc<dyn Clock>,
    node: NodeName,
    endpoint: String,
}

impl Side {
    pub(crate) async fn start(config: SideConfig) -> Result<Side, StartError> {
        let clock: Rc<dyn Clock> = Rc::new(RealClock::new());
        let rng: Rc<dyn Rng> = Rc::new(RealRng::new());
        let pool = BufferPool::new(PoolOptions::default());
        let listener = listen(config.listen).map_err(|source| StartError::Listen { address: config.listen, source })?;
        let disks = disks::open_all(&config, &pool, &clock, &rng).await?;
        let engines: Rc<RefCell<BTreeMap<_, _>>> =
            Rc::new(RefCell::new(disks.iter().map(|disk| (disk.engine.device(), disk.engine.clone())).collect()));
        let spans = Spans::new(config.traces.clone(), Rc::clone(&clock));
        let observer: Rc<dyn rpc::Observer> = Rc::new(rpc::CountedObserver::new(Rc::clone(&spans)));
        serve_chunks(&config, listener, &engines, &pool, &clock, &observer);
        let masters = Rc::new(Masters::new(config.connection.clone(), config.control.clone()));
        let book = AddressBook::new(Rc::clone(&masters) as Rc<dyn MasterClient>, Rc::clone(&clock));
        let transport = transport(&config, &book, &engines, &pool, &clock, &observer);
        let client = client(&config, &masters, Rc::clone(&transport), &clock, &rng);
        let ground = Ground {
            node: config.node.clone(),
            client: client.clone(),
            masters,
            book,
            clock: Rc::clone(&clock),
            rng,
            doors: doors(&config, &clock, &spans),
            times: OperationTimes::new(),
            spans: Rc::clone(&spans),
            config: client_volume::Config::default(),
        };
        let attachments = Attachments::load(&config.run_dir).map_err(StartError::Attachments)?;
        let endpoint = format!("{}:{}", config.advertise_host, config.listen.port());
        let worker = Worker::new(Rc::clone(&engines), transport, Rc::clone(&clock));
        let host = Host::new(ground, attachments);
        host.adopt();
        let (streams, node) = (StreamMeters::new(), config.node);
        Ok(Side { host, worker, disks, engines, pool, client, streams, spans, clock, node, endpoint })
    }

    /// What a heartbeat says of this core.
    /// Gauges are taken over with it.
    pub(crate) fn report(&self) -> (Vec<DeviceReport>, Vec<(VolumeId, Epoch)>, Vec<OrderResult>) {
        self.streams.refresh(&self.client.stats(), &self.pool.info());
        self.host.refresh_meters();
        let devices = self.disks.iter().map(|disk| self.report_disk(disk)).collect();
        (devices, self.host.epochs(), self.worker.take_done())
    }

    fn report_disk(&self, disk: &Disk) -> DeviceReport {
        let stats = disk.engine.stats();
        disk.meters.refresh(&stats);
        let stats = stats.store;
        DeviceReport {
            address: DeviceAddress {
                device: disk.engine.device(),
                node: self.node.clone(),
                endpoint: self.endpoint.clone(),
                media: disk.media.to_owned(),
            },
            capacity_bytes: stats.capacity_bytes,
            free_bytes: stats.free_bytes,
            alignment: if disk.block_bytes <= 512 { Alignment::B512 } else { Alignment::B4096 },
            healthy: disk.is_healthy(),
        }
    }

    /// Does what the masters answered.
    pub(crate) fn obey(&self, orders: NodeOrders, pools: &[PoolRecord]) {
        self.host.obey(&orders.epochs);
        self.host.set_pool_space(pools);
        self.worker.take(orders.orders);
    }

    /// Gives back results whose report didn't arrive.
    pub(crate) fn put_back(&self, results: Vec<OrderResult>) {
        self.worker.put_back(results);
    }

    /// Records the operations of a volume for a while.
    pub(crate) async fn trace(
        &self,
        volume: VolumeId,
        duration: Duration,
        threshold: Duration,
    ) -> Result<Recorded, volumes::Error> {
        if !self.host.serves(volume) {
            return Err(volumes::Error::NotAttached);
        }
        Ok(trace::record(&self.spans, volume, duration, threshold, self.clock.sleep(duration)).await)
    }

    /// Slows one of this core's disks, or all, for tests. Answers how many.
    pub(crate) fn slow(&self, device: Option<DeviceId>, extra: Duration, duration: Duration) -> u32 {
        let chosen = self.disks.iter().filter(|disk| device.is_none_or(|device| disk.engine.device() == device));
        chosen.map(|disk| u32::from(disk.slow(extra, duration))).sum()
    }

    /// Ends: volumes are brought to rest for the next agent, stores write their checkpoint.
    pub(crate) async fn stop(&self) {
        self.host.release().await;
        let engines: Vec<Engine> = self.engines.borrow().values().cloned().collect();
        for engine in engines {
            if let Err(error) = engine.close().await {
                tracing::warn!(device = %engine.device(), %error, "a store did not close cleanly: the next start replays");
            }
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = api_telemetry::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

type Engines = Rc<RefCell<BTreeMap<DeviceId, Engine>>>;

fn lookup(engines: &Engines) -> Rc<dyn Fn(DeviceId) -> Option<Rc<dyn ChunkStore>>> {
    let engines = Rc::clone(engines);
    Rc::new(move |device| engines.borrow().get(&device).map(|engine| Rc::new(engine.clone()) as Rc<dyn ChunkStore>))
}

fn serve_chunks(
    config: &SideConfig,
    listener: TcpListener,
    engines: &Engines,
    pool: &BufferPool,
    clock: &Rc<dyn Clock>,
    observer: &Rc<dyn rpc::Observer>,
) {
    let context = Rc::new(ServerContext {
        options: ServerOptions::default(),
        cluster: config.cluster,
        lookup: lookup(engines),
        pool: pool.clone(),
        clock: Rc::clone(clock),
        observer: Rc::clone(observer),
    });
    nodeagent_reactor::spawn_local("accept", rpc::serve(listener, context));
}

fn transport(
    config: &SideConfig,
    book: &Rc<AddressBook>,
    engines: &Engines,
    pool: &BufferPool,
    clock: &Rc<dyn Clock>,
    observer: &Rc<dyn rpc::Observer>,
) -> Rc<dyn ChunkTransport> {
    let (address, unknown) = (Rc::clone(book), Rc::clone(book));
    let directory = Directory {
        address: Rc::new(move |device| address.endpoint(device)),
        unknown: Rc::new(move |_| unknown.refresh()),
        local: lookup(engines),
    };
    let options = ClientOptions::new(config.cluster, config.node.as_str());
    Rc::new(TcpTransport::new(options, directory, pool.clone(), Rc::clone(clock), Rc::clone(observer)))
}

fn client(
    config: &SideConfig,
    masters: &Rc<Masters>,
    transport: Rc<dyn ChunkTransport>,
    clock: &Rc<dyn Clock>,
    rng: &Rc<dyn Rng>,
) -> Client {
    let deps = Deps {
        transport,
        master: Rc::clone(masters) as Rc<dyn MasterClient>,
        clock: Rc::clone(clock),
        rng: Rc::clone(rng),
        seed: FooterSeed::of(config.cluster),
    };
    Client::new(deps, client_stream::Config { node: Some(config.node.clone()), ..client_stream::Config::default() })
}

fn doors(config: &SideConfig, clock: &Rc<dyn Clock>, spans: &Rc<Spans>) -> BTreeMap<Door, Rc<dyn FrontEnd>> {
    let context = Context { clock: Rc::clone(clock), observer: Rc::new(BlockMeters::new(Rc::clone(spans))) };
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("basalt"));
    let holder = HolderCommand { program, arguments: vec!["fuse-holder".into()], keeper: config.fuse_keeper.clone() };
    let nbd = NbdOptions { socket_dir: config.run_dir.join("nbd"), tcp: None };
    BTreeMap::from([
        (Door::LoopFuse, Rc::new(LoopFuse::new(config.run_dir.join("fuse"), holder, context.clone())) as Rc<dyn FrontEnd>),
        (Door::Nbd, Rc::new(Nbd::new(nbd, context)) as Rc<dyn FrontEnd>),
    ])
}
