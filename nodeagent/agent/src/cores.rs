//! The data cores: one thread each, with everything that belongs to it, and the way for control threads to run
//! something there.

use crate::side::{Side, SideConfig, StartError};
use api_types::VolumeId;
use std::future::Future;
use std::rc::Rc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// Jobs that may wait for one core.
const JOBS_MAX: usize = 256;

type Job = Box<dyn FnOnce(Rc<Side>) + Send>;

/// All data cores. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cores {
    senders: Vec<mpsc::Sender<Job>>,
}

/// The threads behind [`Cores`].
pub(crate) struct Threads {
    threads: Vec<JoinHandle<()>>,
}

impl Cores {
    /// Starts one thread for each configuration, and waits until all of them serve.
    pub(crate) async fn start(configs: Vec<SideConfig>) -> Result<(Cores, Threads), StartError> {
        let (mut senders, mut threads, mut ready) = (Vec::new(), Vec::new(), Vec::new());
        for config in configs {
            let (jobs, intake) = mpsc::channel(JOBS_MAX);
            let (tell, told) = oneshot::channel();
            let name = format!("core-{}", config.index);
            let thread =
                std::thread::Builder::new().name(name).spawn(move || run(config, intake, tell)).map_err(StartError::Thread)?;
            senders.push(jobs);
            threads.push(thread);
            ready.push(told);
        }
        for told in ready {
            told.await.map_err(|_| StartError::Died)??;
        }
        Ok((Cores { senders }, Threads { threads }))
    }

    /// Runs a job on the core that has (or would have) this volume.
    pub(crate) async fn of_volume<T, F, Fut>(&self, volume: VolumeId, job: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Side>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        // Any rule would do; a volume stays on its core as long as the number of cores does.
        let index = usize::try_from(volume.0 % self.senders.len() as u64).unwrap_or(0);
        self.on(index, job).await
    }

    /// Runs the same job on every core; the answers in the order of the cores.
    pub(crate) async fn each<T, F, Fut>(&self, job: F) -> Result<Vec<T>, Status>
    where
        T: Send + 'static,
        F: Fn(Rc<Side>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let mut answers = Vec::with_capacity(self.senders.len());
        for index in 0..self.senders.len() {
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
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |side| {
            let future = job(side);
            tokio::task::spawn_local(async move {
                // Whoever asked may have gone; the work is done all the same.
                let _ = tell.send(future.await);
            });
        });
        let stopping = || Status::unavailable("the agent is stopping");
        self.senders[index].send(job).await.map_err(|_| stopping())?;
        told.await.map_err(|_| stopping())
    }
}

impl Threads {
    /// Waits for the threads, which end once every [`Cores`] is dropped.
    pub(crate) fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a data core ended by a panic");
            }
        }
    }
}

fn run(config: SideConfig, mut intake: mpsc::Receiver<Job>, tell: oneshot::Sender<Result<(), StartError>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell.send(Err(StartError::Thread(error)));
            return;
        }
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let side = match Side::start(config).await {
            Ok(side) => side,
            Err(error) => {
                let _ = tell.send(Err(error));
                return;
            }
        };
        let _ = tell.send(Ok(()));
        while let Some(job) = intake.recv().await {
            job(Rc::clone(&side));
        }
        side.stop().await;
    });
}
