//! One attached volume, from the agent's side.

use super::LoopFuse;
use super::device::LoopDevice;
use super::errand::Errand;
use super::place::Place;
use crate::front_end::{Attachment, FrontEndError, Kind, Spec};
use crate::fuse::{Negotiated, Server};
use crate::holder::{Link, Order, read_order};
use api_types::clock::timeout;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

/// How long requests under way may take when this server is to stop.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// A server that another one replaces has less time: the holder kills it soon after.
const SUPERSEDED_LIMIT: Duration = Duration::from_millis(1_500);

/// Pauses between tries for a new holder when one died: the first, and the longest.
const HOLDER_PAUSE_MIN: Duration = Duration::from_millis(200);
const HOLDER_PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Attached,
    /// This process serves no longer; the device may be there.
    Released,
    Detached,
}

struct State {
    front_end: LoopFuse,
    place: Place,
    spec: Spec,
    server: Rc<Server>,
    negotiated: Negotiated,
    device: LoopDevice,
    /// Held while something changes, so that a resize and a detach don't meet.
    phase: Mutex<Phase>,
    link: RefCell<Option<Link>>,
    leaving: Cell<bool>,
    trouble: RefCell<Option<String>>,
    watch: RefCell<Option<AbortHandle>>,
}

pub(super) struct LoopAttachment(Rc<State>);

impl LoopAttachment {
    pub(super) fn start(
        front_end: LoopFuse,
        place: Place,
        spec: Spec,
        server: Rc<Server>,
        link: Link,
        negotiated: Negotiated,
        device: LoopDevice,
    ) -> Result<Rc<dyn Attachment>, FrontEndError> {
        let state = Rc::new(State {
            front_end,
            place,
            spec,
            server,
            negotiated,
            device,
            phase: Mutex::new(Phase::Attached),
            link: RefCell::new(None),
            leaving: Cell::new(false),
            trouble: RefCell::new(None),
            watch: RefCell::new(None),
        });
        let stream = state.follow(link)?;
        let watched = Rc::downgrade(&state);
        let watch = tokio::task::spawn_local(async move {
            let mut stream = stream;
            loop {
                let order = read_order(&mut stream).await;
                let Some(state) = watched.upgrade() else { return };
                if state.leaving.get() {
                    return;
                }
                match order {
                    Order::Superseded => return state.step_aside().await,
                    Order::Gone => match state.new_holder_at_last().await {
                        Ok(again) => stream = again,
                        Err(error) => {
                            let trouble = format!("its holder died, and no new one can take the session: {error}");
                            tracing::error!(volume = %state.spec.volume, "{trouble}");
                            *state.trouble.borrow_mut() = Some(trouble);
                            return;
                        }
                    },
                }
            }
        });
        *state.watch.borrow_mut() = Some(watch.abort_handle());
        Ok(Rc::new(LoopAttachment(state)))
    }
}

impl State {
    /// Keeps a connection to the holder for what this server says, and answers the half that listens.
    fn follow(&self, link: Link) -> Result<tokio::net::UnixStream, FrontEndError> {
        *self.link.borrow_mut() = Some(link.try_clone()?);
        link.into_stream()
    }

    /// Another agent serves from now on.
    async fn step_aside(&self) {
        self.leaving.set(true);
        tracing::warn!(volume = %self.spec.volume, "another agent takes this volume's device over");
        self.stop(SUPERSEDED_LIMIT).await;
        *self.trouble.borrow_mut() = Some("another agent serves this device now".to_owned());
    }

    /// Stops serving. Says so to the holder only when all that was read is answered; otherwise the next server asks
    /// for it again.
    async fn stop(&self, limit: Duration) -> bool {
        let drained = timeout(&*self.front_end.context.clock, limit, self.server.drain()).await.is_ok();
        self.server.close();
        if let Some(link) = self.link.borrow_mut().take()
            && drained
            && let Err(error) = link.drained()
        {
            tracing::debug!(%error, "the holder was gone before this server was");
        }
        if let Some(watch) = self.watch.borrow_mut().take() {
            watch.abort();
        }
        drained
    }

    /// Tries for as long as the session lives: what killed the holder may have been the lack of memory, or the end of
    /// its keeper, which comes back. Meanwhile the volume is served, and only this process keeps its session.
    async fn new_holder_at_last(&self) -> Result<tokio::net::UnixStream, FrontEndError> {
        let mut pause = HOLDER_PAUSE_MIN;
        loop {
            let error = match self.new_holder().await {
                Err(error) if self.server.ended().is_none() && !self.leaving.get() => error,
                result => return result,
            };
            tracing::warn!(volume = %self.spec.volume, %error, "no new holder yet: an end of this agent would be an I/O error");
            self.front_end.context.clock.sleep(pause).await;
            pause = (pause * 2).min(HOLDER_PAUSE_MAX);
        }
    }

