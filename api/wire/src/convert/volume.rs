//! Volumes and pools.

use super::need;
use crate::proto::master as pb;
use api_types::master::{Error, PoolRecord, QosLimits, RootPointer, VolumeLease, VolumeRecord, VolumeStreams};
use api_types::{ChunkId, Epoch, NodeName, StreamId, VolumeId};

impl From<QosLimits> for pb::QosLimits {
    fn from(qos: QosLimits) -> Self {
        pb::QosLimits { iops: qos.iops, bytes_per_second: qos.bytes_per_second, burst_seconds: qos.burst_seconds }
    }
}

impl From<pb::QosLimits> for QosLimits {
    fn from(qos: pb::QosLimits) -> Self {
        QosLimits { iops: qos.iops, bytes_per_second: qos.bytes_per_second, burst_seconds: qos.burst_seconds }
    }
}

impl From<RootPointer> for pb::RootPointer {
    fn from(root: RootPointer) -> Self {
        pb::RootPointer { chunk: root.chunk.0, offset: root.offset, length: root.length }
    }
}

impl From<pb::RootPointer> for RootPointer {
    fn from(root: pb::RootPointer) -> Self {
        RootPointer { chunk: ChunkId(root.chunk), offset: root.offset, length: root.length }
    }
}

impl From<VolumeRecord> for pb::VolumeRecord {
    fn from(record: VolumeRecord) -> Self {
        pb::VolumeRecord {
            volume: record.volume.0,
            name: record.name,
            size_bytes: record.size_bytes,
            pool: record.pool,
            epoch: record.epoch.0,
            attached: record.attached.map(|node| node.0),
            hot: record.streams.hot.0,
            cold: record.streams.cold.0,
            index: record.streams.index.0,
            root: record.root.map(Into::into),
            qos: Some(record.qos.into()),
            parameters: record.parameters.into_iter().collect(),
            published: record.published.map(|node| node.0),
        }
    }
}

impl From<pb::VolumeRecord> for VolumeRecord {
    fn from(record: pb::VolumeRecord) -> Self {
        VolumeRecord {
            volume: VolumeId(record.volume),
            name: record.name,
            size_bytes: record.size_bytes,
            pool: record.pool,
            epoch: Epoch(record.epoch),
            attached: record.attached.map(NodeName),
            published: record.published.map(NodeName),
            streams: VolumeStreams { hot: StreamId(record.hot), cold: StreamId(record.cold), index: StreamId(record.index) },
            root: record.root.map(Into::into),
            qos: record.qos.map(Into::into).unwrap_or_default(),
            parameters: record.parameters.into_iter().collect(),
        }
    }
}

impl From<VolumeLease> for pb::OpenVolumeResponse {
    fn from(lease: VolumeLease) -> Self {
        pb::OpenVolumeResponse {
            volume: Some(lease.volume.into()),
            replication: Some(lease.replication.into()),
            chunk_bytes: lease.chunk_bytes,
        }
    }
}

impl TryFrom<pb::OpenVolumeResponse> for VolumeLease {
    type Error = Error;
    fn try_from(response: pb::OpenVolumeResponse) -> Result<Self, Error> {
        Ok(VolumeLease {
            volume: need(response.volume, "volume")?.into(),
            replication: need(response.replication, "replication")?.try_into()?,
            chunk_bytes: response.chunk_bytes,
        })
    }
}

impl From<PoolRecord> for pb::PoolRecord {
    fn from(pool: PoolRecord) -> Self {
        pb::PoolRecord {
            name: pool.name,
            replication: Some(pool.replication.into()),
            chunk_bytes: pool.chunk_bytes,
            failure_domain: pool.failure_domain,
            available_bytes: pool.available_bytes,
            capacity_bytes: pool.capacity_bytes,
        }
    }
}

impl TryFrom<pb::PoolRecord> for PoolRecord {
    type Error = Error;
    fn try_from(pool: pb::PoolRecord) -> Result<Self, Error> {
        Ok(PoolRecord {
            name: pool.name,
            replication: need(pool.replication, "replication")?.try_into()?,
            chunk_bytes: pool.chunk_bytes,
            failure_domain: pool.failure_domain,
            available_bytes: pool.available_bytes,
            capacity_bytes: pool.capacity_bytes,
        })
    }
}
