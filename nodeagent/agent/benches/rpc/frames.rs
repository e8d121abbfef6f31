//! Our frames, with the agent's own server and client.

use crate::{UNIT_BYTES, Way, on_a_core};
use api_types::chunk::{Append, ChunkStore, ChunkTransport, Error, Request, Response};
use api_types::{ChunkId, ClusterId, DeviceId, Epoch, QosClass};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nodeagent_agent::rpc::{ClientOptions, Directory, NoObserver, ServerContext, ServerOptions, TcpTransport, serve};
use nodeagent_reactor::{BufferPool, RealClock};
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId(1);
const DEVICE: DeviceId = DeviceId(1);

/// Takes every append and keeps none.
struct Nowhere;

impl ChunkStore for Nowhere {
    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn serve(&self, request: Request) -> LocalBoxFuture<'static, Result<Response, Error>> {
        let answer = match request {
            Request::Append(append) => Ok(Response::Append(append.offset + append.unit.len() as u32)),
            _ => Err(Error::Invalid("only appends are measured".to_owned())),
        };
        std::future::ready(answer).boxed_local()
    }
}

pub(crate) struct Frames {
    client: TcpTransport,
    unit: Bytes,
}

impl Way for Frames {
    async fn append(&self) {
        let append = Append {
            chunk: ChunkId(1),
            epoch: Epoch(1),
            offset: 0,
            unit: self.unit.clone(),
            create: false,
            qos: QosClass::Foreground,
        };
        self.client.call(DEVICE, Request::Append(append), Duration::from_secs(10)).await.unwrap();
    }
}

pub(crate) fn start() -> Frames {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        on_a_core(async {
            let context = ServerContext {
                options: ServerOptions::default(),
                cluster: CLUSTER,
                lookup: Rc::new(|_| Some(Rc::new(Nowhere))),
                pool: BufferPool::default(),
                clock: Rc::new(RealClock::new()),
                observer: Rc::new(NoObserver),
            };
            serve(tokio::net::TcpListener::from_std(listener).unwrap(), Rc::new(context)).await
        })
    });
    let directory =
        Directory { address: Rc::new(move |_| Some(address.clone())), unknown: Rc::new(|_| {}), local: Rc::new(|_| None) };
    let options = ClientOptions::new(CLUSTER, "bench");
    let client = TcpTransport::new(options, directory, BufferPool::default(), Rc::new(RealClock::new()), Rc::new(NoObserver));
    Frames { client, unit: vec![7; UNIT_BYTES].into() }
}
