//! The shell: carries effects to the device and the journal, and completions back.

mod background;
mod commit;
mod restore;
mod serve;

use crate::core::{Core, Effect, Limits, OpId, ReadPlan, UnitWrite};
use crate::engine::{MountReport, OpenError, OpenOptions, Stats};
use crate::mount::Mounted;
use crate::observe::{Op, Stage};
use crate::superblock::Superblock;
use api_types::checksum::FooterSeed;
use api_types::chunk::{Error, Response, StoreStats};
use api_types::clock::timeout;
use api_types::limits::EXTENT_BYTES;
use api_types::{Clock, QosClass, Rule};
use bytes::{Bytes, BytesMut};
use commit::Journal;
use futures::future::LocalBoxFuture;
use nodeagent_device::{Device, Durability, Write};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

pub(crate) use commit::{ring_of, write_region};
pub(crate) use restore::RestoreWriter;

/// A close gives up waiting for the device after this.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

type Answer = Result<Response, Error>;

#[derive(Default)]
struct Counters {
    device_errors: Cell<u64>,
    commits: Cell<u64>,
    checkpoints: Cell<u64>,
}

impl Counters {
    fn add(cell: &Cell<u64>) {
        cell.set(cell.get() + 1);
    }
}

#[derive(Default)]
struct Bells {
    journal: Notify,
    /// The journal ring has room again.
    room: Notify,
    checkpoint: Notify,
    refill: Notify,
    trim: Notify,
    /// Something came back: whoever waits for idleness looks again.
    settled: Notify,
}

pub(crate) struct Shell {
    device: Rc<dyn Device>,
    clock: Rc<dyn Clock>,
    options: OpenOptions,
    seed: FooterSeed,
    pub(crate) superblock: Superblock,
    pub(crate) report: MountReport,
    core: RefCell<Core>,
    journal: RefCell<Journal>,
    waiters: RefCell<Slab<oneshot::Sender<Answer>>>,
    bells: Bells,
    counters: Counters,
    /// One checkpoint at a time.
    checkpointing: tokio::sync::Mutex<()>,
    /// No new request is taken.
    is_closing: Cell<bool>,
    /// Nothing goes to the device any more, as if the process were gone.
    is_stopped: Cell<bool>,
}

impl Shell {
    pub(crate) fn new(
        device: Rc<dyn Device>,
        clock: Rc<dyn Clock>,
        options: OpenOptions,
        mounted: Mounted,
    ) -> Result<Rc<Shell>, OpenError> {
        let info = device.info();
        let layout = mounted.superblock.layout;
        let limits = Limits {
            block_bytes: info.block_bytes,
            append_bytes_max: options.append_bytes_max,
            append_limit: options.append_limit,
            floors_max: layout.floors_max(),
        };
        let core = Core::new(&mounted.image, layout.extents, options.reserved_extents, info.trims, limits)
            .map_err(|error| OpenError::Damaged { name: info.name.clone(), what: error.to_string() })?;
        Ok(Rc::new(Shell {
            seed: FooterSeed::of(mounted.superblock.cluster),
            superblock: mounted.superblock,
            report: mounted.report,
            core: RefCell::new(core),
            journal: RefCell::new(Journal::new(&mounted.superblock, mounted.image, mounted.position)),
            waiters: RefCell::default(),
            bells: Bells::default(),
            counters: Counters::default(),
            checkpointing: tokio::sync::Mutex::default(),
            is_closing: Cell::new(false),
            is_stopped: Cell::new(false),
            device,
            clock,
            options,
        }))
    }

    /// Starts what runs beside the requests. To be aborted when the last handle goes.
    pub(crate) fn start(self: &Rc<Self>) -> Vec<JoinHandle<()>> {
        vec![
            tokio::task::spawn_local(Rc::clone(self).commit_loop()),
            tokio::task::spawn_local(Rc::clone(self).checkpoint_loop()),
            tokio::task::spawn_local(Rc::clone(self).refill_loop()),
            tokio::task::spawn_local(Rc::clone(self).trim_loop()),
            tokio::task::spawn_local(Rc::clone(self).watch_loop()),
        ]
    }

