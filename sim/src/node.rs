//! A node: one agent process, one device that outlives it.

use crate::clock::Chance;
use crate::network::{Host, Transport};
use crate::process::Process;
use crate::world::{CLUSTER, World};
use api_types::chunk::{ChunkStore, ChunkTransport, Error, Read, Request, Response, ScrubReport, Seal, Sealed};
use api_types::limits::READ_BYTES_MAX;
use api_types::master::{DeviceAddress, DeviceReport, NodeReport, Order, OrderResult, Work};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{Clock, DeviceId, NodeName, QosClass};
use master_state::Body;
use nodeagent_device::{Device, Faulty, Memory};
use nodeagent_engine::{Engine, FormatOptions, OpenOptions, format};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

const DEVICE_BYTES: u64 = 256 << 20;
const BEAT: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) name: NodeName,
    pub(crate) device_id: DeviceId,
    pub(crate) device: Faulty<Memory>,
    process: RefCell<Option<Rc<Process>>>,
    engine: RefCell<Option<Engine>>,
}

impl Node {
    /// A node with a freshly formatted device.
    pub(crate) async fn create(world: &Rc<World>, number: u32) -> Result<Rc<Node>, String> {
        let chance: Rc<Chance> = world.chance.fork();
        let block = if number.is_multiple_of(2) { 512 } else { 4096 };
        let device = Faulty::new(Memory::new(DEVICE_BYTES, block), Rc::new(world.time.clone()), chance.clone());
        let device_id = DeviceId(u64::from(number) + 1);
        let options = FormatOptions { device_id: Some(device_id), ..FormatOptions::new(CLUSTER) };
        let raw: Rc<dyn Device> = Rc::new(device.clone());
        format(raw, options, chance.as_ref()).await.map_err(|error| error.to_string())?;
        Ok(Rc::new(Node {
            host: Host(number),
            name: NodeName(format!("n{number}")),
            device_id,
            device,
            process: RefCell::new(None),
            engine: RefCell::new(None),
        }))
    }

    /// The agent, if it is up and has opened its device.
    pub(crate) fn running(&self) -> Option<(Rc<Process>, Engine)> {
        let process = self.process.borrow().clone().filter(|process| process.is_alive())?;
        Some((process, self.engine.borrow().clone()?))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.borrow().as_ref().is_some_and(|process| process.is_alive())
    }

    /// Starts the agent.
    pub(crate) fn start(self: &Rc<Self>, world: &Rc<World>) {
        let process = Process::start(world);
        *self.process.borrow_mut() = Some(Rc::clone(&process));
        let (node, world) = (Rc::clone(self), Rc::clone(world));
        process.spawn(async move {
            let device: Rc<dyn Device> = Rc::new(node.device.clone());
            let opened = Engine::open(device, Rc::new(world.time.clone()), OpenOptions::new(CLUSTER)).await;
            match opened {
                Ok(engine) => {
                    world.tell(&format!("{} is up", node.name));
                    *node.engine.borrow_mut() = Some(engine.clone());
                    beat(node, Rc::downgrade(&world), engine).await;
                }
                Err(error) => world.checks.borrow_mut().fail(format!("{} does not come up again: {error}", node.name)),
            }
        });
    }

    /// The agent dies; with `power`, what its device had only cached is lost or torn.
    pub(crate) fn crash(&self, power: bool) {
        if let Some(process) = self.process.borrow_mut().take() {
            process.kill();
        }
        drop(self.engine.borrow_mut().take());
        if power {
            self.device.crash();
        }
    }

    /// Loses power after what runs now, and comes back a while later.
    pub(crate) fn lose_power_now(self: &Rc<Self>, world: &Rc<World>) {
        let back_after = world.chance.between(Duration::from_millis(20), Duration::from_secs(1));
        world.tell(&format!("{} loses power as it answers a seal, back after {back_after:?}", self.name));
        let (node, here) = (Rc::clone(self), Rc::clone(world));
        world.spawn(async move {
            node.crash(true);
            here.time.sleep(back_after).await;
            if !node.is_up() {
                node.start(&here);
            }
        });
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        if let Some(process) = self.process.borrow().as_ref() {
            process.set_stopped(stopped);
        }
    }

