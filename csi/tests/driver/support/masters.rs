//! Masters in memory.

use api_types::master::{Error, PoolRecord, Replication, VolumeRecord, VolumeStreams};
use api_types::{Epoch, NodeName, StreamId, VolumeId};
use api_wire::master_client::CreateVolume;
use csi::control_plane::ControlPlane;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::watch;

pub(crate) const CAPACITY_BYTES: u64 = 1 << 40;

pub(crate) struct MemoryMasters {
    volumes: Mutex<BTreeMap<VolumeId, VolumeRecord>>,
    next: Mutex<u64>,
    nodes: Vec<NodeName>,
    /// While true, creations wait.
    hung: watch::Sender<bool>,
}

impl MemoryMasters {
    pub(crate) fn new(nodes: &[&str]) -> Self {
        MemoryMasters {
            volumes: Mutex::default(),
            next: Mutex::new(1),
            nodes: nodes.iter().map(|name| NodeName::from(*name)).collect(),
            hung: watch::channel(false).0,
        }
    }

    pub(crate) fn hang(&self, hung: bool) {
        self.hung.send_replace(hung);
    }

    pub(crate) fn count(&self) -> usize {
        self.volumes.lock().len()
    }

    pub(crate) fn size_of(&self, volume: VolumeId) -> Option<u64> {
        self.volumes.lock().get(&volume).map(|record| record.size_bytes)
    }

    pub(crate) fn published(&self, volume: &str) -> Option<String> {
        let volumes = self.volumes.lock();
        volumes[&volume.parse().unwrap()].published.as_ref().map(|node| node.0.clone())
    }

    fn change<T>(&self, volume: VolumeId, change: impl FnOnce(&mut VolumeRecord) -> Result<T, Error>) -> Result<T, Error> {
        let mut volumes = self.volumes.lock();
        change(volumes.get_mut(&volume).ok_or_else(|| missing(volume.to_string()))?)
    }
}

fn missing(what: String) -> Error {
    Error::NotFound { what: format!("volume {what}") }
}

#[tonic::async_trait]
impl ControlPlane for MemoryMasters {
    async fn create(&self, wanted: CreateVolume) -> Result<VolumeRecord, Error> {
        self.hung.subscribe().wait_for(|hung| !hung).await.unwrap();
        let mut volumes = self.volumes.lock();
        if let Some(there) = volumes.values().find(|record| record.name == wanted.name) {
            let same =
                there.size_bytes == wanted.size_bytes && there.pool == wanted.pool && there.parameters == wanted.parameters;
            return if same { Ok(there.clone()) } else { Err(Error::Conflict("it has other properties".into())) };
        }
        if wanted.pool != "default" {
            return Err(Error::NotFound { what: format!("pool {}", wanted.pool) });
        }
        if wanted.size_bytes > CAPACITY_BYTES {
            return Err(Error::NoSpace("pool default is full".into()));
        }
        let mut next = self.next.lock();
        let id = *next;
        *next += 4;
        let record = VolumeRecord {
            volume: VolumeId(id),
            name: wanted.name,
            size_bytes: wanted.size_bytes,
            pool: wanted.pool,
            epoch: Epoch(0),
            attached: None,
            published: None,
            streams: VolumeStreams { hot: StreamId(id + 1), cold: StreamId(id + 2), index: StreamId(id + 3) },
            root: None,
            qos: wanted.qos,
            parameters: wanted.parameters,
        };
        volumes.insert(record.volume, record.clone());
        Ok(record)
    }

    async fn volume(&self, volume: VolumeId) -> Result<VolumeRecord, Error> {
        self.change(volume, |record| Ok(record.clone()))
    }

    async fn volume_named(&self, name: &str) -> Result<VolumeRecord, Error> {
        self.volumes.lock().values().find(|record| record.name == name).cloned().ok_or_else(|| missing(name.to_owned()))
    }

    async fn volumes(&self) -> Result<Vec<VolumeRecord>, Error> {
        Ok(self.volumes.lock().values().cloned().collect())
    }

    async fn delete(&self, volume: VolumeId) -> Result<(), Error> {
        self.volumes.lock().remove(&volume);
        Ok(())
    }

    async fn grow(&self, volume: VolumeId, size_bytes: u64) -> Result<VolumeRecord, Error> {
        self.change(volume, |record| {
            record.size_bytes = size_bytes;
            Ok(record.clone())
        })
    }

    async fn publish(&self, volume: VolumeId, node: &NodeName) -> Result<VolumeRecord, Error> {
        self.change(volume, |record| match &record.published {
            Some(other) if other != node => Err(Error::Conflict(format!("published to {other}"))),
            _ => {
                record.published = Some(node.clone());
                Ok(record.clone())
            }
        })
    }

    async fn unpublish(&self, volume: VolumeId, node: Option<&NodeName>) -> Result<(), Error> {
        self.change(volume, |record| {
            if node.is_none() || record.published.as_ref() == node {
                record.published = None;
            }
            Ok(())
        })
    }

    async fn pools(&self) -> Result<Vec<PoolRecord>, Error> {
        Ok(vec![PoolRecord {
            name: "default".into(),
            replication: Replication::default(),
            chunk_bytes: 64 << 20,
            failure_domain: "node".into(),
            available_bytes: CAPACITY_BYTES,
            capacity_bytes: CAPACITY_BYTES,
        }])
    }

    async fn nodes(&self) -> Result<Vec<NodeName>, Error> {
        Ok(self.nodes.clone())
    }

    async fn is_ready(&self) -> bool {
        !*self.hung.borrow()
    }
}
