//! The process itself. It blocks in `poll(2)` for all its life.

#![expect(unsafe_code, reason = "a process that is to outlive its parent has to fork")]

use super::ledger::{Action, Ledger, Who};
use super::wire::{Record, kind, receive, send};
use crate::fuse::{Negotiated, answer_init};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, geteuid, setsid};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Agents connected at a time; more are turned away.
const CONNECTIONS_MAX: usize = 16;
/// How long the kernel may take to send its `INIT` after the mount, in milliseconds.
const INIT_LIMIT_MS: u16 = 10_000;

struct Options {
    socket: PathBuf,
    mount: PathBuf,
    /// Take an existing session over instead of mounting.
    take: bool,
}

fn parse(arguments: Vec<OsString>) -> Result<Options, String> {
    let (mut socket, mut mount, mut take) = (None, None, false);
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("--socket") => socket = rest.next().map(PathBuf::from),
            Some("--mount") => mount = rest.next().map(PathBuf::from),
            Some("--take") => take = true,
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    match (socket, mount) {
        (Some(socket), Some(mount)) if socket.is_absolute() && mount.is_absolute() => Ok(Options { socket, mount, take }),
        _ => Err("usage: --socket <absolute path> --mount <absolute path> [--take]".to_owned()),
    }
}

/// See [`crate::run_holder`].
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("fuse holder: {error}");
            return ExitCode::from(2);
        }
    };
    // SAFETY: the caller promises that this process has one thread, so the child's memory is whole.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => ExitCode::SUCCESS,
        Ok(ForkResult::Child) => match hold(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Read by the agent if it still waits for "ready"; to nowhere afterwards.
                let _ = writeln!(io::stdout(), "error: {error}");
                ExitCode::FAILURE
            }
        },
        Err(errno) => {
            eprintln!("fuse holder: fork: {errno}");
            ExitCode::FAILURE
        }
    }
}

fn hold(options: &Options) -> Result<(), String> {
    detach_from_parent()?;
    let listener = listen(&options.socket)?;
    let mut holder = if options.take {
        take_over(listener, options)?
    } else {
        let holder = mount_new(listener, options)?;
        ready()?;
        holder
    };
    holder.wait();
    let _ = std::fs::remove_file(&options.socket);
    Ok(())
}

/// A session and a process group of its own, no descriptor of the parent's, no signal but those that can't be refused.
fn detach_from_parent() -> Result<(), String> {
    setsid().map_err(|errno| format!("setsid: {errno}"))?;
    // SAFETY: nothing in this process has opened anything yet: what there is above 2 is the parent's.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    if closed != 0 && Errno::last() != Errno::ENOSYS {
        return Err(format!("close_range: {}", Errno::last()));
    }
    std::env::set_current_dir("/").map_err(|error| format!("chdir: {error}"))?;
    umask(Mode::from_bits_truncate(0o077));
    // Ended by its socket or by the end of the mount; a ^C meant for the agent is none of its business.
    let mut blocked = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE].into_iter().for_each(|signal| blocked.add(signal));
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&blocked), None).map_err(|errno| format!("sigprocmask: {errno}"))?;
    // A wish: without the privilege the kernel may choose it when memory is short, as any other.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    Ok(())
}

fn listen(path: &Path) -> Result<UnixListener, String> {
    match UnixStream::connect(path) {
        Ok(_) => return Err(format!("another holder answers at {}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path).map_err(|error| format!("removing {}: {error}", path.display()))?,
    }
    let listener = UnixListener::bind(path).map_err(|error| format!("listening on {}: {error}", path.display()))?;
    listener.set_nonblocking(true).map_err(|error| format!("listening on {}: {error}", path.display()))?;
    Ok(listener)
}

fn mount_new(listener: UnixListener, options: &Options) -> Result<Holder, String> {
    let fuse = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/fuse")
        .map_err(|error| format!("opening /dev/fuse: {error}"))?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&fuse));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
    mount(Some("basalt"), &options.mount, Some("fuse.basalt"), flags, Some(data.as_str()))
        .map_err(|errno| format!("mounting {}: {errno}", options.mount.display()))?;
    match shake_hands(&fuse) {
        Ok(negotiated) => Ok(Holder::new(listener, fuse.into(), negotiated, options.mount.clone(), Ledger::default())),
        Err(error) => {
            let _ = umount2(&options.mount, MntFlags::MNT_DETACH);
            Err(error)
        }
    }
}