    /// Reserves the first extents, so that the first chunks needn't wait.
    pub(crate) async fn warm_up(self: &Rc<Self>) {
        self.refill().await;
        // A device that can't be written to is found out by the first append.
        let _ = self.barrier().await;
    }

    /// From now on nothing reaches the device, and who waits is told.
    pub(crate) fn stop(&self) {
        self.is_stopped.set(true);
        self.is_closing.set(true);
        // Dropping the senders answers; they are taken out first, because an answer may run code that comes back here.
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        drop(waiters);
    }

    /// Waits for what is under way, then writes down everything. Stops in any case.
    pub(crate) async fn close(self: &Rc<Self>) -> Result<(), Error> {
        if self.is_closing.replace(true) {
            return Ok(());
        }
        let settled = timeout(self.clock.as_ref(), CLOSE_LIMIT, self.settle()).await;
        self.stop();
        settled.unwrap_or(Err(Error::Deadline))
    }

    async fn settle(self: &Rc<Self>) -> Result<(), Error> {
        loop {
            let settled = self.bells.settled.notified();
            if self.core.borrow().is_idle() {
                break;
            }
            settled.await;
        }
        self.core.borrow_mut().journal_progress();
        self.barrier().await?;
        self.write_checkpoint().await.map_err(|error| Error::Io(error.to_string()))
    }

    pub(crate) fn stats(&self) -> Stats {
        let core = self.core.borrow();
        let extents = |count: u32| u64::from(count) * u64::from(EXTENT_BYTES);
        Stats {
            store: StoreStats {
                capacity_bytes: extents(core.space().usable()),
                free_bytes: extents(core.space().available()),
                chunks: core.chunk_count() as u64,
                queued: self.device.queued(),
            },
            open_chunks: core.open_count() as u64,
            reserved_extents: core.space().pool_len() as u64,
            append_bytes: core.append_bytes(),
            device_errors: self.counters.device_errors.get(),
            journal_commits: self.counters.commits.get(),
            checkpoints: self.counters.checkpoints.get(),
        }
    }

    /// Registers who waits.
    fn wait(&self) -> (OpId, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        (self.waiters.borrow_mut().insert(sender), receiver)
    }

    fn forget(&self, op: OpId) {
        let _ = self.waiters.borrow_mut().try_remove(op);
    }

    /// Done once everything asked so far is in the journal.
    async fn barrier(self: &Rc<Self>) -> Result<(), Error> {
        let (op, receiver) = self.wait();
        self.core.borrow_mut().barrier(op);
        self.pump();
        answer_of(receiver).await.map(|_| ())
    }

    /// Carries out what the core wants.
    fn pump(self: &Rc<Self>) {
        loop {
            let Some(effect) = self.core.borrow_mut().next_effect() else { break };
            if self.is_stopped.get() {
                continue;
            }
            match effect {
                Effect::Write(write) => self.write_unit(write),
                Effect::Record(record) => {
                    self.journal.borrow_mut().push(record);
                    self.bells.journal.notify_one();
                }
                Effect::Answer(op, answer) => {
                    let waiter = self.waiters.borrow_mut().try_remove(op);
                    if let Some(waiter) = waiter {
                        let _ = waiter.send(answer);
                    }
                }
                Effect::Compare { op, plan, unit, length } => self.compare(op, plan, unit, length),
                Effect::Refill => self.bells.refill.notify_one(),
                Effect::Trim => self.bells.trim.notify_one(),
            }
        }
        if self.is_closing.get() {
            self.bells.settled.notify_waiters();
        }
    }

