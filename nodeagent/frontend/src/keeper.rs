//! The keeper: who starts holders where they would otherwise die with the agent, as in a container.
//!
//! It is a process of its own, in a container of its own, that nobody restarts when the agent is. An agent sends it the
//! words of a holder or of an errand over a unix socket; it runs them as its children and answers what they printed. It
//! knows no volume and keeps no state: when it dies, agents bring their sessions to holders of the next one.
//!
//! One line of JSON each way: [`Ask`], [`Answer`].

use crate::front_end::FrontEndError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Orders under way at a time; more are turned away, and asked again by whoever needs them.
const ORDERS_MAX: usize = 256;
/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long a peer may take to say what it wants.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "keeper.sock";

/// Run a holder or an errand with these words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    words: Vec<String>,
}

/// What it printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    output: String,
    status: String,
}

/// The keeper's socket in a run directory.
#[must_use]
pub fn keeper_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET_NAME)
}

/// What ran as a child, and what it printed.
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) status: String,
}

/// Has the keeper at `socket` run a holder or an errand, and waits until that has printed all it has to say.
pub(crate) fn ask(socket: &Path, words: &[&OsStr], limit: Option<Duration>) -> Result<Ran, FrontEndError> {
    let failed = |error: &dyn std::fmt::Display| FrontEndError::Holder(format!("keeper at {}: {error}", socket.display()));
    let text = |word: &&OsStr| word.to_str().map(str::to_owned).ok_or_else(|| failed(&"a path that is no text"));
    let ask = Ask { words: words.iter().map(text).collect::<Result<_, _>>()? };
    let mut stream = UnixStream::connect(socket).map_err(|error| failed(&error))?;
    stream.set_write_timeout(Some(ASK_LIMIT)).and_then(|()| stream.set_read_timeout(limit)).map_err(|error| failed(&error))?;
    let mut line = serde_json::to_string(&ask).map_err(|error| failed(&error))?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(|error| failed(&error))?;
    let mut answer = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut answer).map_err(|error| failed(&error))?;
    let answer: Answer = serde_json::from_str(&answer).map_err(|error| failed(&error))?;
    Ok(Ran { output: answer.output, status: answer.status })
}

/// How a keeper runs.
#[derive(Debug, Clone)]
pub struct KeeperOptions {
    /// The agents' run directory; the socket lies in it, and every holder's place must.
    pub run_dir: PathBuf,
    /// The binary that is a holder; usually the keeper's own.
    pub program: PathBuf,
    /// What comes before a holder's words; usually `["fuse-holder"]`.
    pub arguments: Vec<OsString>,
}

/// Why a keeper ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The run directory must be absolute.
    #[error("--run-dir {} must be an absolute path", .0.display())]
    RunDir(PathBuf),
    /// Another one serves.
    #[error("another keeper answers at {}: one is enough for a node", .0.display())]
    InUse(PathBuf),
    /// The socket failed.
    #[error("{}", .path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Whether a keeper answers in this run directory.
pub fn check_keeper(run_dir: &Path) -> Result<(), KeeperError> {
    let path = keeper_socket(run_dir);
    UnixStream::connect(&path).map(drop).map_err(|source| KeeperError::Socket { path, source })
}

/// A keeper that has its socket.
pub struct Keeper {
    listener: UnixListener,
    path: PathBuf,
    endings: SigSet,
    orders: Arc<Orders>,
}

impl Keeper {
    /// Takes the socket, and blocks SIGTERM and SIGINT for this thread and all that it starts: call it before there are
    /// others.
    pub fn start(options: KeeperOptions) -> Result<Self, KeeperError> {
        if !options.run_dir.is_absolute() {
            return Err(KeeperError::RunDir(options.run_dir));
        }
        let path = keeper_socket(&options.run_dir);
        let listener = listen(&path)?;
        let mut endings = SigSet::empty();
        [Signal::SIGTERM, Signal::SIGINT].into_iter().for_each(|signal| endings.add(signal));
        let blocked = endings.thread_block();
        blocked.map_err(|errno| KeeperError::Socket { path: path.clone(), source: errno.into() })?;
        Ok(Keeper { listener, path, endings, orders: Orders::new(options) })
    }

    /// Serves until one of these signals comes. Holders go on: they are processes of their own, and live as long as
    /// their control group.
    pub fn run(self) -> Result<(), KeeperError> {
        let Keeper { listener, path, endings, orders } = self;
        let started = std::thread::Builder::new().name("accept".to_owned()).spawn(move || orders.accept(&listener));
        started.map_err(|source| KeeperError::Socket { path: path.clone(), source })?;
        tracing::info!(socket = %path.display(), "keeping fuse sessions");
        let ended = endings.wait();
        tracing::info!(?ended, "ending");
        std::fs::remove_file(&path).ok();
        Ok(())
    }
}

