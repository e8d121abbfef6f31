//! Who holds a core's thread, and for how long.

use crate::clock::RealClock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;

/// Task names remembered with their overruns.
const NAMES_MAX: usize = 64;
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_secs(1);

/// Polls of one task's name that were longer than the quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrun {
    /// How many.
    pub count: u64,
    /// The longest.
    pub longest: Duration,
}

/// How a core does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Polls of tasks.
    pub polls: u64,
    /// Overruns by the name of the task.
    pub overruns: BTreeMap<&'static str, Overrun>,
    /// The task that holds the thread since more than a second, as the watchdog saw it, and since when.
    pub stuck: Option<(&'static str, Duration)>,
    /// Times the watchdog saw a task stuck.
    pub stalls: u64,
}

pub(super) struct Watch {
    quantum: Duration,
    polls: AtomicU64,
    /// When the poll that is going on began, in nanoseconds of the monotonic clock; zero without one.
    began: AtomicU64,
    names: Mutex<Names>,
    /// The spinner sleeps and is to be woken by the next poll.
    spinner_sleeps: AtomicBool,
    spinner: Notify,
}

#[derive(Default)]
struct Names {
    running: &'static str,
    overruns: BTreeMap<&'static str, Overrun>,
    stuck: Option<(&'static str, Duration)>,
    stalls: u64,
}

impl Watch {
    pub(super) fn stats(&self) -> Stats {
        let names = self.names.lock();
        let polls = self.polls.load(Ordering::Relaxed);
        Stats { polls, overruns: names.overruns.clone(), stuck: names.stuck, stalls: names.stalls }
    }

    fn begin(&self, name: &'static str) -> Duration {
        let now = RealClock::monotonic();
        self.names.lock().running = name;
        self.began.store(nanos(now), Ordering::Relaxed);
        now
    }

    fn end(&self, name: &'static str, began: Duration) {
        self.began.store(0, Ordering::Relaxed);
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.spinner_sleeps.swap(false, Ordering::Relaxed) {
            self.spinner.notify_one();
        }
        let took = RealClock::monotonic() - began;
        if took > self.quantum {
            let mut names = self.names.lock();
            names.stuck = None;
            if names.overruns.len() < NAMES_MAX || names.overruns.contains_key(name) {
                let overrun = names.overruns.entry(name).or_default();
                overrun.count += 1;
                overrun.longest = overrun.longest.max(took);
            }
        }
    }

    /// Called by the watchdog.
    fn look(&self) {
        let began = self.began.load(Ordering::Relaxed);
        if began == 0 {
            return;
        }
        let held = RealClock::monotonic().saturating_sub(Duration::from_nanos(began));
        if held > LOOK {
            let mut names = self.names.lock();
            names.stalls += u64::from(names.stuck.is_none());
            names.stuck = Some((names.running, held));
        }
    }

    /// Keeps the runtime from sleeping for `spin` after the last poll of a timed task.
    pub(super) async fn spin(self: Arc<Self>, spin: Duration) {
        loop {
            self.spinner_sleeps.store(true, Ordering::Relaxed);
            self.spinner.notified().await;
            let mut polls = self.polls.load(Ordering::Relaxed);
            let mut until = RealClock::monotonic() + spin;
            while RealClock::monotonic() < until {
                tokio::task::yield_now().await;
                let now = self.polls.load(Ordering::Relaxed);
                if now != polls {
                    polls = now;
                    until = RealClock::monotonic() + spin;
                }
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// A task that is timed at each poll: two readings of the clock, about 50 ns.
pub(super) struct Timed<F> {
    name: &'static str,
    future: Pin<Box<F>>,
    watch: Arc<Watch>,
}

impl<F> Timed<F> {
    pub(super) fn new(name: &'static str, future: F, watch: Arc<Watch>) -> Self {
        Timed { name, future: Box::pin(future), watch }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Timed { name, future, watch } = &mut *self;
        let _polling = Polling { name, watch, began: watch.begin(name) };
        future.as_mut().poll(context)
    }
}

/// A poll that is going on; also ends by a panic.
struct Polling<'a> {
    name: &'static str,
    watch: &'a Watch,
    began: Duration,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.watch.end(self.name, self.began);
    }
}

/// All cores of the process, looked at by one watchdog thread that ends when there are none.
static CORES: Mutex<Cores> = Mutex::new(Cores { watches: Vec::new(), watched: false });

struct Cores {
    watches: Vec<Weak<Watch>>,
    watched: bool,
}

pub(super) fn register(quantum: Duration) -> Arc<Watch> {
    let watch = Arc::new(Watch {
        quantum,
        polls: AtomicU64::new(0),
        began: AtomicU64::new(0),
        names: Mutex::default(),
        spinner_sleeps: AtomicBool::new(false),
        spinner: Notify::new(),
    });
    let mut cores = CORES.lock();
    cores.watches.push(Arc::downgrade(&watch));
    if !cores.watched {
        // Without a thread for it nobody looks; overruns that end are still counted.
        cores.watched = thread::Builder::new().name("core-watchdog".to_owned()).spawn(watch_over).is_ok();
    }
    watch
}

fn watch_over() {
    loop {
        thread::sleep(LOOK);
        let mut cores = CORES.lock();
        cores.watches.retain(|watch| watch.upgrade().inspect(|watch| watch.look()).is_some());
        if cores.watches.is_empty() {
            cores.watched = false;
            return;
        }
    }
}