    fn report(&self, engine: &Engine, done: Vec<OrderResult>) -> NodeReport {
        let stats = engine.stats().store;
        let address = DeviceAddress {
            device: self.device_id,
            node: self.name.clone(),
            endpoint: format!("{}:1", self.name),
            media: "memory".to_owned(),
        };
        let alignment = if self.device.info().block_bytes == 512 { Alignment::B512 } else { Alignment::B4096 };
        let (capacity_bytes, free_bytes) = (stats.capacity_bytes, stats.free_bytes);
        let device = DeviceReport { address, capacity_bytes, free_bytes, alignment, healthy: true };
        NodeReport {
            node: self.name.clone(),
            cluster: CLUSTER,
            labels: BTreeMap::new(),
            devices: vec![device],
            volumes: Vec::new(),
            done,
        }
    }
}

/// Registers, then beats: tells what was done, and does what is ordered.
async fn beat(node: Rc<Node>, world: Weak<World>, engine: Engine) {
    let mut done = Vec::new();
    let mut registered = false;
    loop {
        let Some(world) = world.upgrade() else { return };
        if world.time.now() >= world.leaderless_until.get() {
            let report = node.report(&engine, done.clone());
            let body = if registered { world.state.borrow().news(&report).unwrap_or(None) } else { Some(Body::Register(report)) };
            if let Some(body) = body {
                registered |= world.apply(None, body).is_ok();
            }
            done.clear();
            let at_ms = world.time.wall_ms();
            if world.state.borrow().repairs_wanted(at_ms) {
                let _ = world.apply(None, Body::PlanRepairs);
            }
            let orders = world.state.borrow().orders_for(&node.name);
            for order in orders.into_iter().take(4) {
                done.push(obey(&node, &world, &engine, order).await);
            }
        }
        world.time.sleep(BEAT).await;
    }
}

async fn obey(node: &Node, world: &Rc<World>, engine: &Engine, order: Order) -> OrderResult {
    let result = match &order.work {
        Work::Delete(chunk) => engine.serve(Request::Delete(*chunk)).await.map(drop),
        Work::Repair { shape, length, sources } => {
            let mut result = Err(Error::Unknown);
            for source in sources {
                result = repair(node, world, engine, *shape, *length, *source).await;
                if result.is_ok() {
                    break;
                }
            }
            result
        }
    };
    world.tell(&format!("{} did {:?}: {:?}", node.name, order.work, result));
    OrderResult { id: order.id, error: result.err().map(|error| error.to_string()) }
}

async fn repair(
    node: &Node,
    world: &Rc<World>,
    engine: &Engine,
    shape: ChunkShape,
    length: u32,
    source: DeviceId,
) -> Result<(), Error> {
    if seal(engine, shape, length).await == Ok(Response::Seal(Sealed::At(length)))
        && let Ok(Response::Scrub(ScrubReport { bad_at: None, .. })) = engine.serve(Request::Scrub(shape.chunk)).await
    {
        return Ok(());
    }
    let transport = Transport { world: Rc::downgrade(world), host: node.host };
    let mut restore = engine.restore(shape, length).await?;
    let mut offset = 0;
    while offset < length {
        let read = Read { chunk: shape.chunk, offset, length: READ_BYTES_MAX.min(length - offset), qos: QosClass::Repair };
        let Response::Read(bytes) = transport.call(source, Request::Read(read), Duration::from_secs(5)).await? else {
            return Err(Error::Invalid("not an answer to a read".to_owned()));
        };
        restore.write(offset, bytes).await?;
        offset += read.length;
    }
    restore.finish().await.map(drop)
}

/// Cuts the copy that is here. The floor may be above the chunk's own epoch by now: then that is the epoch to seal with.
async fn seal(engine: &Engine, shape: ChunkShape, length: u32) -> Result<Response, Error> {
    let seal = |epoch| Request::Seal(Seal { chunk: shape.chunk, owner: shape.owner, epoch, length: Some(length) });
    match engine.serve(seal(shape.epoch)).await {
        Err(Error::Fenced { floor }) => engine.serve(seal(floor)).await,
        other => other,
    }
}
