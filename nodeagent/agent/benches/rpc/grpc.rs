//! The same over gRPC, as a data path would use tonic: one connection, messages with one field of bytes.

use crate::{UNIT_BYTES, Way};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, BoxStream, Context, Poll, Service, http};
use tonic::server::{Grpc as Server, NamedService, StreamingService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

const UNARY: &str = "/bench.Append/Unary";
const STREAM: &str = "/bench.Append/Stream";

#[derive(Clone, PartialEq, prost::Message)]
struct Unit {
    #[prost(uint64, tag = "1")]
    chunk: u64,
    #[prost(uint64, tag = "2")]
    epoch: u64,
    #[prost(uint32, tag = "3")]
    offset: u32,
    #[prost(bytes = "bytes", tag = "4")]
    unit: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Length {
    #[prost(uint32, tag = "1")]
    length: u32,
}

fn answer(unit: &Unit) -> Length {
    Length { length: unit.offset + unit.unit.len() as u32 }
}

fn unit() -> Unit {
    Unit { chunk: 1, epoch: 1, offset: 0, unit: vec![7; UNIT_BYTES].into() }
}

#[derive(Clone)]
struct Appends;

impl NamedService for Appends {
    const NAME: &'static str = "bench.Append";
}

impl UnaryService<Unit> for Appends {
    type Response = Length;
    type Future = Ready<Result<Response<Length>, Status>>;
    fn call(&mut self, request: Request<Unit>) -> Self::Future {
        ready(Ok(Response::new(answer(request.get_ref()))))
    }
}

impl StreamingService<Unit> for Appends {
    type Response = Length;
    type ResponseStream = BoxStream<Length>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;
    fn call(&mut self, request: Request<Streaming<Unit>>) -> Self::Future {
        let answers = request.into_inner().map(|unit| unit.map(|unit| answer(&unit)));
        ready(Ok(Response::new(Box::pin(answers))))
    }
}

impl Service<http::Request<Body>> for Appends {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Server::new(ProstCodec::<Length, Unit>::default());
            Ok(if request.uri().path() == UNARY {
                grpc.unary(Appends, request).await
            } else {
                grpc.streaming(Appends, request).await
            })
        })
    }
}

fn serve() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener).map(|socket| {
                let socket = socket?;
                socket.set_nodelay(true)?;
                std::io::Result::Ok(socket)
            });
            tonic::transport::Server::builder().add_service(Appends).serve_with_incoming(incoming).await
        })
    });
    address
}

async fn connect() -> Client<Channel> {
    let channel = Channel::from_shared(format!("http://{}", serve())).unwrap().tcp_nodelay(true).connect().await.unwrap();
    Client::new(channel)
}

pub(crate) struct Unary {
    client: Client<Channel>,
    unit: Unit,
}

pub(crate) async fn unary() -> Unary {
    Unary { client: connect().await, unit: unit() }
}

impl Way for Unary {
    async fn append(&self) {
        let mut client = self.client.clone();
        client.ready().await.unwrap();
        let request = Request::new(self.unit.clone());
        let codec = ProstCodec::<Unit, Length>::default();
        client.unary(request, PathAndQuery::from_static(UNARY), codec).await.unwrap();
    }
}

/// Answers come in the order of the requests.
pub(crate) struct Stream {
    requests: mpsc::Sender<Unit>,
    waiting: Rc<RefCell<VecDeque<oneshot::Sender<()>>>>,
    unit: Unit,
}

pub(crate) async fn stream() -> Stream {
    let mut client = connect().await;
    client.ready().await.unwrap();
    let (requests, outgoing) = mpsc::channel(64);
    let codec = ProstCodec::<Unit, Length>::default();
    let request = Request::new(ReceiverStream::new(outgoing));
    let mut answers = client.streaming(request, PathAndQuery::from_static(STREAM), codec).await.unwrap().into_inner();
    let waiting = Rc::<RefCell<VecDeque<oneshot::Sender<()>>>>::default();
    let answered = Rc::clone(&waiting);
    tokio::task::spawn_local(async move {
        while let Some(Ok(_length)) = answers.next().await {
            let first = answered.borrow_mut().pop_front();
            let _caller_gone = first.unwrap().send(());
        }
    });
    Stream { requests, waiting, unit: unit() }
}

impl Way for Stream {
    async fn append(&self) {
        let (answered, answer) = oneshot::channel();
        let place = self.requests.reserve().await.unwrap();
        self.waiting.borrow_mut().push_back(answered);
        place.send(self.unit.clone());
        answer.await.unwrap();
    }
}
