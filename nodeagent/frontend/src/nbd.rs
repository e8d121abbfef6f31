//! A Network Block Device server (fixed newstyle): a unix socket per volume and, if asked, one TCP address.
//!
//! Clients may ignore the block size: unaligned requests become read-modify-write under a range lock. A client that
//! sends what no client may send loses its connection; others notice nothing.

mod connection;
mod export;
mod handshake;
mod wire;

use crate::adapter::Adapter;
use crate::front_end::{Attachment, Context, FrontEnd, FrontEndError, Kind, Spec};
use api_types::Clock;
use client_volume::BlockDevice;
use export::{CLIENTS_MAX, Export, Exports};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::AbortHandle;

/// How long answers of connected clients may take when their export goes away.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Longest path of a unix socket.
const SOCKET_PATH_MAX: usize = 107;
/// Connections of one listener that haven't chosen an export yet, or that nobody counts otherwise.
const CONNECTIONS_MAX: usize = 4 * CLIENTS_MAX;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdOptions {
    /// Directory of the unix sockets, one per volume, for root only. Made if missing.
    pub socket_dir: PathBuf,
    /// One TCP address for all exports of this core. There is no encryption or authentication on it: loopback or a
    /// trusted network only.
    pub tcp: Option<SocketAddr>,
}

struct Tcp {
    address: SocketAddr,
    exports: Rc<Exports>,
    accepting: AbortHandle,
}

struct Inner {
    options: NbdOptions,
    context: Context,
    tcp: RefCell<Option<Tcp>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(tcp) = self.tcp.borrow().as_ref() {
            tcp.accepting.abort();
        }
    }
}

/// The front end. One per core.
#[derive(Clone)]
pub struct Nbd(Rc<Inner>);

impl Nbd {
    /// Nothing listens before the first export.
    #[must_use]
    pub fn new(options: NbdOptions, context: Context) -> Self {
        Nbd(Rc::new(Inner { options, context, tcp: RefCell::new(None) }))
    }

    /// The TCP address that clients use, once something is exported there.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.0.tcp.borrow().as_ref().map(|tcp| tcp.address)
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
        device: Rc<dyn BlockDevice>,
        spec: Spec,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Attachment>, FrontEndError>> {
        let inner = Rc::clone(&self.0);
        async move { inner.export(device, spec).await.map(|made| Rc::new(made) as Rc<dyn Attachment>) }.boxed_local()
    }
}

impl Inner {
    async fn export(self: Rc<Self>, device: Rc<dyn BlockDevice>, spec: Spec) -> Result<NbdAttachment, FrontEndError> {
        if spec.name.is_empty() || spec.name.len() > 255 {
            return Err(FrontEndError::Invalid { field: "name", reason: "must have 1 to 255 bytes".to_owned() });
        }
        let dir = &self.options.socket_dir;
        std::fs::create_dir_all(dir).map_err(FrontEndError::io(format!("making {}", dir.display())))?;
        let path = dir.join(format!("{}.sock", spec.volume));
        let listener = listen(&path).await?;
        let adapter = Adapter::new(spec.volume, device, self.context.clone());
        let export = Export::new(spec.name.clone(), spec.read_only, adapter);
        let own = Rc::new(Exports::default());
        own.add(Rc::clone(&export));
        let clock = Rc::clone(&self.context.clock);
        let accepting = tokio::task::spawn_local(accept(Listener::Unix(listener), Rc::clone(&own), clock)).abort_handle();
        // From here on dropping `made` undoes what was done.
        let made = NbdAttachment(Rc::new(State { export, path, accepting, tcp: RefCell::new(None), detached: Cell::new(false) }));
        if let Some(address) = self.options.tcp {
            let shared = self.shared(address).await?;
            if shared.contains(&spec.name) {
                return Err(FrontEndError::Invalid { field: "name", reason: format!("`{}` is exported already", spec.name) });
            }
            shared.add(Rc::clone(&made.0.export));
            *made.0.tcp.borrow_mut() = Some(shared);
        }
        Ok(made)
    }

    /// The exports of the TCP listener, which is started if need be.
    async fn shared(&self, address: SocketAddr) -> Result<Rc<Exports>, FrontEndError> {
        if let Some(tcp) = self.tcp.borrow().as_ref() {
            return Ok(Rc::clone(&tcp.exports));
        }
        let listener = TcpListener::bind(address).await.map_err(FrontEndError::io(format!("listening on {address}")))?;
        let address = listener.local_addr().unwrap_or(address);
        let exports = Rc::new(Exports::default());
        let serving = accept(Listener::Tcp(listener), Rc::clone(&exports), Rc::clone(&self.context.clock));
        let accepting = tokio::task::spawn_local(serving).abort_handle();
        *self.tcp.borrow_mut() = Some(Tcp { address, exports: Rc::clone(&exports), accepting });
        Ok(exports)
    }
}

