//! Nodes, their devices and their orders.

use super::chunk::alignment;
use super::{all, cluster_id, need};
use crate::proto::master as pb;
use api_types::master::{DeviceAddress, DeviceReport, Error, NodeOrders, NodeReport, Order, OrderResult, Work};
use api_types::{ChunkId, DeviceId, Epoch, NodeName, VolumeId};

impl From<DeviceAddress> for pb::DeviceAddress {
    fn from(address: DeviceAddress) -> Self {
        pb::DeviceAddress { device: address.device.0, node: address.node.0, endpoint: address.endpoint, media: address.media }
    }
}

impl From<pb::DeviceAddress> for DeviceAddress {
    fn from(address: pb::DeviceAddress) -> Self {
        DeviceAddress {
            device: DeviceId(address.device),
            node: NodeName(address.node),
            endpoint: address.endpoint,
            media: address.media,
        }
    }
}

impl From<DeviceReport> for pb::DeviceReport {
    fn from(report: DeviceReport) -> Self {
        pb::DeviceReport {
            address: Some(report.address.into()),
            capacity_bytes: report.capacity_bytes,
            free_bytes: report.free_bytes,
            alignment_shift: u32::from(report.alignment.shift()),
            healthy: report.healthy,
        }
    }
}

impl TryFrom<pb::DeviceReport> for DeviceReport {
    type Error = Error;
    fn try_from(report: pb::DeviceReport) -> Result<Self, Error> {
        Ok(DeviceReport {
            address: need(report.address, "address")?.into(),
            capacity_bytes: report.capacity_bytes,
            free_bytes: report.free_bytes,
            alignment: alignment(report.alignment_shift)?,
            healthy: report.healthy,
        })
    }
}

fn epochs_out(epochs: Vec<(VolumeId, Epoch)>) -> Vec<pb::VolumeEpoch> {
    epochs.into_iter().map(|(volume, epoch)| pb::VolumeEpoch { volume: volume.0, epoch: epoch.0 }).collect()
}

fn epochs_in(epochs: Vec<pb::VolumeEpoch>) -> Vec<(VolumeId, Epoch)> {
    epochs.into_iter().map(|it| (VolumeId(it.volume), Epoch(it.epoch))).collect()
}

impl From<NodeReport> for pb::NodeReport {
    fn from(report: NodeReport) -> Self {
        pb::NodeReport {
            node: report.node.0,
            cluster: report.cluster.0.to_be_bytes().to_vec(),
            labels: report.labels.into_iter().collect(),
            devices: report.devices.into_iter().map(Into::into).collect(),
            volumes: epochs_out(report.volumes),
            done: report.done.into_iter().map(|done| pb::OrderResult { id: done.id, error: done.error }).collect(),
        }
    }
}

impl TryFrom<pb::NodeReport> for NodeReport {
    type Error = Error;
    fn try_from(report: pb::NodeReport) -> Result<Self, Error> {
        if report.node.is_empty() {
            return Err(Error::Invalid("field `node` is empty".to_owned()));
        }
        Ok(NodeReport {
            node: NodeName(report.node),
            cluster: cluster_id(&report.cluster)?,
            labels: report.labels.into_iter().collect(),
            devices: all(report.devices)?,
            volumes: epochs_in(report.volumes),
            done: report.done.into_iter().map(|done| OrderResult { id: done.id, error: done.error }).collect(),
        })
    }
}

impl From<Order> for pb::Order {
    fn from(order: Order) -> Self {
        let work = match order.work {
            Work::Delete(chunk) => pb::order::Work::DeleteChunk(chunk.0),
            Work::Repair { shape, length, sources } => pb::order::Work::Repair(pb::Repair {
                shape: Some(shape.into()),
                length,
                sources: sources.into_iter().map(|device| device.0).collect(),
            }),
        };
        pb::Order { id: order.id, device: order.device.0, work: Some(work) }
    }
}

impl TryFrom<pb::Order> for Order {
    type Error = Error;
    fn try_from(order: pb::Order) -> Result<Self, Error> {
        let work = match need(order.work, "work")? {
            pb::order::Work::DeleteChunk(chunk) => Work::Delete(ChunkId(chunk)),
            pb::order::Work::Repair(repair) => Work::Repair {
                shape: need(repair.shape, "shape")?.try_into()?,
                length: repair.length,
                sources: repair.sources.into_iter().map(DeviceId).collect(),
            },
        };
        Ok(Order { id: order.id, device: DeviceId(order.device), work })
    }
}

impl From<NodeOrders> for pb::NodeOrders {
    fn from(orders: NodeOrders) -> Self {
        pb::NodeOrders {
            orders: orders.orders.into_iter().map(Into::into).collect(),
            epochs: epochs_out(orders.epochs),
            lease_ms: orders.lease_ms,
        }
    }
}

impl TryFrom<pb::NodeOrders> for NodeOrders {
    type Error = Error;
    fn try_from(orders: pb::NodeOrders) -> Result<Self, Error> {
        Ok(NodeOrders { orders: all(orders.orders)?, epochs: epochs_in(orders.epochs), lease_ms: orders.lease_ms })
    }
}