    /// The holder died: a new one gets the session from us before this agent dies too.
    async fn new_holder(&self) -> Result<tokio::net::UnixStream, FrontEndError> {
        if self.server.ended().is_some() {
            return Err(FrontEndError::Holder("the mount is gone too".to_owned()));
        }
        let Some(session) = self.server.descriptor() else {
            return Err(FrontEndError::Holder("this server is closed".to_owned()));
        };
        let session = session.map_err(FrontEndError::io("duplicating the session"))?;
        let (place, holder, negotiated) = (self.place.clone(), self.front_end.holder.clone(), self.negotiated);
        tracing::warn!(volume = %self.spec.volume, "the fuse holder died: a new one is started");
        let work = move || {
            let link = holder.start(&place, true)?;
            link.give(std::os::fd::AsFd::as_fd(&session), negotiated)?;
            Ok(link)
        };
        let link = self.front_end.blocking("starting a new holder", work).await?;
        self.follow(link)
    }

    async fn resize(&self) -> Result<u64, FrontEndError> {
        let phase = self.phase.lock().await;
        if *phase != Phase::Attached {
            return Err(FrontEndError::Invalid { field: "volume", reason: "it is not attached any more".to_owned() });
        }
        let size = self.server.size();
        self.server.size_changed().map_err(FrontEndError::io("telling the kernel the size"))?;
        let (place, device, command) = (self.place.clone(), self.device.clone(), self.front_end.holder.clone());
        let work = move || {
            let now = device.size().map_err(FrontEndError::io("reading the size of the loop device"))?;
            if size < now {
                let reason = format!("{size} is less than the {now} bytes of {}", device.path().display());
                return Err(FrontEndError::Invalid { field: "size", reason });
            }
            Errand::resize(&place, &device).send(&command)
        };
        let taken = self.front_end.blocking("resizing the loop device", work).await?;
        drop(phase);
        if taken == size {
            Ok(taken)
        } else {
            let reason = format!("the kernel made it {taken} bytes instead of {size}");
            Err(FrontEndError::Invalid { field: "size", reason })
        }
    }

    async fn detach(&self, force: bool) -> Result<(), FrontEndError> {
        let mut phase = self.phase.lock().await;
        if *phase == Phase::Detached {
            return Ok(());
        }
        let (device, command) = (self.device.clone(), self.front_end.holder.clone());
        let removed = if *phase == Phase::Released {
            // The kernel would ask a server for what it still holds, and there is none.
            let by = "this agent serves it no longer".to_owned();
            Err(FrontEndError::Busy { device: device.path().display().to_string(), by })
        } else {
            let errand = Errand::remove(&device, false);
            self.front_end.blocking("removing the loop device", move || errand.send(&command).map(drop)).await
        };
        let abort = match removed {
            Ok(()) => false,
            Err(error) if !force => return Err(error),
            Err(error) => {
                tracing::warn!(volume = %self.spec.volume, %error, "detached by force: its users get errors");
                true
            }
        };
        self.leaving.set(true);
        let (place, errand) = (self.place.clone(), Errand::remove(&self.device, true));
        let command = self.front_end.holder.clone();
        let work = move || {
            if let Some(link) = Link::connect(&place.socket())? {
                link.detach(abort)?;
            }
            if abort {
                errand.send(&command)?;
            }
            Ok(())
        };
        let told = self.front_end.blocking("ending the holder", work).await;
        self.stop(if abort { Duration::ZERO } else { DRAIN_LIMIT }).await;
        told?;
        *phase = Phase::Detached;
        let place = self.place.clone();
        self.front_end
            .blocking("removing the attachment's directory", move || {
                place.forget();
                Ok(())
            })
            .await
    }

    async fn release(&self) -> Result<(), FrontEndError> {
        let mut phase = self.phase.lock().await;
        if *phase != Phase::Attached {
            return Ok(());
        }
        self.leaving.set(true);
        *phase = Phase::Released;
        if self.stop(DRAIN_LIMIT).await {
            Ok(())
        } else {
            Err(FrontEndError::TimedOut { what: "answering the requests under way", limit: DRAIN_LIMIT })
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The session first, then the link: the holder takes the end of the link for the end of the server.
        self.server.close();
        if let Some(watch) = self.watch.borrow_mut().take() {
            watch.abort();
        }
    }
}

impl Attachment for LoopAttachment {
    fn kind(&self) -> Kind {
        Kind::LoopFuse
    }

    fn device_path(&self) -> String {
        self.0.device.path().display().to_string()
    }

    fn resize(&self) -> LocalBoxFuture<'static, Result<u64, FrontEndError>> {
        let state = Rc::clone(&self.0);
        async move { state.resize().await }.boxed_local()
    }

    fn detach(&self, force: bool) -> LocalBoxFuture<'static, Result<(), FrontEndError>> {
        let state = Rc::clone(&self.0);
        async move { state.detach(force).await }.boxed_local()
    }

    fn release(&self) -> LocalBoxFuture<'static, Result<(), FrontEndError>> {
        let state = Rc::clone(&self.0);
        async move { state.release().await }.boxed_local()
    }

    fn trouble(&self) -> Option<String> {
        let state = &self.0;
        state.trouble.borrow().clone().or_else(|| state.server.ended()).or_else(|| state.server.trouble())
    }
}
