//! What can be connected to.

use super::handshake::Shown;
use crate::adapter::Adapter;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::{Notify, watch};

/// The most clients of one export at a time.
pub(crate) const CLIENTS_MAX: usize = 16;

/// One volume on offer.
pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) adapter: Rc<Adapter>,
    pub(crate) closing: Cell<bool>,
    /// Set once: connections answer what they have read and end.
    pub(crate) stop: watch::Sender<bool>,
    clients: Cell<usize>,
    left: Notify,
}

impl Export {
    pub(crate) fn new(name: String, read_only: bool, adapter: Rc<Adapter>) -> Rc<Self> {
        let stop = watch::Sender::new(false);
        Rc::new(Export { name, read_only, adapter, closing: Cell::new(false), stop, clients: Cell::new(0), left: Notify::new() })
    }

    fn shown(&self) -> Shown {
        Shown {
            name: self.name.clone(),
            size: self.adapter.size(),
            read_only: self.read_only,
            closing: self.closing.get() || self.clients.get() >= CLIENTS_MAX,
        }
    }

    /// Connected clients.
    pub(crate) fn clients(&self) -> usize {
        self.clients.get()
    }

    /// Counts a client until the answer is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> Client {
        self.clients.set(self.clients.get() + 1);
        Client(Rc::clone(self))
    }

    /// Waits until no client is connected.
    pub(crate) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            if self.clients.get() == 0 {
                return;
            }
            left.await;
        }
    }
}

/// One connected client.
pub(crate) struct Client(Rc<Export>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get() - 1);
        self.0.left.notify_waiters();
    }
}

/// The exports of one listener.
#[derive(Default)]
pub(crate) struct Exports(RefCell<Vec<Rc<Export>>>);

impl Exports {
    pub(crate) fn add(&self, export: Rc<Export>) {
        self.0.borrow_mut().push(export);
    }

    pub(crate) fn remove(&self, export: &Rc<Export>) {
        self.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, export));
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.borrow().iter().any(|export| export.name == name)
    }

    /// As they are now, with what the handshake shows of them.
    pub(crate) fn snapshot(&self) -> (Vec<Rc<Export>>, Vec<Shown>) {
        let exports = self.0.borrow().clone();
        let shown = exports.iter().map(|export| export.shown()).collect();
        (exports, shown)
    }
}
