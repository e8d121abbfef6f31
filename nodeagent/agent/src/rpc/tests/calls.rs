//! What a client gets.

use super::*;
use api_types::chunk::{ChunkStore, ChunkTransport, Response};
use std::cell::Cell;

#[test]
fn what_was_appended_reads_back() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let client = server.client();
        for (chunk, length) in [(1, 1), (2, 4096), (3, 70_000), (4, 500_000)] {
            let unit: Bytes = (0..length).map(|place: u32| (place % 251) as u8).collect();
            assert_eq!(client.call(DEVICE, append_at(chunk, 0, &unit), LIMIT).await, Ok(Response::Append(length)));
            assert_eq!(client.call(DEVICE, read_of(chunk, 0, length), LIMIT).await, Ok(Response::Read(unit)));
        }
        assert_eq!(client.call(DEVICE, read_of(9, 0, 1), LIMIT).await, Err(Error::Unknown));
        let Ok(Response::Probe(stats)) = client.call(DEVICE, Request::Probe, LIMIT).await else { panic!("no probe") };
        assert_eq!(stats.chunks, 4);
        assert_eq!(server.notes.served.borrow().len(), 10);
    });
}

#[test]
fn requests_arrive_in_call_order_whatever_is_polled() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let client = server.client();
        let unit = Bytes::from(vec![7; 4096]);
        let mut calls: Vec<_> = (0..200).map(|place| client.call(DEVICE, append_at(1, place * 4096, &unit), LIMIT)).collect();
        calls.reverse();
        for (place, result) in futures::future::join_all(calls).await.into_iter().rev().enumerate() {
            assert_eq!(result, Ok(Response::Append((place as u32 + 1) * 4096)));
        }
        assert!(server.store.arrived.borrow().is_sorted());
    });
}

#[test]
fn a_slow_request_does_not_hold_up_the_ones_behind_it() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        server.store.hold.set(true);
        let client = server.client();
        let unit = Bytes::from_static(b"first");
        let slow = client.call(DEVICE, append_at(1, 0, &unit), LIMIT);
        let fast = client.call(DEVICE, append_at(2, 0, &unit), LIMIT);
        until(|| server.store.asked() == 2).await;
        server.store.release_newest();
        assert_eq!(fast.await, Ok(Response::Append(5)));
        server.store.release_oldest();
        assert_eq!(slow.await, Ok(Response::Append(5)));
    });
}

#[test]
fn a_call_ends_at_its_limit_and_the_connection_lives_on() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        server.store.hold.set(true);
        let client = server.client();
        let unit = Bytes::from_static(b"x");
        assert_eq!(client.call(DEVICE, append_at(1, 0, &unit), Duration::from_millis(30)).await, Err(Error::Deadline));
        server.store.hold.set(false);
        assert_eq!(client.call(DEVICE, append_at(2, 0, &unit), LIMIT).await, Ok(Response::Append(1)));
        assert_eq!(server.store.asked(), 2);
    });
}

#[test]
fn a_dropped_call_is_not_undone() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let client = server.client();
        let unit = Bytes::from_static(b"x");
        assert!(client.call(DEVICE, Request::Probe, LIMIT).await.is_ok());
        server.store.hold.set(true);
        let mut call = client.call(DEVICE, append_at(1, 0, &unit), LIMIT);
        assert!((&mut call).now_or_never().is_none());
        until(|| server.store.asked() == 1).await;
        drop(call);
        server.store.hold.set(false);
        server.store.release_oldest();
        assert_eq!(client.call(DEVICE, read_of(1, 0, 1), LIMIT).await, Ok(Response::Read(unit)));
    });
}

#[test]
fn calls_under_way_fail_when_the_server_dies_and_later_ones_find_the_new_server() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        server.store.hold.set(true);
        let (client, address) = (server.client(), server.address);
        let unit = Bytes::from_static(b"x");
        let calls: Vec<_> = (0..10).map(|chunk| client.call(DEVICE, append_at(chunk, 0, &unit), LIMIT)).collect();
        until(|| server.store.asked() == 10).await;
        server.stop().await;
        for result in futures::future::join_all(calls).await {
            assert!(matches!(result, Err(Error::Unreachable(_))), "{result:?}");
        }
        // At once, without an attempt: the pause runs.
        let next = client.call(DEVICE, append_at(1, 0, &unit), LIMIT).now_or_never();
        assert!(matches!(next, Some(Err(Error::Unreachable(_)))), "{next:?}");

        let again = Server::on(TcpListener::bind(address).await.unwrap(), ServerOptions::default());
        let mut result = Err(Error::Busy);
        while result.is_err() {
            result = client.call(DEVICE, append_at(1, 0, &unit), LIMIT).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(again.store.asked(), 1);
    });
}

