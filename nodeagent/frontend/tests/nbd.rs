//! The NBD server before the tools that people use: qemu-img, qemu-io, nbdinfo, nbdcopy and fio.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test says so when something is not as it should be")]

use api_types::VolumeId;
use client_volume::BlockError;
use nodeagent_frontend::testing::{MemoryBlock, context};
use nodeagent_frontend::{Attachment, FrontEnd, Nbd, NbdOptions, Spec};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

const SIZE: u64 = 64 << 20;

enum Order {
    Grow(u64),
    Fail(Option<BlockError>),
    Hold(bool),
    Peek(u64, usize, mpsc::Sender<Vec<u8>>),
    Detach(bool, mpsc::Sender<Result<(), String>>),
    Counts(mpsc::Sender<(u64, u64, u64)>),
}

/// A server on a thread of its own. Dropping it ends the thread, and with it every connection.
struct Server {
    uri: String,
    socket: PathBuf,
    tcp: SocketAddr,
    orders: Option<tokio::sync::mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

async fn obey(mut orders: tokio::sync::mpsc::Receiver<Order>, block: MemoryBlock, attachment: Rc<dyn Attachment>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Grow(size) => block.grow(size).unwrap(),
            Order::Fail(failure) => block.fail(failure),
            Order::Hold(held) => block.hold(held),
            Order::Peek(at, n, answer) => answer.send(block.peek(at, n)).unwrap(),
            Order::Counts(answer) => answer.send(block.counts()).unwrap(),
            Order::Detach(force, answer) => {
                let attachment = Rc::clone(&attachment);
                tokio::task::spawn_local(async move {
                    answer.send(attachment.detach(force).await.map_err(|error| error.to_string())).unwrap();
                });
            }
        }
    }
}

