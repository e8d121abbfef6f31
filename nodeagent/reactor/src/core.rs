//! A data thread: one OS thread with one current-thread runtime, and what belongs to it.
//!
//! Other threads reach it only by jobs through a bounded inbox. A job is given the core's own state, which never leaves
//! the thread. Every task started by [`spawn_local`] is timed: one that holds the thread for longer than the quantum is
//! counted with its name, and one that doesn't come back at all is noticed by a watchdog that looks once a second. Heavy
//! computing goes to [`background`] threads. An idle core sleeps in the kernel; spinning before that is a choice.

mod background;
#[cfg(test)]
mod tests;
mod watch;

use background::Background;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use watch::{Timed, Watch};

pub use background::{BackgroundError, background};
pub use watch::{Overrun, Stats};

/// How a core is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The thread's name.
    pub name: String,
    /// Stay on this CPU.
    pub cpu: Option<usize>,
    /// Jobs that may wait.
    pub inbox: usize,
    /// Look for work this long after the last before sleeping; zero: sleep at once.
    pub spin: Duration,
    /// A task that holds the thread for longer counts as an overrun.
    pub quantum: Duration,
    /// Threads for [`background`] work.
    pub background_threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            name: "core".to_owned(),
            cpu: None,
            inbox: 256,
            spin: Duration::ZERO,
            quantum: Duration::from_millis(5),
            background_threads: 2,
        }
    }
}

/// A core didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// The system gave no thread, runtime or CPU.
    #[error("could not start a core's thread: {0}")]
    Thread(#[from] io::Error),
    /// Its state couldn't be made.
    #[error(transparent)]
    State(E),
    /// The thread ended before it was ready.
    #[error("a core ended while it was starting")]
    Died,
}

/// The core is stopping, or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the core has stopped")]
pub struct Stopped;

/// A job wasn't taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySpawnError {
    /// Its inbox is full.
    #[error("the core's inbox is full")]
    Full,
    /// See [`Stopped`].
    #[error("the core has stopped")]
    Stopped,
}

enum Job<S> {
    Run(Box<dyn FnOnce(Rc<S>) + Send>),
    Last(Box<dyn FnOnce(Rc<S>) -> futures::future::LocalBoxFuture<'static, ()> + Send>),
}

/// The way into a core from other threads. Cheap to clone.
pub struct Handle<S> {
    jobs: mpsc::Sender<Job<S>>,
    watch: Arc<Watch>,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle { jobs: self.jobs.clone(), watch: Arc::clone(&self.watch) }
    }
}

impl<S: 'static> Handle<S> {
    /// Runs a job on the core and waits for what it gives; waits first while the inbox is full. Dropping the future
    /// doesn't stop a job that was taken in.
    pub async fn run<T, F, Fut>(&self, name: &'static str, job: F) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: FnOnce(Rc<S>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (tell, told) = oneshot::channel();
        let job = Job::Run(Box::new(move |state| {
            let future = job(state);
            spawn_local(name, async move {
                // Whoever asked may have gone; the work is done all the same.
                let _gone = tell.send(future.await);
            });
        }));
        self.jobs.send(job).await.map_err(|_| Stopped)?;
        told.await.map_err(|_| Stopped)
    }

    /// Starts a job on the core and doesn't wait.
    pub fn try_spawn<F, Fut>(&self, name: &'static str, job: F) -> Result<(), TrySpawnError>
    where
        F: FnOnce(Rc<S>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let job = Job::Run(Box::new(move |state| {
            spawn_local(name, job(state));
        }));
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => TrySpawnError::Full,
            mpsc::error::TrySendError::Closed(_) => TrySpawnError::Stopped,
        })
    }

    /// How the core does.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.watch.stats()
    }
}

/// A running core. Dropping it lets it run until the last [`Handle`] is gone.
pub struct Core<S> {
    handle: Handle<S>,
    thread: JoinHandle<()>,
}

