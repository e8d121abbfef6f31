//! openraft's state machine on [`State`]: applies commands, makes and takes snapshots.

use crate::error::OpenError;
use crate::snapshot::SnapshotStore;
use crate::types::{LogId, Membership, Snapshot, SnapshotMeta, TypeConfig, nothing};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use master_state::{Event, State};
use openraft::entry::EntryPayload;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{OptionalSend, StoredMembership};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::Arc;

/// Hears of everything that happens, once on each member, in order.
pub(crate) type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// What is applied so far.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub(crate) state: State,
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: Membership,
}

/// See the module.
pub(crate) struct Machine {
    replica: Arc<RwLock<Replica>>,
    snapshots: SnapshotStore,
    /// The newest snapshot's place; also keeps two from being written at once.
    newest: Arc<Mutex<Option<LogId>>>,
    observer: Observer,
}

impl Machine {
    pub(crate) fn open(
        snapshots: SnapshotStore,
        replica: Arc<RwLock<Replica>>,
        observer: Observer,
    ) -> Result<Machine, OpenError> {
        let mut newest = None;
        if let Some(snapshot) = snapshots.load()? {
            let state = State::decode(&snapshot.snapshot).map_err(|error| OpenError::damaged("snapshot", error.to_string()))?;
            newest = snapshot.meta.last_log_id;
            *replica.write() = Replica { state, applied: snapshot.meta.last_log_id, membership: snapshot.meta.last_membership };
        }
        Ok(Machine { replica, snapshots, newest: Arc::new(Mutex::new(newest)), observer })
    }
}

/// A frozen state on its way to the disk.
pub(crate) struct Builder {
    state: State,
    meta: SnapshotMeta,
    snapshots: SnapshotStore,
    newest: Arc<Mutex<Option<LogId>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (state, meta) = (std::mem::take(&mut self.state), self.meta.clone());
        let (snapshots, newest) = (self.snapshots.clone(), self.newest.clone());
        let work = move || {
            let bytes = Bytes::from(state.encode().map_err(io::Error::other)?);
            let mut newest = newest.lock();
            // One that was installed meanwhile may be newer.
            if meta.last_log_id >= *newest {
                snapshots.save(&meta, &bytes)?;
                *newest = meta.last_log_id;
            }
            Ok(Snapshot { meta, snapshot: bytes })
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), io::Error> {
        let replica = self.replica.read();
        Ok((replica.applied, replica.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut outcome = nothing();
            {
                let mut replica = self.replica.write();
                replica.applied = Some(entry.log_id);
                match entry.payload {
                    EntryPayload::Blank => {}
                    EntryPayload::Normal(proposal) => outcome = replica.state.apply(&proposal.0),
                    EntryPayload::Membership(membership) => {
                        replica.membership = StoredMembership::new(Some(entry.log_id), membership);
                    }
                }
            }
            for event in &outcome.events {
                (self.observer)(event);
            }
            if let Some(responder) = responder {
                responder.send(outcome);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        let replica = self.replica.read();
        Builder {
            state: replica.state.clone(),
            meta: SnapshotMeta { last_log_id: replica.applied, last_membership: replica.membership.clone() },
            snapshots: self.snapshots.clone(),
            newest: self.newest.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Bytes) -> Result<(), io::Error> {
        let (snapshots, newest, meta) = (self.snapshots.clone(), self.newest.clone(), meta.clone());
        let replica = self.replica.clone();
        let work = move || {
            let state = State::decode(&snapshot).map_err(io::Error::other)?;
            let mut newest = newest.lock();
            snapshots.save(&meta, &snapshot)?;
            *newest = meta.last_log_id;
            *replica.write() = Replica { state, applied: meta.last_log_id, membership: meta.last_membership };
            Ok(())
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let (snapshots, newest) = (self.snapshots.clone(), self.newest.clone());
        let work = move || {
            let _newest = newest.lock();
            snapshots.load().map_err(io::Error::other)
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}
