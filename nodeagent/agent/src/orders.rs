//! What the masters order and an agent does: deletions and repairs, a few at a time, below the foreground.

use api_telemetry::{Counter, Operation, Recorder, Stage, table};
use api_types::chunk::{ChunkStore, ChunkTransport, Error, Read, Request, Response, Seal, Sealed};
use api_types::limits::READ_BYTES_MAX;
use api_types::master::{Order, OrderResult, Work};
use api_types::unit::ChunkShape;
use api_types::{ChunkId, Clock, DeviceId, QosClass};
use nodeagent_engine::Engine;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Repairs under way at once on one core.
const REPAIRS_MAX: usize = 2;
/// Deletions under way at once on one core.
const DELETIONS_MAX: usize = 32;
/// How long one read of a source may take.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Does orders, and keeps what is to be reported with the next heartbeat.
pub(crate) struct Worker {
    engines: Rc<RefCell<BTreeMap<DeviceId, Engine>>>,
    transport: Rc<dyn ChunkTransport>,
    under_way: RefCell<BTreeSet<u64>>,
    repairs: RefCell<usize>,
    deletions: RefCell<usize>,
    done: RefCell<Vec<OrderResult>>,
    repaired_bytes: Counter,
    repair_time: Recorder,
    clock: Rc<dyn Clock>,
}

impl Worker {
    pub(crate) fn new(
        engines: Rc<RefCell<BTreeMap<DeviceId, Engine>>>,
        transport: Rc<dyn ChunkTransport>,
        clock: Rc<dyn Clock>,
    ) -> Rc<Self> {
        Rc::new(Worker {
            engines,
            transport,
            under_way: RefCell::default(),
            repairs: RefCell::new(0),
            deletions: RefCell::new(0),
            done: RefCell::default(),
            repaired_bytes: table::AGENT_REPAIRED_BYTES_TOTAL.with(&[]),
            repair_time: Recorder::new(Operation::Repair, Stage::Total),
            clock,
        })
    }

    /// Takes what fits; the rest comes again with the next heartbeat.
    pub(crate) fn take(self: &Rc<Self>, orders: Vec<Order>) {
        for order in orders {
            let Some(engine) = self.engines.borrow().get(&order.device).cloned() else { continue };
            let (counter, most) = match order.work {
                Work::Delete(_) => (&self.deletions, DELETIONS_MAX),
                Work::Repair { .. } => (&self.repairs, REPAIRS_MAX),
            };
            if self.under_way.borrow().contains(&order.id) || *counter.borrow() >= most || self.is_reported(order.id) {
                continue;
            }
            *counter.borrow_mut() += 1;
            self.under_way.borrow_mut().insert(order.id);
            let worker = Rc::clone(self);
            nodeagent_reactor::spawn_local("order", async move { worker.run(order, engine).await });
        }
    }

    /// What was done since the last call; given back by [`Worker::put_back`] when the report didn't arrive.
    pub(crate) fn take_done(&self) -> Vec<OrderResult> {
        std::mem::take(&mut self.done.borrow_mut())
    }

    /// See [`Worker::take_done`].
    pub(crate) fn put_back(&self, results: Vec<OrderResult>) {
        self.done.borrow_mut().extend(results);
    }

    fn is_reported(&self, id: u64) -> bool {
        self.done.borrow().iter().any(|result| result.id == id)
    }

    async fn run(&self, order: Order, engine: Engine) {
        let (kind, result, counter) = match order.work {
            Work::Delete(chunk) => ("delete", delete(&engine, chunk).await, &self.deletions),
            Work::Repair { shape, length, sources } => {
                let began = self.clock.now();
                let repaired = self.repair(&engine, shape, length, &sources).await;
                self.repair_time.record(self.clock.now().saturating_sub(began));
                ("repair", repaired, &self.repairs)
            }
        };
        table::AGENT_ORDERS_TOTAL.with(&[kind, if result.is_ok() { "ok" } else { "error" }]).increment();
        *counter.borrow_mut() -= 1;
        self.under_way.borrow_mut().remove(&order.id);
        if let Err(error) = &result {
            tracing::warn!(order = order.id, device = %order.device, %error, "an order of the masters failed");
        }
        self.done.borrow_mut().push(OrderResult { id: order.id, error: result.err().map(|error| error.to_string()) });
    }

    /// Makes the store hold a whole, sealed copy.
    async fn repair(&self, engine: &Engine, shape: ChunkShape, length: u32, sources: &[DeviceId]) -> Result<(), Error> {
        // Often every byte is here already, and only the answer was lost: then nothing has to be copied.
        if self.seal(engine, shape, length).await? == Sealed::At(length) {
            let scrub = engine.serve(Request::Scrub(shape.chunk)).await;
            if matches!(scrub, Ok(Response::Scrub(report)) if report.bad_at.is_none()) {
                return Ok(());
            }
        }
        let mut failed = Error::Unreachable("no source was named".to_owned());
        for source in sources {
            match self.copy(engine, shape, length, *source).await {
                Ok(()) => return Ok(()),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Closes the copy that may be here at the chunk's length. The masters have recorded that length for ever, so it is
    /// sealed with whatever epoch the store asks for; a newer writer's floor stays as it is.
    async fn seal(&self, engine: &Engine, shape: ChunkShape, length: u32) -> Result<Sealed, Error> {
        let seal = |epoch| Request::Seal(Seal { chunk: shape.chunk, owner: shape.owner, epoch, length: Some(length) });
        let answer = match engine.serve(seal(shape.epoch)).await {
            Err(Error::Fenced { floor }) => engine.serve(seal(floor)).await?,
            answer => answer?,
        };
        match answer {
            Response::Seal(sealed) => Ok(sealed),
            _ => Err(Error::Invalid("the store answered something else than was asked".to_owned())),
        }
    }

    async fn copy(&self, engine: &Engine, shape: ChunkShape, length: u32, source: DeviceId) -> Result<(), Error> {
        let mut restore = engine.restore(shape, length).await?;
        let mut offset = 0;
        while offset < length {
            let read = Read { chunk: shape.chunk, offset, length: READ_BYTES_MAX.min(length - offset), qos: QosClass::Repair };
            let response = self.transport.call(source, Request::Read(read), READ_LIMIT).await?;
            let Response::Read(bytes) = response else {
                return Err(Error::Invalid("the source answered something else than was asked".to_owned()));
            };
            restore.write(offset, bytes).await?;
            self.repaired_bytes.add(u64::from(read.length));
            offset += read.length;
        }
        restore.finish().await.map(drop)
    }
}

async fn delete(engine: &Engine, chunk: ChunkId) -> Result<(), Error> {
    engine.serve(Request::Delete(chunk)).await.map(drop)
}
