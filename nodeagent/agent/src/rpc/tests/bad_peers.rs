//! What a server does with peers that are slow, broken or not ours.

use super::*;
use api_types::checksum::crc32c;
use api_wire::frame::{self, Frame, Hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

fn hello() -> Vec<u8> {
    frame::encode(&frame::hello_frame(0, &Hello::new(CLUSTER, DEVICE, "raw")))
}

fn ask(id: u64, request: &Request, budget: Duration) -> Frame {
    frame::ask_frame(id, request, crc32c(&frame::payload_of(request)), budget, false)
}

/// A connection over a pipe of this many bytes, and how it will end.
fn over_a_pipe(store: &Rc<MemoryStore>, options: ServerOptions, bytes: usize) -> (DuplexStream, JoinHandle<&'static str>) {
    let (near, far) = tokio::io::duplex(bytes);
    let connection = Connection::new(far, context(store, &Rc::default(), options));
    let task = tokio::task::spawn_local(async move { connection.run().await.0.as_str() });
    (near, task)
}

async fn next_frame(socket: &mut DuplexStream, received: &mut Vec<u8>) -> Frame {
    loop {
        if let Some((frame, taken)) = frame::decode(received).unwrap() {
            received.drain(..taken);
            return frame;
        }
        assert_ne!(socket.read_buf(received).await.unwrap(), 0, "closed");
    }
}

#[test]
fn garbage_closes_its_connection_and_no_other() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let client = server.client();
        assert!(api_types::chunk::ChunkTransport::call(&client, DEVICE, Request::Probe, LIMIT).await.is_ok());
        let mut flipped = frame::encode(&ask(1, &append_at(1, 0, &Bytes::from(vec![1; 4096])), LIMIT));
        *flipped.last_mut().unwrap() ^= 1;
        let samples: [Vec<u8>; 4] = [
            b"GET / HTTP/1.1\r\nHost: somewhere-or-other.example\r\nAccept: */*\r\n\r\n".to_vec(),
            vec![0; 4096],
            [hello(), flipped].concat(),
            [hello(), hello()].concat(),
        ];
        for (place, sample) in samples.iter().enumerate() {
            let mut socket = TcpStream::connect(server.address).await.unwrap();
            socket.write_all(sample).await.unwrap();
            let mut rest = Vec::new();
            let _reset = socket.read_to_end(&mut rest).await;
            assert_eq!(server.notes.ends.borrow().len(), place + 1);
        }
        assert_eq!(*server.notes.ends.borrow(), ["garbage"; 4]);
        assert_eq!(server.store.asked(), 0);
        assert!(api_types::chunk::ChunkTransport::call(&client, DEVICE, Request::Probe, LIMIT).await.is_ok());
    });
}

#[test]
fn half_a_frame_is_waited_for_and_then_cut_off() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let append = frame::encode(&ask(1, &append_at(1, 0, &Bytes::from(vec![1; 4096])), LIMIT));
        for half in [&append[..30], &append[..64], &append[..2000]] {
            let (mut near, task) = over_a_pipe(&store, ServerOptions::default(), 1 << 16);
            near.write_all(&[&hello(), half].concat()).await.unwrap();
            assert_eq!(task.await.unwrap(), "stalled");
        }
        assert_eq!(store.asked(), 0);
    });
}

#[test]
fn a_peer_that_says_nothing_is_cut_off() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let (_near, task) = over_a_pipe(&store, ServerOptions::default(), 1 << 16);
        assert_eq!(task.await.unwrap(), "stalled");
    });
}

#[test]
fn a_peer_without_requests_is_let_go_after_a_while() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let (mut near, task) = over_a_pipe(&store, ServerOptions::default(), 1 << 16);
        near.write_all(&hello()).await.unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(task.await.unwrap(), "idle");
        assert!(began.elapsed() >= Duration::from_secs(590));
    });
}

#[test]
fn a_peer_that_takes_no_answers_is_bounded_and_then_cut_off() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        store.append_for_test(1, &vec![5; 1 << 20]);
        let options = ServerOptions { requests_max: 1000, bytes_max: 4 << 20, ..ServerOptions::default() };
        let (mut near, task) = over_a_pipe(&store, options, 1 << 14);
        near.write_all(&hello()).await.unwrap();
        // The pipe holds 256 headers; the server takes from it what its own bound lets it.
        for id in 0..200 {
            near.write_all(&frame::encode(&ask(id, &read_of(1, 0, 1 << 20), LIMIT))).await.unwrap();
        }
        settle().await;
        assert_eq!(store.asked(), 4, "four answers of 1 MiB are the bound");
        assert_eq!(task.await.unwrap(), "stalled");
        assert_eq!(store.asked(), 4);
    });
}

