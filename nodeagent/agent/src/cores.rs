//! The data cores: one thread each, with everything that belongs to it, and the way for control threads to run
//! something there.

use crate::meters::CoreMeters;
use crate::side::{Side, SideConfig, StartError};
use api_types::VolumeId;
use nodeagent_reactor::core::{self, Core, Handle};
use std::future::Future;
use std::rc::Rc;
use tonic::Status;

/// Threads of each core for what blocks: processes that attach and detach are waited for there, which may take long.
const BACKGROUND_THREADS: usize = 16;

/// All data cores. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cores {
    handles: Vec<Handle<Side>>,
}

/// The threads behind [`Cores`].
pub(crate) struct Threads {
    cores: Vec<Core<Side>>,
}

impl Cores {
    /// Starts one thread for each configuration, and waits until all of them serve.
    pub(crate) async fn start(configs: Vec<SideConfig>) -> Result<(Cores, Threads), StartError> {
        let starting = configs.into_iter().map(|config| {
            let name = format!("core-{}", config.index);
            let options = core::Options { name, background_threads: BACKGROUND_THREADS, ..core::Options::default() };
            Core::start(options, move || Side::start(config))
        });
        let mut cores = Vec::new();
        for started in futures::future::join_all(starting).await {
            cores.push(started.map_err(|error| match error {
                core::StartError::Thread(source) => StartError::Thread(source),
                core::StartError::State(source) => source,
                core::StartError::Died => StartError::Died,
            })?);
        }
        Ok((Cores { handles: cores.iter().map(Core::handle).collect() }, Threads { cores }))
    }

    /// Runs a job on the core that has (or would have) this volume.
    pub(crate) async fn of_volume<T, F, Fut>(&self, volume: VolumeId, job: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Side>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        // Any rule would do; a volume stays on its core as long as the number of cores does.
        let index = usize::try_from(volume.0 % self.handles.len() as u64).unwrap_or(0);
        self.on(index, job).await
    }

    /// Runs the same job on every core; the answers in the order of the cores.
    pub(crate) async fn each<T, F, Fut>(&self, job: F) -> Result<Vec<T>, Status>
    where
        T: Send + 'static,
        F: Fn(Rc<Side>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let mut answers = Vec::with_capacity(self.handles.len());
        for index in 0..self.handles.len() {
            answers.push(self.on(index, job.clone()).await?);
        }
        Ok(answers)
    }

    /// Runs a job on one core.
    pub(crate) async fn on<T, F, Fut>(&self, index: usize, job: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Side>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.handles[index].run("job", job).await.map_err(|_| Status::unavailable("the agent is stopping"))
    }

    /// Takes over how the cores do.
    pub(crate) fn refresh(&self, meters: &CoreMeters) {
        meters.refresh(self.handles.iter().map(Handle::stats));
    }
}

impl Threads {
    /// Brings volumes and stores to rest, and waits for the threads. Blocks.
    pub(crate) fn join(self) {
        for core in self.cores {
            if !core.stop(|side| async move { side.stop().await }) {
                tracing::error!("a data core ended by a panic");
            }
        }
    }
}