/// Listens on a unix socket. One that a dead process left is replaced, one that answers is not.
async fn listen(path: &Path) -> Result<UnixListener, FrontEndError> {
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let reason = format!("{} is longer than {SOCKET_PATH_MAX} bytes, the kernel's bound for sockets", path.display());
        return Err(FrontEndError::Invalid { field: "socket_dir", reason });
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let by = "another server answers there".to_owned();
            return Err(FrontEndError::Busy { device: path.display().to_string(), by });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path).map_err(FrontEndError::io(format!("removing {}", path.display())))?,
    }
    let listener = UnixListener::bind(path).map_err(FrontEndError::io(format!("listening on {}", path.display())))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(FrontEndError::io(format!("making {} private", path.display())))?;
    Ok(listener)
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

type Halves = (Box<dyn AsyncRead + Unpin>, Box<dyn AsyncWrite + Unpin>);

impl Listener {
    async fn accept(&self) -> io::Result<Halves> {
        match self {
            Listener::Unix(listener) => {
                let (reader, writer) = listener.accept().await?.0.into_split();
                Ok((Box::new(reader), Box::new(writer)))
            }
            Listener::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok((Box::new(reader), Box::new(writer)))
            }
        }
    }
}

async fn accept(listener: Listener, exports: Rc<Exports>, clock: Rc<dyn Clock>) {
    let open = Rc::new(Cell::new(0usize));
    loop {
        let (reader, writer) = match listener.accept().await {
            Ok(halves) => halves,
            Err(error) => {
                // Out of descriptors, or a client that was gone again: breathe, go on.
                tracing::warn!(%error, "an nbd client could not be accepted");
                clock.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if open.get() >= CONNECTIONS_MAX {
            tracing::warn!(limit = CONNECTIONS_MAX, "too many nbd connections: refused one");
            continue;
        }
        open.set(open.get() + 1);
        let (open, exports, clock) = (Rc::clone(&open), Rc::clone(&exports), Rc::clone(&clock));
        tokio::task::spawn_local(async move {
            if let Err(error) = connection::serve(reader, writer, exports, &*clock).await {
                tracing::debug!(%error, "an nbd connection ended");
            }
            open.set(open.get() - 1);
        });
    }
}

struct State {
    export: Rc<Export>,
    path: PathBuf,
    accepting: AbortHandle,
    tcp: RefCell<Option<Rc<Exports>>>,
    detached: Cell<bool>,
}

impl State {
    /// No new client, nothing left in the filesystem. Clients that are connected stay.
    fn withdraw(&self) {
        self.accepting.abort();
        if let Some(shared) = self.tcp.borrow_mut().take() {
            shared.remove(&self.export);
        }
        if !self.detached.replace(true) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    async fn close(&self) -> Result<(), FrontEndError> {
        self.withdraw();
        self.export.stop.send_replace(true);
        let clock = Rc::clone(self.export.adapter.clock());
        api_types::clock::timeout(&*clock, DRAIN_LIMIT, self.export.emptied())
            .await
            .map_err(|elapsed| FrontEndError::TimedOut { what: "answering connected nbd clients", limit: elapsed.0 })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.withdraw();
        self.export.closing.set(true);
        self.export.stop.send_replace(true);
    }
}

struct NbdAttachment(Rc<State>);

impl Attachment for NbdAttachment {
    fn kind(&self) -> Kind {
        Kind::Nbd
    }

    fn device_path(&self) -> String {
        let mut uri = "nbd+unix:///".to_owned();
        for byte in self.0.export.name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
                _ => uri.push_str(&format!("%{byte:02X}")),
            }
        }
        uri + "?socket=" + &self.0.path.to_string_lossy()
    }

    fn resize(&self) -> LocalBoxFuture<'static, Result<u64, FrontEndError>> {
        // Clients learn the size when they connect; those that are connected may use the new one at once.
        let size = self.0.export.adapter.size();
        async move { Ok(size) }.boxed_local()
    }

    fn detach(&self, force: bool) -> LocalBoxFuture<'static, Result<(), FrontEndError>> {
        let state = Rc::clone(&self.0);
        async move {
            let clients = state.export.clients();
            if clients > 0 && !force {
                let by = format!("{clients} nbd clients are connected");
                return Err(FrontEndError::Busy { device: state.path.display().to_string(), by });
            }
            state.close().await
        }
        .boxed_local()
    }

    fn release(&self) -> LocalBoxFuture<'static, Result<(), FrontEndError>> {
        let state = Rc::clone(&self.0);
        async move { state.close().await }.boxed_local()
    }

    fn trouble(&self) -> Option<String> {
        self.0.export.adapter.trouble()
    }
}
