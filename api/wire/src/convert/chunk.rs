//! Chunks, streams and what the data path asks about them.

use super::{all, fit, need};
use crate::proto::master as pb;
use api_types::master::{BadCopy, ChunkRecord, ChunkState, Copy, Error, Grant, Replication, Role, SealChunk, StreamRecord};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, DeviceId, Epoch, LifetimeClass, OwnerId, RequestId, StreamId};

/// The alignment with this power of two.
pub(super) fn alignment(shift: u32) -> Result<Alignment, Error> {
    u8::try_from(shift)
        .ok()
        .and_then(Alignment::from_shift)
        .ok_or_else(|| Error::Invalid(format!("field `alignment_shift` must be 9 or 12, not {shift}")))
}

fn class(number: i32) -> Result<LifetimeClass, Error> {
    u8::try_from(number)
        .ok()
        .and_then(LifetimeClass::from_u8)
        .ok_or_else(|| Error::Invalid(format!("field `class` is unknown: {number}")))
}

impl From<ChunkShape> for pb::ChunkShape {
    fn from(shape: ChunkShape) -> Self {
        pb::ChunkShape {
            chunk: shape.chunk.0,
            owner: shape.owner.0,
            epoch: shape.epoch.0,
            capacity: shape.capacity,
            alignment_shift: u32::from(shape.alignment.shift()),
            class: shape.class as i32,
        }
    }
}

impl TryFrom<pb::ChunkShape> for ChunkShape {
    type Error = Error;
    fn try_from(shape: pb::ChunkShape) -> Result<Self, Error> {
        Ok(ChunkShape {
            chunk: ChunkId(shape.chunk),
            owner: OwnerId(shape.owner),
            epoch: Epoch(shape.epoch),
            capacity: shape.capacity,
            alignment: alignment(shape.alignment_shift)?,
            class: class(shape.class)?,
        })
    }
}

impl From<ChunkRecord> for pb::ChunkRecord {
    fn from(record: ChunkRecord) -> Self {
        pb::ChunkRecord {
            shape: Some(record.shape.into()),
            stream: record.stream.0,
            index: record.index,
            sealed_length: match record.state {
                ChunkState::Granted => None,
                ChunkState::Sealed { length } => Some(length),
            },
            copies: record
                .copies
                .into_iter()
                .map(|copy| pb::Copy { device: copy.device.0, role: pb::Role::Replica as i32, whole: copy.whole })
                .collect(),
        }
    }
}

impl TryFrom<pb::ChunkRecord> for ChunkRecord {
    type Error = Error;
    fn try_from(record: pb::ChunkRecord) -> Result<Self, Error> {
        let copies = record.copies.into_iter().map(|copy| match pb::Role::try_from(copy.role) {
            Ok(pb::Role::Replica) => Ok(Copy { device: DeviceId(copy.device), role: Role::Replica, whole: copy.whole }),
            Err(_) => Err(Error::Invalid(format!("field `role` is unknown: {}", copy.role))),
        });
        Ok(ChunkRecord {
            shape: need(record.shape, "shape")?.try_into()?,
            stream: StreamId(record.stream),
            index: record.index,
            state: record.sealed_length.map_or(ChunkState::Granted, |length| ChunkState::Sealed { length }),
            copies: copies.collect::<Result<_, _>>()?,
        })
    }
}

impl From<StreamRecord> for pb::StreamRecord {
    fn from(record: StreamRecord) -> Self {
        pb::StreamRecord { stream: record.stream.0, chunks: record.chunks.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<pb::StreamRecord> for StreamRecord {
    type Error = Error;
    fn try_from(record: pb::StreamRecord) -> Result<Self, Error> {
        Ok(StreamRecord { stream: StreamId(record.stream), chunks: all(record.chunks)? })
    }
}

impl From<Replication> for pb::Replication {
    fn from(replication: Replication) -> Self {
        pb::Replication { max_copy: replication.max_copy.into(), min_copy: replication.min_copy.into() }
    }
}

impl TryFrom<pb::Replication> for Replication {
    type Error = Error;
    fn try_from(replication: pb::Replication) -> Result<Self, Error> {
        Ok(Replication { max_copy: fit(replication.max_copy, "max_copy")?, min_copy: fit(replication.min_copy, "min_copy")? })
    }
}

impl pb::GrantChunksRequest {
    /// The message of a grant.
    #[must_use]
    pub fn new(id: RequestId, grant: Grant) -> Self {
        pb::GrantChunksRequest {
            request_id: id.0.to_be_bytes().to_vec(),
            stream: grant.stream.0,
            epoch: grant.epoch.0,
            count: grant.count,
            capacity: grant.capacity,
            class: grant.class as i32,
            avoid: grant.avoid.into_iter().map(|device| device.0).collect(),
        }
    }
}

impl TryFrom<pb::GrantChunksRequest> for Grant {
    type Error = Error;
    fn try_from(request: pb::GrantChunksRequest) -> Result<Self, Error> {
        Ok(Grant {
            stream: StreamId(request.stream),
            epoch: Epoch(request.epoch),
            count: request.count,
            capacity: request.capacity,
            class: class(request.class)?,
            avoid: request.avoid.into_iter().map(DeviceId).collect(),
        })
    }
}

impl pb::SealChunkRequest {
    /// The message of a seal.
    #[must_use]
    pub fn new(id: RequestId, seal: SealChunk) -> Self {
        pb::SealChunkRequest {
            request_id: id.0.to_be_bytes().to_vec(),
            chunk: seal.chunk.0,
            epoch: seal.epoch.0,
            length: seal.length,
            whole: seal.whole.into_iter().map(|device| device.0).collect(),
        }
    }
}

impl From<pb::SealChunkRequest> for SealChunk {
    fn from(request: pb::SealChunkRequest) -> Self {
        SealChunk {
            chunk: ChunkId(request.chunk),
            epoch: Epoch(request.epoch),
            length: request.length,
            whole: request.whole.into_iter().map(DeviceId).collect(),
        }
    }
}

impl pb::ReportBadCopyRequest {
    /// The message of a report.
    #[must_use]
    pub fn new(id: RequestId, bad: BadCopy) -> Self {
        pb::ReportBadCopyRequest {
            request_id: id.0.to_be_bytes().to_vec(),
            chunk: bad.chunk.0,
            device: bad.device.0,
            reason: bad.reason,
        }
    }
}

impl From<pb::ReportBadCopyRequest> for BadCopy {
    fn from(request: pb::ReportBadCopyRequest) -> Self {
        BadCopy { chunk: ChunkId(request.chunk), device: DeviceId(request.device), reason: request.reason }
    }
}
