//! The machine, with one step that breaks: before it is done, after it, or in the middle.

use csi::content::Content;
use csi::error::Error;
use csi::host::{Host, LinuxHost, TargetKind, Usage};
use csi::mounts::{DeviceNumber, Mount};
use csi::parameters::Filesystem;
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// When a step breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    Before,
    After,
}

pub(crate) struct BrokenHost {
    inner: LinuxHost,
    plan: Mutex<Option<(&'static str, Moment)>>,
}

impl BrokenHost {
    pub(crate) fn new(inner: LinuxHost) -> Self {
        BrokenHost { inner, plan: Mutex::new(None) }
    }

    /// The next `step` breaks, once.
    pub(crate) fn break_next(&self, step: &'static str, moment: Moment) {
        *self.plan.lock() = Some((step, moment));
    }

    /// Every planned break has happened.
    pub(crate) fn has_broken(&self) -> bool {
        self.plan.lock().is_none()
    }

    fn breaks(&self, step: &str, moment: Moment) -> Result<(), Error> {
        let mut plan = self.plan.lock();
        if *plan == Some((step_name(step), moment)) {
            *plan = None;
            return Err(Error::Host(format!("{step} broke on purpose")));
        }
        Ok(())
    }
}

fn step_name(step: &str) -> &'static str {
    ["mount", "bind", "unmount", "make", "check", "grow", "inspect", "target"].into_iter().find(|name| *name == step).unwrap()
}

#[tonic::async_trait]
impl Host for BrokenHost {
    async fn mounts(&self) -> Result<Vec<Mount>, Error> {
        self.inner.mounts().await
    }

    async fn mount(
        &self,
        device: &Path,
        target: &Path,
        kind: Filesystem,
        flags: &[String],
        read_only: bool,
    ) -> Result<(), Error> {
        self.breaks("mount", Moment::Before)?;
        self.inner.mount(device, target, kind, flags, read_only).await?;
        self.breaks("mount", Moment::After)
    }

    async fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<(), Error> {
        self.breaks("bind", Moment::Before)?;
        self.inner.bind(source, target, read_only).await?;
        self.breaks("bind", Moment::After)
    }

    async fn unmount(&self, target: &Path) -> Result<(), Error> {
        self.breaks("unmount", Moment::Before)?;
        self.inner.unmount(target).await?;
        self.breaks("unmount", Moment::After)
    }

    async fn inspect(&self, device: &Path) -> Result<Content, Error> {
        self.breaks("inspect", Moment::Before)?;
        self.inner.inspect(device).await
    }

    async fn make(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error> {
        if self.breaks("make", Moment::Before).is_err() {
            // What a mkfs that was killed leaves: some of its blocks, and no superblock.
            let remains = File::options().write(true).open(device).unwrap();
            remains.write_all_at(&[7; 8192], 65_536).unwrap();
            remains.sync_all().unwrap();
            return Err(Error::Host("make broke on purpose".into()));
        }
        self.inner.make(device, kind, guard).await?;
        self.breaks("make", Moment::After)
    }

    async fn check(&self, device: &Path, kind: Filesystem, guard: File) -> Result<(), Error> {
        self.breaks("check", Moment::Before)?;
        self.inner.check(device, kind, guard).await
    }

    async fn grow(&self, device: &Path, target: &Path, kind: Filesystem) -> Result<(), Error> {
        self.breaks("grow", Moment::Before)?;
        self.inner.grow(device, target, kind).await
    }

    async fn device_number(&self, path: &Path) -> Result<Option<DeviceNumber>, Error> {
        self.inner.device_number(path).await
    }

    async fn make_target(&self, path: &Path, kind: TargetKind) -> Result<(), Error> {
        self.breaks("target", Moment::Before)?;
        self.inner.make_target(path, kind).await
    }

    async fn remove_target(&self, path: &Path) -> Result<(), Error> {
        self.inner.remove_target(path).await
    }

    async fn usage(&self, path: &Path) -> Result<Usage, Error> {
        self.inner.usage(path).await
    }

    async fn resolve(&self, path: &Path) -> Result<PathBuf, Error> {
        self.inner.resolve(path).await
    }
}