impl<S: 'static> Core<S> {
    /// Starts a thread, makes its state there with `init`, and waits until that is done.
    pub async fn start<E, F, Fut>(options: Options, init: F) -> Result<Self, StartError<E>>
    where
        E: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<S, E>> + 'static,
    {
        let (jobs, inbox) = mpsc::channel(options.inbox.max(1));
        let (tell, told) = oneshot::channel();
        let watch = watch::register(options.quantum);
        let handle = Handle { jobs, watch: Arc::clone(&watch) };
        let thread = Builder::new().name(options.name.clone()).spawn(move || main(&options, watch, init, inbox, tell))?;
        told.await.map_err(|_| StartError::Died)??;
        Ok(Core { handle, thread })
    }

    /// The way in.
    #[must_use]
    pub fn handle(&self) -> Handle<S> {
        self.handle.clone()
    }

    /// Runs `last` after all jobs that were taken in before, then ends the thread with every task on it, and waits for
    /// that. `false`: it ended by a panic. Blocks; call it from a control thread.
    pub fn stop<F, Fut>(self, last: F) -> bool
    where
        F: FnOnce(Rc<S>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let job = Job::Last(Box::new(|state| Box::pin(last(state))));
        // A full inbox is being emptied; waited for on a runtime of its own kind: none is needed.
        let _ended_already = futures::executor::block_on(self.handle.jobs.send(job));
        drop(self.handle);
        self.thread.join().is_ok()
    }
}

fn main<S, E, F, Fut>(
    options: &Options,
    watch: Arc<Watch>,
    init: F,
    inbox: mpsc::Receiver<Job<S>>,
    tell: oneshot::Sender<Result<(), StartError<E>>>,
) where
    S: 'static,
    E: 'static,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<S, E>> + 'static,
{
    let runtime = pin(options.cpu).and_then(|()| {
        let threads = options.background_threads.max(1);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(threads)
            .thread_name(format!("{}-bg", options.name))
            .build()
    });
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            drop(tell.send(Err(StartError::Thread(error))));
            return;
        }
    };
    let here = Rc::new(Here { watch, background: Background::new() });
    HERE.with(|slot| *slot.borrow_mut() = Some(Rc::clone(&here)));
    let tasks = LocalSet::new();
    let spin = options.spin;
    tasks.block_on(&runtime, async move {
        if !spin.is_zero() {
            tokio::task::spawn_local(here.watch.clone().spin(spin));
        }
        match init().await {
            Ok(state) => {
                if tell.send(Ok(())).is_ok() {
                    serve(Rc::new(state), inbox).await;
                }
            }
            Err(error) => drop(tell.send(Err(StartError::State(error)))),
        }
    });
    // Tasks go before the runtime that they live on.
    drop(tasks);
    HERE.with(|slot| *slot.borrow_mut() = None);
    runtime.shutdown_timeout(Duration::from_secs(5));
}

async fn serve<S: 'static>(state: Rc<S>, mut inbox: mpsc::Receiver<Job<S>>) {
    while let Some(job) = inbox.recv().await {
        match job {
            Job::Run(run) => run(Rc::clone(&state)),
            Job::Last(last) => {
                inbox.close();
                last(state).await;
                return;
            }
        }
    }
}

fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cpu {cpu} does not exist")));
    }
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// What tasks of this thread find.
struct Here {
    watch: Arc<Watch>,
    background: Background,
}

thread_local! {
    static HERE: RefCell<Option<Rc<Here>>> = const { RefCell::new(None) };
}

fn here() -> Option<Rc<Here>> {
    HERE.with(|slot| slot.borrow().clone())
}

/// Starts a task on this thread's `LocalSet`, timed if the thread is a core's.
pub fn spawn_local<F: Future + 'static>(name: &'static str, future: F) -> tokio::task::JoinHandle<F::Output>
where
    F::Output: 'static,
{
    match here() {
        Some(here) => tokio::task::spawn_local(Timed::new(name, future, Arc::clone(&here.watch))),
        None => tokio::task::spawn_local(future),
    }
}
