//! The volumes that one core serves: opened, given to the kernel, resized, taken away, and taken up again after a crash.

use crate::address_book::AddressBook;
use crate::attachments::{Attachments, Door, Entry};
use crate::masters::Masters;
use crate::meters::{OperationTimes, Spans, VolumeMeters};
use api_types::clock::timeout;
use api_types::master::{self, MasterClient, VolumeRecord};
use api_types::{Clock, Epoch, NodeName, Rng, VolumeId};
use client_stream::Client;
use client_volume::{BlockDevice, OpenError, PoolSpace, Volume};
use nodeagent_frontend::{Attachment, FrontEnd, FrontEndError, Spec};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// The longest an attach or detach may take, whatever hangs.
const OPERATION_LIMIT: Duration = Duration::from_secs(90);
/// How long an operation waits for another one on the same volume to end, before its caller is told to try again. A
/// restarted agent takes its volumes up by itself, and whoever attaches one just then is served instead of refused.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// Waits between attempts to take a volume up again after a restart.
const ADOPT_WAIT_MIN: Duration = Duration::from_millis(20);
const ADOPT_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a volume wasn't attached, detached or resized. Each kind is something else for the caller to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another operation on this volume is under way: try again.
    #[error("another operation on this volume is under way")]
    Busy,
    /// There is no such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// Another node has it.
    #[error("the volume is attached to {0}: detach it there, or take it over")]
    Elsewhere(NodeName),
    /// It isn't attached to this node.
    #[error("the volume is not attached here")]
    NotAttached,
    /// It is attached through another door or with another mode.
    #[error("the volume is attached already, but {0}")]
    Otherwise(&'static str),
    /// The masters didn't do it.
    #[error("masters: {0}")]
    Master(#[source] master::Error),
    /// The volume didn't open or close.
    #[error("volume: {0}")]
    Open(#[from] OpenError),
    /// The kernel's side failed.
    #[error("front end: {0}")]
    FrontEnd(#[from] FrontEndError),
    /// The list of attachments couldn't be written.
    #[error("could not remember the attachment: {0}")]
    Remember(#[source] std::io::Error),
    /// It took too long; what was begun is undone, or taken up by the next try.
    #[error("not done after {} s", OPERATION_LIMIT.as_secs())]
    Timeout,
}

impl From<master::Error> for Error {
    fn from(error: master::Error) -> Self {
        Error::Master(error)
    }
}

/// A volume as it is attached here, for callers and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    /// Which.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Kernel device or URI; empty while it isn't served.
    pub device_path: String,
    /// Through which door.
    pub door: Door,
    /// Size that the kernel sees.
    pub size_bytes: u64,
    /// The epoch it is served with.
    pub epoch: Epoch,
    /// Writes are refused.
    pub read_only: bool,
    /// Why it doesn't serve; `None` while it does.
    pub trouble: Option<String>,
}

/// What a host of volumes stands on.
pub(crate) struct Ground {
    pub(crate) node: NodeName,
    pub(crate) client: Client,
    pub(crate) masters: Rc<Masters>,
    pub(crate) book: Rc<AddressBook>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) rng: Rc<dyn Rng>,
    pub(crate) doors: BTreeMap<Door, Rc<dyn FrontEnd>>,
    pub(crate) config: client_volume::Config,
    pub(crate) times: Rc<OperationTimes>,
    pub(crate) spans: Rc<Spans>,
}

struct Serving {
    volume: Rc<Volume>,
    attachment: Rc<dyn Attachment>,
    record: VolumeRecord,
    entry: Entry,
    meters: VolumeMeters,
}

/// See the module.
pub(crate) struct Host {
    ground: Ground,
    serving: RefCell<BTreeMap<VolumeId, Rc<Serving>>>,
    /// Volumes that were attached before a restart and aren't served yet, with the reason.
    waiting: RefCell<BTreeMap<VolumeId, (Entry, String)>>,
    attachments: RefCell<Attachments>,
    busy: RefCell<BTreeSet<VolumeId>>,
    /// Told whenever a volume is taken out of `busy`.
    freed: Notify,
}

/// Holds a volume's place in `busy`.
struct Turn<'a> {
    host: &'a Host,
    volume: VolumeId,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.host.busy.borrow_mut().remove(&self.volume);
        self.host.freed.notify_waiters();
    }
}