#[test]
fn nobody_listening_is_unreachable() {
    on_a_core(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = client_to(address, CLUSTER);
        assert!(matches!(client.call(DEVICE, Request::Probe, LIMIT).await, Err(Error::Unreachable(_))));
    });
}

#[test]
fn a_device_that_moved_makes_the_owner_ask_again() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let (address, asked) = (server.address, Rc::new(RefCell::new(Vec::new())));
        let noted = Rc::clone(&asked);
        let directory = Directory {
            address: Rc::new(move |device| (device.0 < 100).then(|| address.to_string())),
            unknown: Rc::new(move |device| noted.borrow_mut().push(device.0)),
            local: Rc::new(|_| None),
        };
        let client = TcpTransport::new(ClientOptions::new(CLUSTER, "x"), directory, pool(), clock(), Rc::new(NoObserver));
        for device in [7, 100] {
            let result = client.call(DeviceId(device), Request::Probe, LIMIT).await;
            assert!(matches!(result, Err(Error::Unreachable(_))), "{result:?}");
        }
        assert_eq!(*asked.borrow(), [7, 100]);
    });
}

#[test]
fn another_clusters_client_is_refused() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        let client = client_to(server.address, ClusterId(0xbad));
        let Err(Error::Unreachable(text)) = client.call(DEVICE, Request::Probe, LIMIT).await else { panic!("not refused") };
        assert_eq!(text, "refused: the server belongs to another cluster");
        until(|| !server.notes.ends.borrow().is_empty()).await;
        assert_eq!(*server.notes.ends.borrow(), ["refused"]);
    });
}

#[test]
fn a_store_of_the_same_core_is_called_directly() {
    on_a_core(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let local = Rc::clone(&store);
        let directory = Directory {
            address: Rc::new(|_| None),
            unknown: Rc::new(|_| {}),
            local: Rc::new(move |_| Some(Rc::clone(&local) as Rc<dyn ChunkStore>)),
        };
        let client = TcpTransport::new(ClientOptions::new(CLUSTER, "x"), directory, pool(), clock(), Rc::new(NoObserver));
        let call = client.call(DEVICE, append_at(1, 0, &Bytes::from_static(b"here")), LIMIT);
        assert_eq!(store.asked(), 1, "queued by the call, not by the poll");
        assert_eq!(call.await, Ok(Response::Append(4)));
    });
}

#[test]
fn more_than_the_bound_is_busy_and_not_queued() {
    on_a_core(async {
        let server = Server::start(ServerOptions::default()).await;
        server.store.hold.set(true);
        let mut options = ClientOptions::new(CLUSTER, "x");
        (options.requests_max, options.queued_bytes_max) = (3, 10_000);
        let address = server.address;
        let directory = Directory {
            address: Rc::new(move |_| Some(address.to_string())),
            unknown: Rc::new(|_| {}),
            local: Rc::new(|_| None),
        };
        let client = TcpTransport::new(options, directory, pool(), clock(), Rc::new(NoObserver));
        let large = Bytes::from(vec![0; 10_001]);
        assert_eq!(client.call(DEVICE, append_at(1, 0, &large), LIMIT).await, Err(Error::Busy));
        let _three: Vec<_> = (0..3).map(|_| client.call(DEVICE, Request::Probe, LIMIT)).collect();
        assert_eq!(client.call(DEVICE, Request::Probe, LIMIT).await, Err(Error::Busy));
    });
}

#[test]
fn a_traced_volumes_calls_say_so() {
    struct Traces(RefCell<Vec<bool>>);
    impl Observer for Traces {
        fn served(&self, served: &Served<'_>) {
            self.0.borrow_mut().push(served.trace);
        }
    }
    struct Tracing(Rc<Cell<bool>>);
    impl Observer for Tracing {
        fn traces(&self) -> bool {
            self.0.get()
        }
    }
    on_a_core(async {
        let store = Rc::new(MemoryStore::new(DEVICE));
        let traces = Rc::new(Traces(RefCell::default()));
        let mut shared = context(&store, &Rc::default(), ServerOptions::default());
        Rc::get_mut(&mut shared).unwrap().observer = Rc::clone(&traces) as Rc<dyn Observer>;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let on = Rc::new(Cell::new(false));
        let client = observed_client_to(listener.local_addr().unwrap(), CLUSTER, Rc::new(Tracing(Rc::clone(&on))));
        let _server = tokio::task::spawn_local(serve(listener, shared));
        client.call(DEVICE, Request::Probe, LIMIT).await.unwrap();
        on.set(true);
        client.call(DEVICE, Request::Probe, LIMIT).await.unwrap();
        on.set(false);
        client.call(DEVICE, Request::Probe, LIMIT).await.unwrap();
        assert_eq!(*traces.0.borrow(), [false, true, false]);
    });
}