#[test]
fn no_more_requests_are_taken_than_may_be_under_way() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        store.append_for_test(1, &[5; 100]);
        store.hold.set(true);
        let options = ServerOptions { requests_max: 8, ..ServerOptions::default() };
        let (mut near, _task) = over_a_pipe(&store, options, 1 << 16);
        near.write_all(&hello()).await.unwrap();
        for id in 0..20 {
            near.write_all(&frame::encode(&ask(id, &read_of(1, id as u32, 1), LIMIT))).await.unwrap();
        }
        settle().await;
        assert_eq!(store.asked(), 8);
        let mut received = Vec::new();
        next_frame(&mut near, &mut received).await;
        for id in 0..12 {
            store.release_oldest();
            assert_eq!(next_frame(&mut near, &mut received).await.header.id, id);
            settle().await;
            assert_eq!(store.asked(), (9 + id as usize).min(20));
        }
    });
}

#[test]
fn a_request_whose_time_has_passed_is_answered_and_not_done() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        store.hold.set(true);
        let options = ServerOptions { requests_max: 1, ..ServerOptions::default() };
        let (mut near, _task) = over_a_pipe(&store, options, 1 << 16);
        let (first, second) = (append_at(1, 0, &Bytes::from_static(b"x")), append_at(2, 0, &Bytes::from_static(b"x")));
        let (first, second) = (ask(1, &first, LIMIT), ask(2, &second, Duration::from_millis(10)));
        let none = ask(3, &append_at(3, 0, &Bytes::from_static(b"x")), Duration::ZERO);
        let all = [hello(), frame::encode(&first), frame::encode(&second), frame::encode(&none)].concat();
        near.write_all(&all).await.unwrap();
        // The second was received with the first and waited behind it for longer than its budget.
        tokio::time::sleep(Duration::from_millis(20)).await;
        store.release_oldest();
        let mut received = Vec::new();
        next_frame(&mut near, &mut received).await;
        assert!(frame::read_answer(next_frame(&mut near, &mut received).await).unwrap().result.is_ok());
        for id in [2, 3] {
            let frame = next_frame(&mut near, &mut received).await;
            assert_eq!(frame.header.id, id);
            assert_eq!(frame::read_answer(frame).unwrap().result, Err(Error::Deadline));
        }
        assert_eq!(store.asked(), 1);
    });
}

#[test]
fn a_pipe_of_a_few_bytes_carries_everything() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let (mut near, _task) = over_a_pipe(&store, ServerOptions::default(), 7);
        let (mut reader, mut writer) = tokio::io::split(&mut near);
        let unit: Bytes = (0..60_000_u32).map(|place| (place % 251) as u8).collect();
        let sent = [
            hello(),
            frame::encode(&ask(1, &append_at(1, 0, &unit), LIMIT)),
            frame::encode(&ask(2, &read_of(1, 0, 60_000), LIMIT)),
        ]
        .concat();
        let writing = async { writer.write_all(&sent).await.unwrap() };
        let reading = async {
            let mut received = Vec::new();
            while received.len() < 3 * 64 + 60_000 {
                assert_ne!(reader.read_buf(&mut received).await.unwrap(), 0);
            }
            received
        };
        let (_, received) = futures::future::join(writing, reading).await;
        assert_eq!(&received[3 * 64..], unit);
    });
}

#[test]
fn a_peer_that_leaves_in_the_middle_is_noticed() {
    in_simulated_time(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let (mut near, task) = over_a_pipe(&store, ServerOptions::default(), 1 << 16);
        near.write_all(&[hello(), vec![b'B', b'S']].concat()).await.unwrap();
        drop(near);
        assert_eq!(task.await.unwrap(), "broken");
        let (mut near, task) = over_a_pipe(&store, ServerOptions::default(), 1 << 16);
        near.write_all(&hello()).await.unwrap();
        drop(near);
        assert_ne!(task.await.unwrap(), "garbage");
    });
}