fn shake_hands(mut fuse: &File) -> Result<Negotiated, String> {
    let mut request = vec![0; crate::fuse::MAX_WRITE as usize + 4096];
    loop {
        let mut waiting = [PollFd::new(fuse.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::from(INIT_LIMIT_MS)) {
            Ok(0) => return Err("the kernel sent no fuse handshake".to_owned()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
        let n = match fuse.read(&mut request) {
            Ok(n) => n,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(error) => return Err(format!("reading the fuse handshake: {error}")),
        };
        let Some((answer, negotiated)) = answer_init(&request[..n]) else {
            return Err("this kernel's fuse is older than protocol 7.31 (Linux 5.4)".to_owned());
        };
        let written = fuse.write(&answer).map_err(|error| format!("answering the fuse handshake: {error}"))?;
        if let (Some(negotiated), true) = (negotiated, written == answer.len()) {
            return Ok(negotiated);
        }
    }
}

/// Waits for an agent that brings a session whose holder died.
fn take_over(listener: UnixListener, options: &Options) -> Result<Holder, String> {
    ready()?;
    let deadline = now_ms() + u64::from(INIT_LIMIT_MS);
    while now_ms() < deadline {
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let left = deadline.saturating_sub(now_ms()).min(INIT_LIMIT_MS.into()) as u16;
        match poll(&mut waiting, PollTimeout::from(left)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
        // Somebody else may come first, to see whether there is a holder.
        let Some((connection, fuse, negotiated)) = listener.accept().ok().and_then(|(stream, _)| brought(stream)) else {
            continue;
        };
        let ledger = Ledger::taken_over(0, connection.pid);
        send(connection.stream.as_fd(), &Record::new(kind::DONE), None).map_err(|error| error.to_string())?;
        let mut holder = Holder::new(listener, fuse, negotiated, options.mount.clone(), ledger);
        holder.connections.push(connection);
        return Ok(holder);
    }
    Err("no agent brought a session".to_owned())
}

/// The session that a new connection brings, if it does.
fn brought(stream: UnixStream) -> Option<(Connection, OwnedFd, Negotiated)> {
    let connection = Connection::new(0, stream).ok()?;
    match receive(connection.stream.as_fd()) {
        Ok((record, Some(fuse))) if record.kind == kind::GIVE => {
            Some((connection, fuse, Negotiated { kernel_minor: record.kernel_minor, flags: record.negotiated }))
        }
        _ => None,
    }
}

/// Tells the agent, and lets go of its pipes.
fn ready() -> Result<(), String> {
    let mut out = io::stdout();
    // An agent that is gone by now is none of our business.
    let _ = out.write_all(b"ready\n").and_then(|()| out.flush());
    let null = File::options().read(true).write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null))
        .map_err(|errno| format!("dup2: {errno}"))
}

fn now_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000)
}

struct Connection {
    who: Who,
    stream: UnixStream,
    pid: i32,
    /// Names the process for sure, where a number could be another's by now.
    process: Option<OwnedFd>,
}

impl Connection {
    /// Only root may hold a disk in its hands.
    fn new(who: Who, stream: UnixStream) -> io::Result<Self> {
        // Accepted from a nonblocking listener; records are awaited by poll and then read whole.
        stream.set_nonblocking(false)?;
        let timeout = Some(std::time::Duration::from_secs(1));
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        let peer = getsockopt(&stream, PeerCredentials)?;
        if peer.uid() != 0 && peer.uid() != geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let pid = rustix::process::Pid::from_raw(peer.pid());
        let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
        Ok(Connection { who, stream, pid: peer.pid(), process })
    }
}

struct Holder {
    listener: UnixListener,
    fuse: OwnedFd,
    negotiated: Negotiated,
    mount: PathBuf,
    ledger: Ledger,
    connections: Vec<Connection>,
    next: Who,
    done: bool,
}

impl Holder {
    fn new(listener: UnixListener, fuse: OwnedFd, negotiated: Negotiated, mount: PathBuf, ledger: Ledger) -> Self {
        Holder { listener, fuse, negotiated, mount, ledger, connections: Vec::new(), next: 1, done: false }
    }

