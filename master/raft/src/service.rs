//! What the other members ask, over gRPC.

use crate::file::VERSION;
use crate::group::Group;
use crate::network::{MESSAGE_BYTES_MAX, cluster_bytes};
use crate::types::{Snapshot, SnapshotMeta, Vote};
use api_wire::proto::raft::raft_server::{Raft, RaftServer};
use api_wire::proto::raft::{Envelope, HelloRequest, HelloResponse, SnapshotPiece};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use openraft::raft::SnapshotResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::{Request, Response, Status, Streaming};

/// The longest snapshot that is taken, in bytes.
const SNAPSHOT_BYTES_MAX: usize = 4 << 30;

/// See the module.
#[derive(Clone)]
pub struct RaftService {
    group: Group,
}

impl RaftService {
    /// The service of a member, to be added to a server.
    #[must_use]
    pub fn server(group: Group) -> RaftServer<RaftService> {
        RaftServer::new(RaftService { group })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Reads a message that is meant for this member of this cluster.
    fn open<T: DeserializeOwned>(&self, envelope: &Envelope) -> Result<T, Status> {
        let refused = |what: String| Err(Status::failed_precondition(what));
        if envelope.version != VERSION {
            return refused(format!("masters speak version {}, this one {VERSION}", envelope.version));
        }
        if envelope.to != self.group.id() {
            return refused(format!("this is member {}, not {}", self.group.id(), envelope.to));
        }
        let ours = cluster_bytes(self.group.cluster());
        if !ours.is_empty() && !envelope.cluster.is_empty() && envelope.cluster != ours {
            return refused("this member belongs to another cluster".into());
        }
        postcard::from_bytes(&envelope.body).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn close(&self, to: u64, body: &impl Serialize) -> Result<Response<Envelope>, Status> {
        let body = postcard::to_stdvec(body).map_err(|error| Status::internal(error.to_string()))?;
        let cluster = Bytes::from(cluster_bytes(self.group.cluster()));
        Ok(Response::new(Envelope { version: VERSION, from: self.group.id(), to, cluster, body: body.into() }))
    }
}

fn stopped(error: impl ToString) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl Raft for RaftService {
    async fn hello(&self, _request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        Ok(Response::new(HelloResponse {
            version: VERSION,
            member: self.group.id(),
            cluster: Bytes::from(cluster_bytes(self.group.cluster())),
            leader: self.group.leader_address().unwrap_or_default(),
        }))
    }

    async fn append(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let envelope = request.into_inner();
        let answer = self.group.inner().raft.append_entries(self.open(&envelope)?).await.map_err(stopped)?;
        self.close(envelope.from, &answer)
    }

    async fn vote(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let envelope = request.into_inner();
        let answer = self.group.inner().raft.vote(self.open(&envelope)?).await.map_err(stopped)?;
        self.close(envelope.from, &answer)
    }

    async fn pre_vote(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let envelope = request.into_inner();
        let answer = self.group.inner().raft.pre_vote(self.open(&envelope)?).await.map_err(stopped)?;
        self.close(envelope.from, &answer)
    }

    async fn install_snapshot(&self, request: Request<Streaming<SnapshotPiece>>) -> Result<Response<Envelope>, Status> {
        let mut pieces = request.into_inner();
        let first = pieces.try_next().await?.and_then(|piece| piece.head);
        let envelope = first.ok_or_else(|| Status::invalid_argument("the first piece of a snapshot has no head"))?;
        let (vote, meta): (Vote, SnapshotMeta) = self.open(&envelope)?;
        let mut data = BytesMut::new();
        while let Some(piece) = pieces.try_next().await? {
            if data.len() + piece.data.len() > SNAPSHOT_BYTES_MAX {
                return Err(Status::resource_exhausted("the snapshot is too long"));
            }
            data.extend_from_slice(&piece.data);
        }
        let snapshot = Snapshot { meta, snapshot: data.freeze() };
        let answer: SnapshotResponse<_> = self.group.inner().raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        self.close(envelope.from, &answer)
    }

    async fn transfer_leader(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let envelope = request.into_inner();
        let answer = self.group.inner().raft.handle_transfer_leader(self.open(&envelope)?).await.map_err(stopped)?;
        self.close(envelope.from, &answer)
    }
}