impl Server {
    fn start(read_only: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket_dir = dir.path().to_owned();
        let (ready, started) = mpsc::channel();
        let (orders, receiver) = tokio::sync::mpsc::channel(4);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let block = MemoryBlock::new(SIZE);
                let tcp = Some("127.0.0.1:0".parse().unwrap());
                let nbd = Nbd::new(NbdOptions { socket_dir, tcp }, context());
                let spec = Spec { volume: VolumeId(0x2a), name: "disk 1".to_owned(), read_only };
                let attachment = nbd.export(block.device(), spec).await.unwrap();
                ready.send((attachment.device_path(), nbd.tcp_address().unwrap())).unwrap();
                obey(receiver, block, attachment).await;
            });
        });
        let (uri, tcp) = started.recv().unwrap();
        let socket = dir.path().join("v-2a.sock");
        Server { uri, socket, tcp, orders: Some(orders), thread: Some(thread), _dir: dir }
    }

    fn send(&self, order: Order) {
        self.orders.as_ref().unwrap().blocking_send(order).map_err(|_| "the server is gone").unwrap();
    }

    /// Gives an order and waits until it is done.
    fn order(&self, order: Order) {
        self.send(order);
        self.ask(Order::Counts);
    }

    fn ask<T>(&self, order: impl FnOnce(mpsc::Sender<T>) -> Order) -> T {
        let (sender, receiver) = mpsc::channel();
        self.send(order(sender));
        receiver.recv().unwrap()
    }

    fn peek(&self, at: u64, n: usize) -> Vec<u8> {
        self.ask(|answer| Order::Peek(at, n, answer))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a tool; `None`, with a word about it, when this machine doesn't have it.
fn tool(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new("timeout").args(["60", program]).args(arguments).output() {
        Ok(output) if output.status.code() == Some(127) => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        Ok(output) => Some(output),
        Err(error) => panic!("timeout(1) can't be run: {error}"),
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn succeeds(program: &str, arguments: &[&str]) -> Option<String> {
    let output = tool(program, arguments)?;
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
    Some(text(&output))
}

#[test]
fn nbdinfo_sees_size_flags_and_block_sizes() {
    let server = Server::start(false);
    let Some(seen) = succeeds("nbdinfo", &[&server.uri]) else { return };
    for line in [
        "export-size: 67108864",
        "can_multi_conn: true",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(seen.contains(line), "{line} is missing in {seen}");
    }
    assert!(succeeds("nbdinfo", &["--list", &server.uri]).unwrap().contains("disk 1"));
    let tcp = format!("nbd://{}/disk%201", server.tcp);
    assert_eq!(succeeds("nbdinfo", &["--size", &tcp]).unwrap().trim(), "67108864");
    let unknown = tool("nbdinfo", &["--size", &format!("nbd://{}/other", server.tcp)]).unwrap();
    assert!(!unknown.status.success() && text(&unknown).contains("no export named"), "{}", text(&unknown));
}

#[test]
fn a_new_size_is_seen_at_the_next_connect() {
    let server = Server::start(false);
    server.order(Order::Grow(SIZE * 2));
    let Some(seen) = succeeds("nbdinfo", &["--size", &server.uri]) else { return };
    assert_eq!(seen.trim(), (SIZE * 2).to_string());
}

#[test]
fn qemu_io_writes_reads_zeroes_and_discards_unaligned_ranges() {
    let server = Server::start(false);
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 1000 3000",
        "write -f -P 0x33 5000 10000",
        "write -z 6000 3000",
        "write -z -u 16384 8192",
        "discard 65536 65536",
        "flush",
        "read -P 0x11 0 1000",
        "read -P 0x22 1000 3000",
        "read -P 0x11 4000 1000",
        "read -P 0x33 5000 1000",
        "read -P 0 6000 3000",
        "read -P 0x33 9000 6000",
        "read -P 0 16384 8192",
        "read -P 0 65536 65536",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&server.uri);
    let Some(seen) = succeeds("qemu-io", &arguments) else { return };
    assert!(!seen.contains("failed"), "{seen}");
    assert_eq!(server.peek(1000, 3000), vec![0x22; 3000]);
    let (_, discarded, zeroed) = server.ask(Order::Counts);
    assert!(discarded >= 65536 && zeroed >= 8192, "discarded {discarded}, zeroed {zeroed}");
}

#[test]
fn qemu_img_converts_and_compares() {
    let server = Server::start(false);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let data: Vec<u8> = (0..SIZE as usize).map(|i| if i / 65536 % 3 == 0 { 0 } else { (i * 7 % 251) as u8 }).collect();
    std::fs::write(&source, &data).unwrap();
    let source = source.to_str().unwrap();
    if succeeds("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &server.uri]).is_none() {
        return;
    }
    let seen = succeeds("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &server.uri]).unwrap();
    assert!(seen.contains("identical"), "{seen}");
    assert_eq!(server.peek(0, SIZE as usize), data);
}

#[test]
fn nbdcopy_uses_many_connections_both_ways() {
    let server = Server::start(false);
    let dir = tempfile::tempdir().unwrap();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let data: Vec<u8> = (0..SIZE as usize).map(|i| (i / 4096 * 31 + i) as u8).collect();
    std::fs::write(&source, &data).unwrap();
    std::fs::write(&copy, b"").unwrap();
    let to = ["--connections=4", "--requests=64", source.to_str().unwrap(), &server.uri];
    if succeeds("nbdcopy", &to).is_none() {
        return;
    }
    succeeds("nbdcopy", &["--connections=4", &server.uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == data, "the copy differs");
}

#[test]
fn fio_verifies_through_its_nbd_engine() {
    let server = Server::start(false);
    let Some(engines) = tool("fio", &["--enghelp"]) else { return };
    if !text(&engines).lines().any(|line| line.trim() == "nbd") {
        eprintln!("skipped: this fio has no nbd engine");
        return;
    }
    let uri = format!("--uri={}", server.uri);
    let job = ["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=32m", "--verify=crc32c"];
    // fio wants to make a file for the job: in a directory that goes.
    let dir = tempfile::tempdir().unwrap();
    let directory = format!("--directory={}", dir.path().display());
    succeeds("fio", &[&job[..], &[&directory, "--bsrange=512-64k", "--do_verify=1", "--verify_state_save=0"]].concat());
}

#[test]
fn a_read_only_export_refuses_writes() {
    let server = Server::start(true);
    let Some(output) = tool("qemu-io", &["-f", "raw", "-c", "write 0 4k", &server.uri]) else { return };
    assert!(!output.status.success() || text(&output).contains("failed"), "{}", text(&output));
    assert!(succeeds("nbdinfo", &[&server.uri]).unwrap().contains("is_read_only: true"));
}

/// Shakes hands by hand, up to transmission.
fn shake(stream: &mut (impl Read + Write)) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x06disk 1").unwrap();
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
    assert_eq!(u64::from_be_bytes(export[..8].try_into().unwrap()), SIZE);
}

fn request(kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// The error and the cookie of the next answer without data.
fn answer(stream: &mut impl Read) -> (u32, u64) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], 0x6744_6698u32.to_be_bytes());
    (u32::from_be_bytes(bytes[4..8].try_into().unwrap()), u64::from_be_bytes(bytes[8..].try_into().unwrap()))
}

fn ended(mut stream: impl Read) -> bool {
    let mut rest = Vec::new();
    matches!(stream.read_to_end(&mut rest), Ok(0) | Err(_))
}

#[test]
fn garbage_oversize_and_truncated_input_end_only_their_connection() {
    let server = Server::start(false);
    let mut bystander = TcpStream::connect(server.tcp).unwrap();
    shake(&mut bystander);

    let mut garbage = UnixStream::connect(&server.socket).unwrap();
    shake(&mut garbage);
    garbage.write_all(&[0xa5; 4096]).unwrap();
    assert!(ended(garbage));

    let mut oversize = UnixStream::connect(&server.socket).unwrap();
    shake(&mut oversize);
    oversize.write_all(&request(1, 9, 0, (32 << 20) + 1)).unwrap();
    assert_eq!(answer(&mut oversize), (22, 9));
    assert!(ended(oversize));

    let mut truncated = UnixStream::connect(&server.socket).unwrap();
    shake(&mut truncated);
    truncated.write_all(&request(1, 9, 0, 4096)).unwrap();
    truncated.write_all(&[1; 100]).unwrap();
    drop(truncated);

    let mut greedy = UnixStream::connect(&server.socket).unwrap();
    let mut greeting = [0; 18];
    greedy.read_exact(&mut greeting).unwrap();
    greedy.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\x7f\xff\xff\xff").unwrap();
    let mut reply = [0; 20];
    greedy.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..16], 0x8000_0009u32.to_be_bytes());

    let mut flags = UnixStream::connect(&server.socket).unwrap();
    flags.read_exact(&mut greeting).unwrap();
    flags.write_all(&0xffu32.to_be_bytes()).unwrap();
    assert!(ended(flags));

    bystander.write_all(&request(9, 1, 0, 4096)).unwrap();
    assert_eq!(answer(&mut bystander), (22, 1));
    bystander.write_all(&request(1, 2, SIZE, 4096)).unwrap();
    bystander.write_all(&[1; 4096]).unwrap();
    assert_eq!(answer(&mut bystander), (28, 2));
    assert_eq!(server.peek(0, 4096), vec![0; 4096], "half a write was never done");
}

