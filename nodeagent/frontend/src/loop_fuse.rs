//! `/dev/loopN` over a FUSE file that we serve: a block device on any kernel that has FUSE and loop.
//!
//! ```text
//! filesystem ── /dev/loopN ── <run_dir>/loop-fuse/<volume>/mnt/volume ── /dev/fuse ── this agent ── volume
//!                              └── a holder process keeps the session ──┘
//! ```
//! When the agent dies, requests wait in the kernel; the next agent exports the same volume, gets the session from the
//! holder, asks for what was read and not answered (`FUSE_NOTIFY_RESEND`, Linux 6.9) and serves on: the users of the
//! device saw a stall. On older kernels what the dead agent had read can't be had again, and would hang for ever: there
//! the session is aborted (I/O errors), and the export makes a new device.
//!
//! The holder must outlive the agent: in a container, whose end is the end of all its processes, it is started by a
//! keeper in a container of its own. Both need the run directory mounted with bidirectional propagation.

mod attachment;
mod device;
mod errand;
mod found;
mod place;

use crate::adapter::Adapter;
use crate::front_end::{Attachment, Context, FrontEnd, FrontEndError, Kind, Spec};
use crate::fuse::Server;
use crate::holder::{self, Given, Link};
use crate::keeper::{self, Ran};
use api_types::limits::BLOCK_BYTES;
use attachment::LoopAttachment;
use client_volume::BlockDevice;
use device::LoopDevice;
use errand::Errand;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use place::{Place, Remembered};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

pub use found::{FoundAttachment, FoundState, abandon, adopt, cleanup_orphans};

/// The longest that one step of an attachment may take.
const STEP_LIMIT: Duration = Duration::from_secs(15);

/// How a holder process is started: `program arguments… --socket <path> --mount <path>`; and one that goes on a single
/// errand to the kernel: `program arguments… --errand <what>`. Both must end in [`run_holder`] before any thread or runtime is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderCommand {
    /// The binary; usually the agent's own.
    pub program: PathBuf,
    /// What comes before the holder's options; usually `["fuse-holder"]`.
    pub arguments: Vec<OsString>,
    /// Socket of the keeper that starts them instead, with its own program and arguments. `None`: they are children of
    /// this process, which must then leave them alone when it ends.
    pub keeper: Option<PathBuf>,
}

/// The front end. One per core; all of an agent share one run directory.
#[derive(Clone)]
pub struct LoopFuse {
    run_dir: PathBuf,
    holder: HolderCommand,
    context: Context,
}

impl LoopFuse {
    /// `run_dir` is an absolute path, private to the agent and on tmpfs (`/run/basalt`); each attachment has a
    /// directory of its own in it. Nothing is touched yet.
    #[must_use]
    pub fn new(run_dir: PathBuf, holder: HolderCommand, context: Context) -> Self {
        LoopFuse { run_dir, holder, context }
    }

    /// See [`FrontEnd::export`].
    pub async fn attach(&self, device: Rc<dyn BlockDevice>, spec: Spec) -> Result<Rc<dyn Attachment>, FrontEndError> {
        self.check(&*device, &spec)?;
        // Memory that this core waits for must not be written back through the devices that it serves. A wish: it takes
        // a privilege that root may lack.
        if let Err(errno) = rustix::process::configure_io_flusher_behavior(true) {
            tracing::debug!(%errno, "this thread may wait for its own devices when memory is short");
        }
        let place = Place::of(&self.run_dir, spec.volume);
        let adapter = Adapter::new(spec.volume, device, self.context.clone());
        let (link, mut given) = self.session(&place).await?;
        let (link, fresh) = if given.unanswered && !given.negotiated.resends() {
            // Whoever waits for what a dead agent had read would wait for ever.
            tracing::error!(volume = %spec.volume, "this kernel can't send requests again (Linux 6.9 can): the device of the dead agent is given up");
            self.give_up(&place).await?;
            let (link, fresh) = self.session(&place).await?;
            given = fresh;
            (link, true)
        } else {
            (link, given.handed == 1)
        };
        self.serve(place, adapter, spec, link, given, fresh).await
    }

    fn check(&self, device: &dyn BlockDevice, spec: &Spec) -> Result<(), FrontEndError> {
        let invalid = |field, reason: &str| Err(FrontEndError::Invalid { field, reason: reason.to_owned() });
        if !self.run_dir.is_absolute() {
            return invalid("run_dir", "must be an absolute path");
        }
        if spec.name.len() > 255 {
            return invalid("name", "must have at most 255 bytes");
        }
        if device.size_bytes() == 0 || !device.size_bytes().is_multiple_of(BLOCK_BYTES.into()) {
            return invalid("size", "the volume's size must be a positive multiple of 4096");
        }
        Ok(())
    }

    /// Gets the session from the holder, which is started if there is none.
    async fn session(&self, place: &Place) -> Result<(Link, Given), FrontEndError> {
        let (place, holder) = (place.clone(), self.holder.clone());
        self.blocking("getting the fuse session", move || {
            place.make()?;
            let link = match Link::connect(&place.socket())? {
                Some(link) => link,
                None => {
                    for stays in place.clear() {
                        tracing::warn!("left of a dead attachment: {stays}");
                    }
                    place.make()?;
                    place.make_mount_point()?;
                    holder.start(&place, false)?
                }
            };
            let given = link.serve()?;
            Ok((link, given))
        })
        .await
    }

