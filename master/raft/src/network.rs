//! The way to the other members: one channel each, with HTTP/2 pings, so that it comes back after a partition.

use crate::error::GroupError;
use crate::file::VERSION;
use crate::identity::Identity;
use crate::types::{Snapshot, SnapshotMeta, TypeConfig, Vote};
use api_types::ClusterId;
use api_wire::proto::raft::raft_client::RaftClient;
use api_wire::proto::raft::{Envelope, HelloRequest, HelloResponse, SnapshotPiece};
use bytes::Bytes;
use futures::future::{Either, select};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
};
use openraft::raft::{VoteRequest, VoteResponse};
use openraft::{BasicNode, OptionalSend};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The longest message of one call.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Length of a snapshot's pieces.
const PIECE_BYTES: usize = 1 << 20;
const CONNECT_LIMIT: Duration = Duration::from_millis(500);
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The longest a snapshot may take.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(120);
const HELLO_LIMIT: Duration = Duration::from_secs(1);

fn channel(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    Ok(endpoint.connect_lazy())
}

fn client(channel: Channel) -> RaftClient<Channel> {
    RaftClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Asks whoever listens at an address who it is.
pub(crate) async fn hello(address: &str) -> Result<HelloResponse, GroupError> {
    let unreachable = |what: String| GroupError::Unavailable(format!("member at {address}: {what}"));
    let channel = channel(address).map_err(|error| GroupError::Refused(format!("address `{address}`: {error}")))?;
    let mut request = Request::new(HelloRequest {});
    request.set_timeout(HELLO_LIMIT);
    let answer = tokio::time::timeout(HELLO_LIMIT, client(channel).hello(request)).await;
    let answer = answer.map_err(|_| unreachable("no answer".into()))?;
    answer.map(Response::into_inner).map_err(|status| unreachable(status.message().to_owned()))
}

/// Makes the ways to the members.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) identity: Arc<Mutex<Identity>>,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
}

impl Peers {
    pub(crate) fn new(identity: Arc<Mutex<Identity>>) -> Self {
        Peers { identity, channels: Arc::default() }
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        let mut channels = self.channels.lock();
        let known = channels.get(&node.addr).cloned();
        let made = known.or_else(|| channel(&node.addr).ok());
        if let Some(channel) = &made {
            channels.insert(node.addr.clone(), channel.clone());
        }
        Peer { target, address: node.addr.clone(), channel: made, identity: self.identity.clone() }
    }
}

/// The way to one member.
pub(crate) struct Peer {
    target: u64,
    address: String,
    channel: Option<Channel>,
    identity: Arc<Mutex<Identity>>,
}

type Call<T> = Result<T, RPCError<TypeConfig>>;

pub(crate) fn cluster_bytes(cluster: Option<ClusterId>) -> Vec<u8> {
    cluster.map(|cluster| cluster.0.to_be_bytes().to_vec()).unwrap_or_default()
}

impl Peer {
    fn envelope(&self, body: &impl Serialize) -> Call<Envelope> {
        let identity = *self.identity.lock();
        let body = postcard::to_stdvec(body).map_err(|error| NetworkError::new(&error))?;
        let cluster = Bytes::from(cluster_bytes(identity.cluster));
        Ok(Envelope { version: VERSION, from: identity.member, to: self.target, cluster, body: body.into() })
    }

    fn client(&self) -> Call<RaftClient<Channel>> {
        let bad = || Unreachable::from_string(format!("`{}` is not an address", self.address));
        Ok(client(self.channel.clone().ok_or_else(bad)?))
    }

    async fn call<T: DeserializeOwned, F>(
        &self,
        body: &impl Serialize,
        limit: Duration,
        send: impl FnOnce(RaftClient<Channel>, Request<Envelope>) -> F,
    ) -> Call<T>
    where
        F: Future<Output = Result<Response<Envelope>, Status>>,
    {
        let mut request = Request::new(self.envelope(body)?);
        request.set_timeout(limit);
        let answer = tokio::time::timeout(limit, send(self.client()?, request)).await;
        let answer = answer.map_err(|_| Unreachable::from_string(format!("no answer from {}", self.address)))?;
        let answer = answer.map_err(|status| Unreachable::from_string(format!("{}: {}", self.address, status.message())))?;
        postcard::from_bytes(&answer.into_inner().body).map_err(|error| NetworkError::new(&error).into())
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot) -> Call<SnapshotResponse<TypeConfig>> {
        let head: (Vote, SnapshotMeta) = (vote, snapshot.meta);
        let head = SnapshotPiece { head: Some(self.envelope(&head)?), data: Bytes::new() };
        let data = snapshot.snapshot;
        let ends = (0..data.len()).step_by(PIECE_BYTES);
        let pieces: Vec<SnapshotPiece> = ends
            .map(|start| SnapshotPiece { head: None, data: data.slice(start..data.len().min(start + PIECE_BYTES)) })
            .collect();
        let stream = futures::stream::iter(std::iter::once(head).chain(pieces));
        let answer = self.client()?.install_snapshot(stream).await;
        let answer = answer.map_err(|status| Unreachable::from_string(format!("{}: {}", self.address, status.message())))?;
        postcard::from_bytes(&answer.into_inner().body).map_err(|error| NetworkError::new(&error).into())
    }
}

fn streaming(error: RPCError<TypeConfig>) -> StreamingError<TypeConfig> {
    match error {
        RPCError::Timeout(error) => error.into(),
        RPCError::Unreachable(error) => error.into(),
        RPCError::Network(error) => error.into(),
        other => NetworkError::from_string(other).into(),
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Call<AppendEntriesResponse<TypeConfig>> {
        self.call(&rpc, option.hard_ttl(), |mut client, request| async move { client.append(request).await }).await
    }

    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> Call<VoteResponse<TypeConfig>> {
        self.call(&rpc, option.hard_ttl(), |mut client, request| async move { client.vote(request).await }).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> Call<VoteResponse<TypeConfig>> {
        self.call(&rpc, option.hard_ttl(), |mut client, request| async move { client.pre_vote(request).await }).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let sent = pin!(tokio::time::timeout(SNAPSHOT_LIMIT, self.send_snapshot(vote, snapshot)));
        match select(sent, pin!(cancel)).await {
            Either::Left((Ok(answer), _)) => answer.map_err(streaming),
            Either::Left((Err(_), _)) => Err(Unreachable::from_string("the snapshot took too long").into()),
            Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Call<TransferLeaderResponse<TypeConfig>> {
        self.call(&req, option.hard_ttl(), |mut client, request| async move { client.transfer_leader(request).await }).await
    }
}
