//! What a data-path socket is set to.

use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long sent bytes may stay unacknowledged by the peer's kernel before the connection counts as lost. A stopped
/// process still acknowledges; a dead node doesn't.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;

/// Frames are gathered before they are written, so the kernel must not gather again; and a peer that is gone is noticed.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    let millis = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}
