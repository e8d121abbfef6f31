//! A process that can be killed and stopped: its tasks live in a set of their own.

use crate::world::World;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use tokio::task::LocalSet;

/// See the module.
pub(crate) struct Process {
    tasks: RefCell<Option<LocalSet>>,
    stopped: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Process {
    /// A process that runs from now on, as a task of `world`.
    pub(crate) fn start(world: &World) -> Rc<Self> {
        let tasks = LocalSet::new();
        // A set without a task would be finished at once.
        tasks.spawn_local(std::future::pending::<()>());
        let process = Rc::new(Process { tasks: RefCell::new(Some(tasks)), stopped: Cell::new(false), waker: RefCell::new(None) });
        let driven = Rc::clone(&process);
        world.spawn(poll_fn(move |context| {
            *driven.waker.borrow_mut() = Some(context.waker().clone());
            let mut tasks = driven.tasks.borrow_mut();
            match tasks.as_mut() {
                None => Poll::Ready(()),
                Some(_) if driven.stopped.get() => Poll::Pending,
                Some(tasks) => Pin::new(tasks).poll(context),
            }
        }));
        process
    }

    /// Adds a task. One that is dead forgets it at once.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if let Some(tasks) = self.tasks.borrow().as_ref() {
            tasks.spawn_local(task);
        }
        self.wake();
    }

    /// Ends it where it stands.
    pub(crate) fn kill(&self) {
        let tasks = self.tasks.borrow_mut().take();
        drop(tasks);
        self.wake();
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.tasks.borrow().is_some()
    }

    /// Stops it, or lets it go on, as SIGSTOP and SIGCONT do.
    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.set(stopped);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}