#[test]
fn errors_of_the_volume_have_their_numbers() {
    let server = Server::start(false);
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    shake(&mut stream);
    let cases = [
        (BlockError::NoSpace, 28),
        (BlockError::Closed, 108),
        (BlockError::Unavailable("x".to_owned()), 5),
        (BlockError::Fenced, 5),
    ];
    for (error, number) in cases {
        server.order(Order::Fail(Some(error)));
        stream.write_all(&request(4, 7, 0, 4096)).unwrap();
        assert_eq!(answer(&mut stream), (number, 7));
    }
}

#[test]
fn requests_finish_in_any_order_and_are_answered_before_the_end() {
    let server = Server::start(false);
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    shake(&mut stream);
    server.order(Order::Hold(true));
    for cookie in 0..200 {
        stream.write_all(&request(3, cookie, 0, 0)).unwrap();
    }
    stream.write_all(&request(2, 0, 0, 0)).unwrap();
    server.order(Order::Hold(false));
    let mut cookies: Vec<u64> = (0..200).map(|_| answer(&mut stream).1).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..200).collect::<Vec<_>>());
    assert!(ended(stream));
}

#[test]
fn detach_is_busy_with_clients_and_force_answers_them_first() {
    let server = Server::start(false);
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    shake(&mut stream);
    let busy = server.ask(|answer| Order::Detach(false, answer));
    assert!(busy.unwrap_err().contains("1 nbd clients are connected"));
    stream.write_all(&request(0, 5, 0, 4096)).unwrap();
    let mut reply = [0; 16 + 4096];
    stream.read_exact(&mut reply).unwrap();
    server.ask(|answer| Order::Detach(true, answer)).unwrap();
    assert!(ended(stream));
    assert!(!server.socket.exists());
    server.ask(|answer| Order::Detach(false, answer)).unwrap();
}
