//! The agent's end of a holder's socket. All but [`read_order`] blocks, for a bounded time.

use super::wire::{RECORD_BYTES, Record, kind, receive, send};
use crate::front_end::FrontEndError;
use crate::fuse::Negotiated;
use crate::loop_fuse::HolderCommand;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Longer than a holder waits for a server that has to be killed.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// A holder that is only asked who it is answers at once.
const QUERY_LIMIT: Duration = Duration::from_secs(1);
/// How long the kernel may take to begin a session.
const INIT_LIMIT: Duration = Duration::from_secs(10);

fn refused(what: &str, errno: i32) -> FrontEndError {
    FrontEndError::Holder(format!("{what} was refused: {}", io::Error::from_raw_os_error(errno)))
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> FrontEndError {
    move |error| FrontEndError::Holder(format!("{what}: {error}"))
}

/// A session, handed over.
pub(crate) struct Given {
    /// `/dev/fuse`, open and mounted.
    pub(crate) session: OwnedFd,
    pub(crate) negotiated: Negotiated,
    /// An earlier server died with requests that it had read.
    pub(crate) unanswered: bool,
    /// How often the session was handed out, this time included.
    pub(crate) handed: u64,
}

/// A connection to a holder. Closing it tells the holder that this server has stopped.
#[derive(Debug)]
pub(crate) struct Link(UnixStream);

impl Link {
    /// Connects. `None`: there is no holder.
    pub(crate) fn connect(socket: &Path) -> Result<Option<Self>, FrontEndError> {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                let link = Link(stream);
                link.limit(ANSWER_LIMIT).map_err(failed("setting a time limit"))?;
                Ok(Some(link))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
            Err(error) => Err(failed("connecting")(error)),
        }
    }

    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(limit))?;
        self.0.set_write_timeout(Some(limit))
    }

    /// Asks to serve. An earlier server is stopped first.
    pub(crate) fn serve(&self) -> Result<Given, FrontEndError> {
        send(self.0.as_fd(), &Record::new(kind::SERVE), None).map_err(failed("asking to serve"))?;
        let (record, session) = receive(self.0.as_fd()).map_err(failed("waiting for the session"))?;
        match (record.kind, session) {
            (kind::STATE, Some(session)) => Ok(Given {
                session,
                negotiated: Negotiated { kernel_minor: record.kernel_minor, flags: record.negotiated },
                unanswered: record.flag != 0,
                handed: record.count,
            }),
            (kind::REFUSED, _) => Err(refused("serving", record.errno)),
            _ => Err(FrontEndError::Holder("an answer that is none to serving".to_owned())),
        }
    }

    /// Whether a holder answers at all.
    pub(crate) fn answers(&self) -> bool {
        self.limit(QUERY_LIMIT).is_ok()
            && send(self.0.as_fd(), &Record::new(kind::QUERY), None).is_ok()
            && receive(self.0.as_fd()).is_ok_and(|(record, _)| record.kind == kind::STATE)
    }

    /// Tells the holder to unmount and exit; `abort` fails what is under way first.
    pub(crate) fn detach(&self, abort: bool) -> Result<(), FrontEndError> {
        let order = Record { flag: u32::from(abort), ..Record::new(kind::DETACH) };
        send(self.0.as_fd(), &order, None).map_err(failed("telling it to detach"))?;
        loop {
            match receive(self.0.as_fd()) {
                Ok((record, _)) if record.kind == kind::DONE => return Ok(()),
                Ok((record, _)) if record.kind == kind::REFUSED => return Err(refused("unmounting", record.errno)),
                Ok(_) => {}
                // It saw the mount end before it could answer.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(failed("waiting for it to detach")(error)),
            }
        }
    }

    /// Brings a session to a holder that was started with `take`.
    pub(crate) fn give(&self, session: BorrowedFd<'_>, negotiated: Negotiated) -> Result<(), FrontEndError> {
        let record = Record { negotiated: negotiated.flags, kernel_minor: negotiated.kernel_minor, ..Record::new(kind::GIVE) };
        send(self.0.as_fd(), &record, Some(session)).map_err(failed("giving it the session"))?;
        match receive(self.0.as_fd()).map_err(failed("giving it the session"))? {
            (record, _) if record.kind == kind::DONE => Ok(()),
            (record, _) => Err(refused("the session", record.errno)),
        }
    }

    /// Tells the holder that all requests read are answered.
    pub(crate) fn drained(&self) -> Result<(), FrontEndError> {
        send(self.0.as_fd(), &Record::new(kind::DRAINED), None).map_err(failed("saying that all is answered"))
    }

    /// Another handle of the same connection.
    pub(crate) fn try_clone(&self) -> Result<Self, FrontEndError> {
        self.0.try_clone().map(Link).map_err(failed("duplicating its connection"))
    }

    /// For [`read_order`]; call it where tokio runs.
    pub(crate) fn into_stream(self) -> Result<tokio::net::UnixStream, FrontEndError> {
        self.0.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(self.0)).map_err(failed("watching it"))
    }
}

/// What a holder says unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Stop serving.
    Superseded,
    /// The holder is gone.
    Gone,
}

/// Waits until the holder says something.
pub(crate) async fn read_order(stream: &mut tokio::net::UnixStream) -> Order {
    let mut bytes = [0; RECORD_BYTES];
    loop {
        match stream.read_exact(&mut bytes).await {
            Ok(_) if Record::parse(&bytes).is_ok_and(|record| record.kind == kind::SUPERSEDED) => return Order::Superseded,
            Ok(_) => {}
            Err(_) => return Order::Gone,
        }
    }
}

/// Starts a holder and waits until it is ready.
pub(crate) fn start(command: &HolderCommand, socket: &Path, mount: &Path, take: bool) -> Result<(), FrontEndError> {
    let mut words = vec![OsStr::new("--socket"), socket.as_os_str(), OsStr::new("--mount"), mount.as_os_str()];
    if take {
        words.push(OsStr::new("--take"));
    }
    // The process that was started only forks: it leaves no zombie, and its output ends when the holder is ready.
    let ran = command.run(&words, Some(ANSWER_LIMIT + INIT_LIMIT))?;
    match ran.output.trim() {
        "ready" => Ok(()),
        "" => Err(FrontEndError::Holder(format!("it ended before it was ready: {}", ran.status))),
        line => Err(FrontEndError::Holder(line.trim_start_matches("error: ").to_owned())),
    }
}
