//! Garbage on every port and socket of a running cluster: random bytes, headers that promise too much, and connections
//! that say nothing. The volume is written meanwhile, nothing ends, and everything answers afterwards.

use anyhow::{Context, Result, ensure};
use e2e::load::{Fio, has_fio};
use e2e::{Cluster, Options, can_run, wait_for};
use rand::RngCore;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Connections that say nothing, on each port.
const SILENT: usize = 8;
/// How long an answer to garbage is waited for.
const LIMIT: Duration = Duration::from_secs(2);

/// What can be written to and read from.
trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

#[test]
fn garbage_on_every_socket_ends_nothing() -> Result<()> {
    if !can_run() || !has_fio() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 23_000, ..Options::default() })?;
    let mut fio = Fio::start(&cluster.mount(), "64m", 600)?;
    cluster.basalt(&["volume", "create", "over-nbd", "--size", "64Mi"])?;
    cluster.basalt(&["volume", "attach", "over-nbd", "--front-end", "nbd"])?;
    let ports = ports(&cluster)?;
    let sockets = sockets(&cluster)?;
    ensure!(ports.len() >= 14, "only {} ports were found", ports.len());
    ensure!(sockets.len() >= 6, "only {} sockets were found: {sockets:?}", sockets.len());
    let mut silent: Vec<Box<dyn Peer>> = Vec::new();
    for port in &ports {
        for text in messages() {
            throw(tcp(port)?, &text);
        }
        for _ in 0..SILENT {
            silent.push(Box::new(tcp(port)?));
        }
    }
    for path in &sockets {
        for text in messages() {
            throw(unix(path)?, &text);
        }
        silent.push(Box::new(unix(path)?));
    }
    ensure!(fio.is_running()?, "the volume's user saw an error: {:#}", fio.finish().unwrap_err());
    // Also while the silent connections are still there.
    wait_for("the cluster to answer", || Ok(cluster.basalt_json(&["status"])?["leader"].is_u64()))?;
    cluster.detach("over-nbd")?;
    cluster.basalt(&["volume", "delete", "over-nbd"])?;
    drop(silent);
    for name in cluster.names("") {
        ensure!(cluster.is_running(&name)?, "{name} has ended");
        if name != "csi" {
            cluster.metrics(&name).with_context(|| format!("{name} answers no more"))?;
        }
    }
    fio.stop()?;
    fio.finish().map(drop)
}

/// Random bytes; a frame, a gRPC preface and an NBD greeting that promise more than there is; a request line without end.
fn messages() -> Vec<Vec<u8>> {
    let mut random = vec![0u8; 64 << 10];
    rand::rng().fill_bytes(&mut random);
    let mut grpc = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // A header frame of 16 MiB on stream 1, of which nothing comes.
    grpc.extend_from_slice(&[0xff, 0xff, 0xff, 0x01, 0x04, 0, 0, 0, 1]);
    let mut nbd = b"IHAVEOPT".to_vec();
    nbd.extend_from_slice(&[0xff; 64]);
    let endless = [b"GET /".as_slice(), &vec![b'a'; 1 << 20]].concat();
    vec![random, vec![0xff; 64], vec![0; 4096], grpc, nbd, endless, Vec::new()]
}

/// Writes what is taken of it, then hears what is said to it. Both may fail: that is the other side's good right.
fn throw(mut peer: impl Peer, text: &[u8]) {
    let _ = peer.write_all(text);
    let mut answer = [0u8; 512];
    let _ = peer.read(&mut answer);
}

fn tcp(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("could not connect to {address}"))?;
    stream.set_read_timeout(Some(LIMIT / 20))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn unix(path: &PathBuf) -> Result<UnixStream> {
    let stream = UnixStream::connect(path).with_context(|| format!("could not connect to {}", path.display()))?;
    stream.set_read_timeout(Some(LIMIT / 20))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Every address that a process of the cluster was told to listen on.
fn ports(cluster: &Cluster) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in cluster.names("") {
        let args = &cluster.process(&name)?.program.args;
        for pair in args.windows(2) {
            if pair[0].ends_with("listen") {
                found.push(pair[1].clone());
            }
        }
    }
    Ok(found)
}

/// Every unix socket below the cluster's directory that somebody listens on.
fn sockets(cluster: &Cluster) -> Result<Vec<PathBuf>> {
    let dir = cluster.dir().display().to_string();
    let table = std::fs::read_to_string("/proc/net/unix")?;
    // Flags 00010000: it listens.
    let listening = table.lines().filter(|line| line.split_ascii_whitespace().nth(3) == Some("00010000"));
    let paths = listening.filter_map(|line| line.split_ascii_whitespace().nth(7));
    Ok(paths.filter(|path| path.starts_with(&dir)).map(PathBuf::from).collect())
}
