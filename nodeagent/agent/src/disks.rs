//! The disks of one core, from a path to a store that is open.

use crate::meters::DeviceMeters;
use crate::side::SideConfig;
use api_types::chunk::ChunkStore;
use api_types::{Clock, Rng};
use nodeagent_device::{Device, FaultPlan, Faulty, FileDevice, file};
use nodeagent_engine::{Engine, OpenError, OpenOptions};
use nodeagent_reactor::BufferPool;
use nodeagent_reactor::disk::{self, Executor};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Errors after which a device counts as failed and the masters make its copies again elsewhere. A few may be single
/// bad blocks, which the reader's other copies mend.
const ERRORS_MAX: u64 = 16;

/// How long a device that is in use is waited for, and how often it is tried.
const IN_USE_LIMIT: Duration = Duration::from_secs(10);
const IN_USE_WAIT: Duration = Duration::from_millis(5);

/// A disk can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The kernel gives no way to do I/O.
    #[error("could not start disk I/O: {0}")]
    Executor(#[source] std::io::Error),
    /// It doesn't open.
    #[error("device: {0}")]
    Device(#[from] file::OpenError),
    /// It holds no store of this cluster.
    #[error("device {}: {source}", .path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: OpenError,
    },
}

/// One disk with its store.
pub(crate) struct Disk {
    pub(crate) engine: Engine,
    pub(crate) media: &'static str,
    pub(crate) block_bytes: u32,
    pub(crate) meters: Rc<DeviceMeters>,
    plan: Option<(FaultPlan, Rc<dyn Clock>)>,
}

impl Disk {
    /// It works, as far as its store has seen.
    pub(crate) fn is_healthy(&self) -> bool {
        self.engine.stats().device_errors < ERRORS_MAX
    }

    /// Lets every request take longer for a while. `false`: faults aren't allowed.
    pub(crate) fn slow(&self, extra: Duration, duration: Duration) -> bool {
        match &self.plan {
            None => false,
            Some((plan, clock)) => {
                plan.slow(extra, clock.now() + duration);
                true
            }
        }
    }
}

/// Opens a device. The kernel lets go of what an agent that was killed had under way only after that agent is gone, so
/// for a moment its device seems to be in use still.
async fn open_freed(
    path: &Path,
    executor: &Executor,
    pool: &BufferPool,
    clock: &dyn Clock,
    meters: &Rc<DeviceMeters>,
) -> Result<FileDevice, DiskError> {
    let started = clock.now();
    loop {
        let observer = Rc::clone(meters) as Rc<dyn nodeagent_device::Observer>;
        let options = file::Options { observer: Some(observer), ..file::Options::default() };
        match FileDevice::open(path, executor.clone(), pool.clone(), options) {
            Err(file::OpenError::InUse { .. }) if clock.now() < started + IN_USE_LIMIT => clock.sleep(IN_USE_WAIT).await,
            result => return Ok(result?),
        }
    }
}

/// Opens every disk of a core.
pub(crate) async fn open_all(
    config: &SideConfig,
    pool: &BufferPool,
    clock: &Rc<dyn Clock>,
    rng: &Rc<dyn Rng>,
) -> Result<Vec<Disk>, DiskError> {
    let mut disks = Vec::with_capacity(config.devices.len());
    if config.devices.is_empty() {
        return Ok(disks);
    }
    let executor = Executor::start(disk::Options::default()).map_err(DiskError::Executor)?;
    tracing::info!(core = config.index, backend = executor.backend().as_str(), "disk I/O");
    for path in &config.devices {
        let meters = Rc::new(DeviceMeters::new());
        let device = open_freed(path, &executor, pool, &**clock, &meters).await?;
        let info = device.info().clone();
        tracing::info!(device = info.name, backend = info.backend, volatile_cache = info.volatile_cache, "opened a device");
        let (device, plan): (Rc<dyn Device>, _) = if config.allow_faults {
            let plan = FaultPlan::new();
            let faulty = Faulty::door(device, Rc::clone(clock), Rc::clone(rng), plan.clone());
            (Rc::new(faulty), Some((plan, Rc::clone(clock))))
        } else {
            (Rc::new(device), None)
        };
        let observer = Rc::clone(&meters) as Rc<dyn nodeagent_engine::Observer>;
        let options = OpenOptions { observer, ..OpenOptions::new(config.cluster) };
        let engine = Engine::open(device, Rc::clone(clock), options)
            .await
            .map_err(|source| DiskError::Store { path: path.clone(), source })?;
        tracing::info!(device = %engine.superblock().name(), report = ?engine.mount_report(), "mounted a store");
        meters.name(engine.device());
        disks.push(Disk { engine, meters, media: info.media.as_str(), block_bytes: info.block_bytes, plan });
    }
    Ok(disks)
}