    /// Until told to exit, or until the mount is gone.
    fn wait(&mut self) {
        while !self.done {
            let (connecting, gone, speaking) = match self.poll() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            if gone {
                return;
            }
            for who in speaking {
                self.hear(who);
            }
            if connecting {
                self.accept();
            }
            let due = self.ledger.tick(now_ms());
            self.act(due);
        }
    }

    /// Blocks. Whether someone connects, whether the session has ended, and who says something.
    fn poll(&self) -> Result<(bool, bool, Vec<Who>), Errno> {
        let mut waiting = vec![
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            // Requests are not for us; the kernel reports the end of the session without being asked.
            PollFd::new(self.fuse.as_fd(), PollFlags::empty()),
        ];
        waiting.extend(self.connections.iter().map(|c| PollFd::new(c.stream.as_fd(), PollFlags::POLLIN)));
        let timeout = match self.ledger.deadline_ms() {
            Some(deadline) => PollTimeout::from(deadline.saturating_sub(now_ms()).min(60_000) as u16),
            None => PollTimeout::NONE,
        };
        poll(&mut waiting, timeout)?;
        let active = |at: usize| waiting[at].revents().is_some_and(|events| !events.is_empty());
        let speaking = self.connections.iter().enumerate().filter(|&(at, _)| active(2 + at)).map(|(_, c)| c.who);
        Ok((active(0), active(1), speaking.collect()))
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        if let Ok(connection) = Connection::new(self.next, stream) {
            self.next += 1;
            self.connections.push(connection);
        }
    }

    fn find(&self, who: Who) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.who == who)
    }

    fn tell(&self, who: Who, record: &Record, with_session: bool) -> io::Result<()> {
        let connection = self.find(who).ok_or(io::ErrorKind::NotConnected)?;
        send(connection.stream.as_fd(), record, with_session.then(|| self.fuse.as_fd()))
    }

    fn hear(&mut self, who: Who) {
        let Some(connection) = self.find(who) else { return };
        let pid = connection.pid;
        let Ok((record, _)) = receive(connection.stream.as_fd()) else { return self.leave(who) };
        let told = match record.kind {
            kind::SERVE => {
                let actions = self.ledger.serve(who, pid, now_ms());
                self.act(actions);
                Ok(())
            }
            kind::QUERY => self.tell(who, &self.state(self.ledger.unanswered()), false),
            kind::DRAINED => {
                self.ledger.drained(who);
                Ok(())
            }
            kind::DETACH => self.detach(who, record.flag != 0),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        if told.is_err() {
            self.leave(who);
        }
    }

    fn state(&self, unanswered: bool) -> Record {
        Record {
            flag: u32::from(unanswered),
            negotiated: self.negotiated.flags,
            kernel_minor: self.negotiated.kernel_minor,
            count: self.ledger.handed(),
            ..Record::new(kind::STATE)
        }
    }

    fn detach(&mut self, who: Who, abort: bool) -> io::Result<()> {
        let flags = if abort { MntFlags::MNT_FORCE | MntFlags::MNT_DETACH } else { MntFlags::empty() };
        let done = match umount2(&self.mount, flags) {
            // Not mounted any more: somebody else did it.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
            Err(Errno::EBUSY) => umount2(&self.mount, MntFlags::MNT_DETACH),
            Err(errno) => Err(errno),
        };
        match done {
            Ok(()) => {
                self.done = true;
                self.tell(who, &Record::new(kind::DONE), false)
            }
            Err(errno) => self.tell(who, &Record { errno: errno as i32, ..Record::new(kind::REFUSED) }, false),
        }
    }

    fn leave(&mut self, who: Who) {
        self.connections.retain(|connection| connection.who != who);
        let actions = self.ledger.left(who);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            let told = match action {
                Action::Supersede(who) => (who, self.tell(who, &Record::new(kind::SUPERSEDED), false)),
                Action::Hand { to, unanswered } => (to, self.tell(to, &self.state(unanswered), true)),
                Action::Refuse(who) => (who, self.tell(who, &Record { errno: libc::EBUSY, ..Record::new(kind::REFUSED) }, false)),
                Action::Kill(who) => {
                    let process = self.find(who).and_then(|connection| connection.process.as_ref());
                    if let Some(process) = process {
                        let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
                    }
                    (who, Ok(()))
                }
            };
            // A server that can't be told anything is told by poll that it is gone; a new one that can't is gone too.
            if let (Action::Hand { to, .. }, (_, Err(_))) = (action, told) {
                self.leave(to);
            }
        }
    }
}
