//! The server's door: takes connections, one task each.

use super::connection::{Connection, End};
use super::observe::{LogLimit, Observer};
use super::socket;
use api_types::chunk::ChunkStore;
use api_types::{Clock, ClusterId, DeviceId};
use nodeagent_reactor::BufferPool;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Finds the store of a device, asked once per connection. `None`: not here.
pub type Lookup = Rc<dyn Fn(DeviceId) -> Option<Rc<dyn ChunkStore>>>;

/// Bounds of one core's server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Connections at once.
    pub connections_max: usize,
    /// Requests under way per connection; then no more are read.
    pub requests_max: usize,
    /// Payload bytes under way per connection, those of requests and those asked for; then no more are read. One
    /// request may go beyond.
    pub bytes_max: usize,
    /// A peer that doesn't go on in the middle of a frame, says no hello or takes no answer is cut off after this long
    /// to twice this long.
    pub stall: Duration,
    /// So many stall periods without a request end a connection.
    pub idle_periods: u32,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            connections_max: 1024,
            requests_max: 2048,
            bytes_max: 8 << 20,
            stall: Duration::from_secs(10),
            idle_periods: 60,
        }
    }
}

/// What every connection of one core shares.
pub struct ServerContext {
    /// Bounds.
    pub options: ServerOptions,
    /// The cluster that clients must belong to.
    pub cluster: ClusterId,
    /// Finds stores.
    pub lookup: Lookup,
    /// Where payloads land.
    pub pool: BufferPool,
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// Counts.
    pub observer: Rc<dyn Observer>,
}

/// Serves what connects, until dropped; then all connections end too. Must run inside a `LocalSet`. Only a listener
/// that is broken for good makes it return.
pub async fn serve(listener: TcpListener, context: Rc<ServerContext>) -> io::Error {
    let mut connections = JoinSet::new();
    let lines = Rc::new(LogLimit::new(Duration::from_secs(10)));
    loop {
        let accepted = tokio::select! {
            biased;
            Some(_ended) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) if connections.len() < context.options.connections_max => {
                let run = run(stream, address.to_string(), Rc::clone(&context), Rc::clone(&lines));
                connections.spawn_local(run);
            }
            // Closed at once: the client sees it and backs off.
            Ok((stream, _)) => {
                drop(stream);
                warn_limited(&lines, &*context.clock, "too many connections", "");
            }
            // No descriptors or memory for the moment; whatever else is wrong would come again at once.
            Err(error) if is_passing(&error) => {
                warn_limited(&lines, &*context.clock, &error.to_string(), "");
                context.clock.sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return error,
        }
    }
}

async fn run(stream: TcpStream, address: String, context: Rc<ServerContext>, lines: Rc<LogLimit>) {
    let (clock, observer) = (Rc::clone(&context.clock), Rc::clone(&context.observer));
    observer.accepted();
    let (end, peer) = match socket::prepare(&stream) {
        Ok(()) => Connection::new(stream, context).run().await,
        Err(error) => (End::Broken(error.to_string()), String::new()),
    };
    observer.closed(&end);
    match end {
        End::Closed | End::Idle => tracing::debug!(%address, peer, "data connection {end}"),
        _ => warn_limited(&lines, &*clock, &end.to_string(), &format!("{peer} at {address}")),
    }
}

fn warn_limited(lines: &LogLimit, clock: &dyn Clock, what: &str, peer: &str) {
    if let Some(held_back) = lines.allow(clock.now()) {
        tracing::warn!(peer, held_back, "data connection {what}");
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, OutOfMemory, WouldBlock};
    let files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOBUFS];
    let number = error.raw_os_error();
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | OutOfMemory | WouldBlock)
        || files.iter().any(|errno| number == Some(errno.raw_os_error()))
}