fn listen(path: &Path) -> Result<UnixListener, KeeperError> {
    let failed = |source| KeeperError::Socket { path: path.to_owned(), source };
    if UnixStream::connect(path).is_ok() {
        return Err(KeeperError::InUse(path.to_owned()));
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Who may connect may mount: root alone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// What agents want done.
struct Orders {
    options: KeeperOptions,
    /// Children that a thread waits for.
    running: Mutex<BTreeSet<i32>>,
    under_way: AtomicUsize,
}

/// A place among the orders under way.
struct Order(Arc<Orders>);

impl Drop for Order {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Orders {
    fn new(options: KeeperOptions) -> Arc<Self> {
        Arc::new(Orders { options, running: Mutex::default(), under_way: AtomicUsize::new(0) })
    }

    fn accept(self: Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            self.bury();
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accepting");
                    // Out of descriptors, most likely: others give some back.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if self.under_way.fetch_add(1, Ordering::AcqRel) >= ORDERS_MAX {
                self.under_way.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!("more than {ORDERS_MAX} orders at once: one is turned away");
                continue;
            }
            let order = Order(Arc::clone(&self));
            let spawned = std::thread::Builder::new().name("order".to_owned()).spawn(move || {
                if let Err(error) = order.0.serve(stream) {
                    tracing::warn!(%error, "an order");
                }
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, "no thread for an order");
            }
        }
    }

    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(ASK_LIMIT))?;
        stream.set_write_timeout(Some(ASK_LIMIT))?;
        let mut line = String::new();
        let read = BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
        if read == 0 {
            // Somebody looked whether we are there.
            return Ok(());
        }
        let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
        let ask: Ask = serde_json::from_str(&line).map_err(|error| invalid(error.to_string()))?;
        let answer = match self.run(&ask.words) {
            Ok(answer) => answer,
            Err(error) => Answer { output: String::new(), status: error.to_string() },
        };
        let mut line = serde_json::to_string(&answer).map_err(|error| invalid(error.to_string()))?;
        line.push('\n');
        // Whoever asked may be gone; what was done is found by the next.
        stream.write_all(line.as_bytes())
    }

    fn run(&self, words: &[String]) -> io::Result<Answer> {
        let mut command = Command::new(&self.options.program);
        command.args(&self.options.arguments).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).env_clear();
        let mut child = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let child = command.spawn()?;
            running.insert(child.id() as i32);
            child
        };
        let mut output = String::new();
        // A holder closes this when it is ready, an errand when it ends.
        let read = child.stdout.take().map_or(Ok(0), |out| out.take(LINE_BYTES_MAX).read_to_string(&mut output));
        let status = child.wait();
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&(child.id() as i32));
        read?;
        Ok(Answer { output, status: status?.to_string() })
    }

    /// Holders are orphans: where this is the first process of its container they come to us when they end, and nobody
    /// else waits for them.
    fn bury(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            let ended = match waitid(Id::All, look) {
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) => pid,
                _ => return,
            };
            // Its own thread waits for it.
            if running.contains(&ended.as_raw()) || waitpid(Some(Pid::from_raw(ended.as_raw())), None).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(dir: &Path, program: &str, arguments: &[&str]) -> PathBuf {
        let options = KeeperOptions {
            run_dir: dir.to_owned(),
            program: program.into(),
            arguments: arguments.iter().map(|&word| word.into()).collect(),
        };
        let listener = listen(&keeper_socket(dir)).unwrap();
        let orders = Orders::new(options);
        std::thread::spawn(move || orders.accept(&listener));
        keeper_socket(dir)
    }

    #[test]
    fn what_a_child_prints_is_the_answer_with_its_status() {
        let dir = tempfile::tempdir().unwrap();
        let socket = keep(dir.path(), "/bin/sh", &["-c", "echo \"$0 $1\"; exit 3"]);
        check_keeper(dir.path()).unwrap();
        let ran = ask(&socket, &[OsStr::new("a"), OsStr::new("b")], Some(Duration::from_secs(60))).unwrap();
        assert_eq!(ran.output, "a b\n");
        assert!(ran.status.contains('3'), "{}", ran.status);
        assert!(matches!(listen(&socket), Err(KeeperError::InUse(_))));
    }

    #[test]
    fn a_child_that_waits_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let gate = dir.path().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket = keep(dir.path(), "/bin/cat", &[]);
        let (waits, path) = (socket.clone(), gate.clone());
        let waiting = std::thread::spawn(move || ask(&waits, &[path.as_os_str()], None).unwrap().output);
        let ran = ask(&socket, &[OsStr::new("/dev/null")], Some(Duration::from_secs(60))).unwrap();
        assert_eq!(ran.output, "");
        std::fs::write(&gate, "late").unwrap();
        assert_eq!(waiting.join().unwrap(), "late");
    }

    #[test]
    fn garbage_ends_its_connection_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let socket = keep(dir.path(), "/bin/echo", &[]);
        for garbage in [&b"\xff\xfe\n"[..], b"{\"words\": 3}\n", b"{}\n", b"{\"words\":[],\"more\":1}\n"] {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(garbage).unwrap();
            let mut answer = String::new();
            assert_eq!(stream.read_to_string(&mut answer).unwrap(), 0, "{answer}");
        }
        let ran = ask(&socket, &[OsStr::new("fine")], Some(Duration::from_secs(60))).unwrap();
        assert_eq!(ran.output, "fine\n");
    }
}