impl Host {
    pub(crate) fn new(ground: Ground, attachments: Attachments) -> Rc<Self> {
        Rc::new(Host {
            ground,
            serving: RefCell::default(),
            waiting: RefCell::default(),
            attachments: RefCell::new(attachments),
            busy: RefCell::default(),
            freed: Notify::new(),
        })
    }

    async fn turn(&self, volume: VolumeId) -> Result<Turn<'_>, Error> {
        let turn = async {
            loop {
                // Registered before the look: what ends in between is not missed.
                let freed = self.freed.notified();
                if self.busy.borrow_mut().insert(volume) {
                    return Turn { host: self, volume };
                }
                freed.await;
            }
        };
        timeout(&*self.ground.clock, TURN_LIMIT, turn).await.map_err(|_| Error::Busy)
    }

    /// Opens a volume and gives it to the kernel.
    pub(crate) async fn attach(&self, volume: VolumeId, entry: Entry, take_over: bool) -> Result<Attached, Error> {
        let _turn = self.turn(volume).await?;
        if let Some(serving) = self.serving(volume) {
            if serving.volume.is_fenced() {
                // Somebody took it over and it came back to us: the old session must go first.
                self.drop_fenced(volume, &serving).await?;
            } else if serving.entry.door != entry.door {
                return Err(Error::Otherwise("through another front end"));
            } else if serving.entry.read_only != entry.read_only {
                return Err(Error::Otherwise("with another access mode"));
            } else {
                return Ok(describe(volume, &serving));
            }
        }
        let record = self.ground.masters.volume(volume).await.map_err(|error| not_found(volume, error))?;
        match record.attached {
            Some(node) if node != self.ground.node && !take_over => return Err(Error::Elsewhere(node)),
            _ => {}
        }
        let clock = Rc::clone(&self.ground.clock);
        let began = clock.now();
        let attached = timeout(&*clock, OPERATION_LIMIT, self.open_and_export(volume, entry)).await;
        self.ground.times.attached.record(clock.now().saturating_sub(began));
        attached.map_err(|_| Error::Timeout)?
    }

    async fn open_and_export(&self, volume: VolumeId, entry: Entry) -> Result<Attached, Error> {
        let ground = &self.ground;
        let door = ground.doors.get(&entry.door).ok_or(Error::Otherwise("this agent has no such front end"))?;
        door.probe()?;
        // Remembered first: whatever the kernel holds from here on is found again after a crash.
        self.attachments.borrow_mut().insert(volume, entry.clone()).map_err(Error::Remember)?;
        ground.book.load().await;
        let lease = ground.masters.open_volume(volume, ground.node.clone()).await.map_err(|error| not_found(volume, error))?;
        let record = lease.volume.clone();
        tracing::info!(%volume, epoch = %record.epoch, "opening");
        let began = ground.clock.now();
        let opened = Volume::open(
            ground.client.clone(),
            Rc::clone(&ground.masters) as Rc<dyn MasterClient>,
            Rc::clone(&ground.clock),
            Rc::clone(&ground.rng),
            lease,
            ground.config.clone(),
        )
        .await?;
        ground.times.opened.record(ground.clock.now().saturating_sub(began));
        let spec = Spec { volume, name: record.name.clone(), read_only: entry.read_only };
        let attachment = match door.export(Rc::clone(&opened) as Rc<dyn BlockDevice>, spec).await {
            Ok(attachment) => attachment,
            Err(error) => {
                if let Err(close) = opened.close().await {
                    tracing::warn!(%volume, %close, "a volume that could not be exported did not close cleanly");
                }
                return Err(error.into());
            }
        };
        let meters = VolumeMeters::new(&record.name);
        opened.set_trace(Some(VolumeMeters::hook(&ground.times, &ground.spans, ground.spans.hub().sink(volume))));
        let serving = Rc::new(Serving { volume: opened, attachment, record, entry, meters });
        let attached = describe(volume, &serving);
        tracing::info!(%volume, device = attached.device_path, "attached");
        self.waiting.borrow_mut().remove(&volume);
        self.serving.borrow_mut().insert(volume, serving);
        Ok(attached)
    }

    /// Takes a volume away from the kernel and closes it. One that isn't here is no error.
    pub(crate) async fn detach(&self, volume: VolumeId, force: bool) -> Result<(), Error> {
        let _turn = self.turn(volume).await?;
        let clock = Rc::clone(&self.ground.clock);
        timeout(&*clock, OPERATION_LIMIT, self.detach_now(volume, force)).await.map_err(|_| Error::Timeout)?
    }

    async fn detach_now(&self, volume: VolumeId, force: bool) -> Result<(), Error> {
        if let Some(serving) = self.serving(volume) {
            serving.attachment.detach(force || serving.volume.is_fenced()).await?;
            self.serving.borrow_mut().remove(&volume);
            if !serving.volume.is_fenced()
                && let Err(error) = serving.volume.close().await
            {
                // Everything acknowledged is durable; the next open replays. The caller's detach has succeeded.
                tracing::warn!(%volume, %error, "detached, but the volume did not close cleanly");
            }
        }
        self.waiting.borrow_mut().remove(&volume);
        self.attachments.borrow_mut().remove(volume).map_err(Error::Remember)?;
        tracing::info!(%volume, "detached");
        Ok(())
    }

    async fn drop_fenced(&self, volume: VolumeId, serving: &Serving) -> Result<(), Error> {
        serving.attachment.detach(true).await?;
        self.serving.borrow_mut().remove(&volume);
        Ok(())
    }

    /// Takes the size that the masters have over to the volume and the kernel. Answers it.
    pub(crate) async fn resize(&self, volume: VolumeId) -> Result<u64, Error> {
        let _turn = self.turn(volume).await?;
        let serving = self.serving(volume).ok_or(Error::NotAttached)?;
        let record = self.ground.masters.volume(volume).await.map_err(|error| not_found(volume, error))?;
        if record.size_bytes > serving.volume.size_bytes() {
            serving.volume.set_size(record.size_bytes).map_err(|error| OpenError::Invalid(error.to_string()))?;
        }
        serving.volume.set_qos(record.qos);
        Ok(serving.attachment.resize().await?)
    }

    /// What is attached, served or waiting.
    pub(crate) fn list(&self) -> Vec<Attached> {
        let mut all: Vec<Attached> = self.serving.borrow().iter().map(|(volume, serving)| describe(*volume, serving)).collect();
        all.extend(self.waiting.borrow().iter().map(|(volume, (entry, trouble))| Attached {
            volume: *volume,
            name: String::new(),
            device_path: String::new(),
            door: entry.door,
            size_bytes: 0,
            epoch: Epoch::default(),
            read_only: entry.read_only,
            trouble: Some(trouble.clone()),
        }));
        all.sort_by_key(|attached| attached.volume);
        all
    }

    /// The volume is served here.
    pub(crate) fn serves(&self, volume: VolumeId) -> bool {
        self.serving.borrow().contains_key(&volume)
    }

    /// Takes over what the volumes counted.
    pub(crate) fn refresh_meters(&self) {
        for serving in self.serving.borrow().values() {
            serving.meters.refresh(serving.volume.size_bytes(), &serving.volume.stats());
        }
    }

    /// What a heartbeat says about volumes.
    pub(crate) fn epochs(&self) -> Vec<(VolumeId, Epoch)> {
        let serving = self.serving.borrow();
        serving.iter().filter(|(_, it)| !it.volume.is_fenced()).map(|(id, it)| (*id, it.record.epoch)).collect()
    }

    /// Stops serving every volume of which the masters know a newer epoch.
    pub(crate) fn obey(&self, epochs: &[(VolumeId, Epoch)]) {
        for (volume, newest) in epochs {
            if let Some(serving) = self.serving(*volume)
                && serving.record.epoch < *newest
                && !serving.volume.is_fenced()
            {
                tracing::warn!(%volume, own = %serving.record.epoch, newest = %newest, "another writer took over: fenced");
                serving.volume.fence();
            }
        }
    }

    /// Tells every volume how full its pool is.
    pub(crate) fn set_pool_space(&self, pools: &[master::PoolRecord]) {
        for serving in self.serving.borrow().values() {
            if let Some(pool) = pools.iter().find(|pool| pool.name == serving.record.pool) {
                let space = PoolSpace { available_bytes: pool.available_bytes, capacity_bytes: pool.capacity_bytes };
                serving.volume.set_pool_space(space);
            }
        }
    }

    /// Takes up, one task each, what was attached before a restart. A volume that another node has by now is left alone.
    pub(crate) fn adopt(self: &Rc<Self>) {
        let entries = self.attachments.borrow().entries().clone();
        for (volume, entry) in entries {
            self.waiting.borrow_mut().insert(volume, (entry.clone(), "being taken up after a restart".to_owned()));
            let host = Rc::clone(self);
            tokio::task::spawn_local(async move { host.adopt_one(volume, entry).await });
        }
    }

    async fn adopt_one(&self, volume: VolumeId, entry: Entry) {
        let mut wait = ADOPT_WAIT_MIN;
        // Bounded by an answer of the masters, a detach, or the end of the agent: a mounted filesystem waits for it.
        while self.attachments.borrow().entries().contains_key(&volume) {
            let error = match self.attach(volume, entry.clone(), false).await {
                Ok(_) => return,
                Err(error) => error,
            };
            let given_up = matches!(error, Error::Elsewhere(_) | Error::NotFound(_));
            tracing::warn!(%volume, %error, given_up, "could not take a volume up again");
            self.waiting.borrow_mut().insert(volume, (entry.clone(), error.to_string()));
            if given_up {
                return;
            }
            self.ground.clock.sleep(wait).await;
            wait = (wait * 2).min(ADOPT_WAIT_MAX);
        }
    }

    /// Stops serving for a restart: the kernel's requests wait for the next agent, and the volumes are closed so that it
    /// has nothing to replay.
    pub(crate) async fn release(&self) {
        let all: Vec<_> = std::mem::take(&mut *self.serving.borrow_mut()).into_iter().collect();
        for (volume, serving) in all {
            if let Err(error) = serving.attachment.release().await {
                tracing::warn!(%volume, %error, "could not release the kernel device");
            }
            // The masters keep the volume as attached to this node: only its log is brought to rest here.
            if let Err(error) = serving.volume.close().await {
                tracing::warn!(%volume, %error, "did not close cleanly: the next open replays");
            }
        }
    }

    fn serving(&self, volume: VolumeId) -> Option<Rc<Serving>> {
        self.serving.borrow().get(&volume).cloned()
    }
}

fn describe(volume: VolumeId, serving: &Serving) -> Attached {
    let fenced = serving.volume.is_fenced().then(|| "another writer took over".to_owned());
    Attached {
        volume,
        name: serving.record.name.clone(),
        device_path: serving.attachment.device_path(),
        door: serving.entry.door,
        size_bytes: serving.volume.size_bytes(),
        epoch: serving.record.epoch,
        read_only: serving.entry.read_only,
        trouble: fenced.or_else(|| serving.attachment.trouble()),
    }
}

fn not_found(volume: VolumeId, error: master::Error) -> Error {
    match error {
        master::Error::NotFound { .. } => Error::NotFound(volume),
        other => Error::Master(other),
    }
}
