//! A Network Block Device server.

use crate::front_end::{Attachment, Context, FrontEnd, FrontEndError, Kind, Spec};
use client_volume::BlockDevice;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdOptions {
    /// Directory of the unix sockets, one per volume.
    pub socket_dir: PathBuf,
    /// One TCP address for all exports of this core. There is no encryption or authentication on it: loopback or a
    /// trusted network only.
    pub tcp: Option<SocketAddr>,
}

/// The front end. One per core.
#[derive(Clone)]
pub struct Nbd {
    options: NbdOptions,
    context: Context,
}

impl Nbd {
    /// Nothing listens before the first export.
    #[must_use]
    pub fn new(options: NbdOptions, context: Context) -> Self {
        Nbd { options, context }
    }
}

impl FrontEnd for Nbd {
    fn kind(&self) -> Kind {
        Kind::Nbd
    }

    fn probe(&self) -> Result<(), FrontEndError> {
        Ok(())
    }

    fn export(
        &self,
        _device: Rc<dyn BlockDevice>,
        _spec: Spec,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Attachment>, FrontEndError>> {
        let _ = (&self.options, &self.context);
        async { Err(FrontEndError::Unsupported("not built yet".to_owned())) }.boxed_local()
    }
}