    async fn give_up(&self, place: &Place) -> Result<(), FrontEndError> {
        let place = place.clone();
        self.blocking("giving a dead session up", move || {
            if let Some(link) = Link::connect(&place.socket())? {
                link.detach(true)?;
            }
            place.clear();
            Ok(())
        })
        .await
    }

    /// Serves the session, and finds or makes the loop device over it.
    async fn serve(
        &self,
        place: Place,
        adapter: Rc<Adapter>,
        spec: Spec,
        link: Link,
        given: Given,
        fresh: bool,
    ) -> Result<Rc<dyn Attachment>, FrontEndError> {
        let size = adapter.size();
        let negotiated = given.negotiated;
        let server = Server::start(given.session, adapter, spec.read_only, given.unanswered)
            .map_err(FrontEndError::io("serving the fuse session"))?;
        if !fresh {
            // It may have grown while nobody served.
            server.size_changed().map_err(FrontEndError::io("telling the kernel the size"))?;
        }
        let (there, what, command) = (place.clone(), spec.clone(), self.holder.clone());
        let device = self.blocking("making the loop device", move || find_or_make(&command, &there, &what, fresh, size)).await;
        match device {
            Ok(device) => LoopAttachment::start(self.clone(), place, spec, server, link, negotiated, device),
            Err(error) => {
                if fresh {
                    let _ = self.give_up(&place).await;
                }
                server.close();
                Err(error)
            }
        }
    }

    /// Runs what blocks on a thread of its own, for a bounded time. What takes longer goes on alone.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> Result<T, FrontEndError> + Send + 'static,
    ) -> Result<T, FrontEndError> {
        let done = tokio::task::spawn_blocking(work);
        match api_types::clock::timeout(&*self.context.clock, STEP_LIMIT, done).await {
            Ok(Ok(result)) => result,
            Ok(Err(join)) => Err(FrontEndError::Holder(format!("{what}: {join}"))),
            Err(elapsed) => Err(FrontEndError::TimedOut { what, limit: elapsed.0 }),
        }
    }
}

impl HolderCommand {
    /// Runs a holder or an errand until it has printed all it has to say. `limit` bounds the keeper's answer.
    pub(crate) fn run(&self, words: &[&OsStr], limit: Option<Duration>) -> Result<Ran, FrontEndError> {
        if let Some(keeper) = &self.keeper {
            return keeper::ask(keeper, words, limit);
        }
        let failed = |error: io::Error| FrontEndError::Holder(format!("running {}: {error}", self.program.display()));
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(words).stdin(Stdio::null()).stderr(Stdio::null()).env_clear();
        let output = command.output().map_err(failed)?;
        Ok(Ran { output: String::from_utf8_lossy(&output.stdout).into_owned(), status: output.status.to_string() })
    }

    fn start(&self, place: &Place, take: bool) -> Result<Link, FrontEndError> {
        holder::start(self, &place.socket(), &place.mount(), take)?;
        Link::connect(&place.socket())?.ok_or_else(|| FrontEndError::Holder("it went away at once".to_owned()))
    }
}

fn find_or_make(
    command: &HolderCommand,
    place: &Place,
    spec: &Spec,
    fresh: bool,
    size: u64,
) -> Result<LoopDevice, FrontEndError> {
    // Before the device exists: a crash between the two leaves something that is found.
    let found = if fresh { None } else { place.device() };
    if found.is_none() {
        place.remember(&Remembered::new(spec, None))?;
    }
    let device = match found {
        Some(device) => device,
        None => {
            let number = Errand::make(place, spec.read_only).send(command)?;
            LoopDevice { number: u32::try_from(number).map_err(|_| FrontEndError::Errand(format!("no loop device {number}")))? }
        }
    };
    place.remember(&Remembered::new(spec, Some(&device)))?;
    match device.size() {
        Ok(same) if same == size => {}
        _ => {
            Errand::resize(place, &device).send(command)?;
        }
    }
    Ok(device)
}

impl FrontEnd for LoopFuse {
    fn kind(&self) -> Kind {
        Kind::LoopFuse
    }

    fn probe(&self) -> Result<(), FrontEndError> {
        let missing = |what: &str| Err(FrontEndError::Unsupported(what.to_owned()));
        if !nix::unistd::geteuid().is_root() {
            return missing("loop devices and mounts need root");
        }
        for path in ["/dev/fuse", "/dev/loop-control", "/sys/block"] {
            if !Path::new(path).exists() {
                return missing(&format!("{path} is missing (modules fuse and loop, sysfs)"));
            }
        }
        Ok(())
    }

    fn export(
        &self,
        device: Rc<dyn BlockDevice>,
        spec: Spec,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Attachment>, FrontEndError>> {
        let front_end = self.clone();
        async move {
            front_end.probe()?;
            front_end.attach(device, spec).await
        }
        .boxed_local()
    }
}

/// The processes that work for an agent. Either a holder: it mounts, keeps `/dev/fuse` and the mount alive while agents come and go, and exits when told or
/// when the mount is gone. Or one that goes on a single errand to the kernel. `arguments` are what follows the subcommand.
/// Call it before any thread or runtime exists: it forks.
#[must_use]
pub fn run_holder(arguments: Vec<OsString>) -> ExitCode {
    let mut words = arguments.iter();
    if words.next().is_some_and(|word| word == errand::WORD) {
        return errand::run(words.next().cloned());
    }
    holder::run(arguments)
}