    fn write_unit(self: &Rc<Self>, write: UnitWrite) {
        let begun = self.clock.now();
        let bytes = write.pieces.iter().map(|(_, data)| data.len()).sum::<usize>();
        let durability = if Rule::DurableFirst.is_kept() { Durability::Durable } else { Durability::Cached };
        let writes: Vec<_> = write
            .pieces
            .into_iter()
            .map(|(at, data)| self.write(self.superblock.layout.extents_offset + at, data, durability, write.qos))
            .collect();
        let (chunk, serial, start, ticket, qos) = (write.chunk, write.serial, write.start, write.ticket, write.qos);
        let shell = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let mut whole = true;
            for write in writes {
                whole &= shell.note(Op::Append, write.await).is_ok();
            }
            if shell.is_stopped.get() {
                return;
            }
            shell.observe(Op::Append, Stage::Device, qos, bytes, begun);
            shell.core.borrow_mut().written(chunk, serial, start, ticket, whole);
            shell.pump();
        });
    }

    /// Answers whether the unit at its place is this one.
    fn compare(self: &Rc<Self>, op: OpId, plan: ReadPlan, unit: Bytes, length: u32) {
        let shell = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let answer = match shell.read_plan(plan, QosClass::Foreground).await {
                Ok(bytes) if bytes == unit => Ok(Response::Append(length)),
                Ok(_) => Err(Error::Conflict),
                Err(error) => Err(Error::Io(error.to_string())),
            };
            let waiter = shell.waiters.borrow_mut().try_remove(op);
            if let Some(waiter) = waiter {
                let _ = waiter.send(answer);
            }
        });
    }

    /// Reads what was planned. The extents are held until it is done or dropped.
    fn read_plan(self: &Rc<Self>, plan: ReadPlan, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let held = Held { shell: Rc::clone(self), plan };
        let origin = self.superblock.layout.extents_offset;
        let reads: Vec<_> = held.plan.pieces.iter().map(|piece| self.read(origin + piece.at, piece.bytes, qos)).collect();
        Box::pin(async move {
            let range = held.plan.skip as usize..(held.plan.skip + held.plan.length) as usize;
            if range.is_empty() {
                return Ok(Bytes::new());
            }
            let mut reads = reads.into_iter();
            let Some(first) = reads.next() else { return Err(io::Error::other("nothing to read")) };
            let first = held.shell.note(Op::Read, first.await)?;
            if reads.len() == 0 {
                return slice(&first, range);
            }
            let mut all = BytesMut::with_capacity(range.end);
            all.extend_from_slice(&first);
            for read in reads {
                all.extend_from_slice(&held.shell.note(Op::Read, read.await)?);
            }
            slice(&all.freeze(), range)
        })
    }

    fn read(&self, offset: u64, length: u32, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        if self.is_stopped.get() { stopped() } else { self.device.read(offset, length, qos) }
    }

    fn write(&self, offset: u64, data: Bytes, durability: Durability, qos: QosClass) -> LocalBoxFuture<'static, io::Result<()>> {
        if self.is_stopped.get() { stopped() } else { self.device.write(Write { offset, data, durability, qos }) }
    }

    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        if self.is_stopped.get() { stopped() } else { self.device.flush() }
    }

    /// Counts an error of the device.
    fn note<T>(&self, op: Op, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && !self.is_stopped.get()
        {
            Counters::add(&self.counters.device_errors);
            self.options.observer.device_error(op);
            tracing::warn!(device = %self.superblock.device, op = op.as_str(), %error, "device failed a request");
        }
        result
    }

    fn observe(&self, op: Op, stage: Stage, qos: QosClass, bytes: usize, begun: Duration) {
        let elapsed = self.clock.now().saturating_sub(begun);
        self.options.observer.observe(op, stage, qos, u32::try_from(bytes).unwrap_or(u32::MAX), elapsed);
    }
}

/// Keeps extents from being reused while they are read.
struct Held {
    shell: Rc<Shell>,
    plan: ReadPlan,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A reader that is dropped while the core is borrowed can't happen: no borrow is held where futures are dropped.
        self.shell.core.borrow_mut().finish_ticket(self.plan.ticket);
        self.shell.pump();
    }
}

fn slice(bytes: &Bytes, range: std::ops::Range<usize>) -> io::Result<Bytes> {
    if bytes.len() < range.end { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.slice(range)) }
}

fn stopped<T: 'static>() -> LocalBoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(Err(io::Error::other("the store is stopped"))))
}

/// The answer, or that the store was stopped before there was one.
async fn answer_of(receiver: oneshot::Receiver<Answer>) -> Answer {
    receiver.await.unwrap_or_else(|_| Err(Error::Io("the store was stopped".into())))
}
