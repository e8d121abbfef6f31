//! What a beat brings, and what it is answered: news for the log, orders, epochs.

use crate::command::Body;
use crate::nodes::Device;
use crate::state::State;
use api_types::master::{ChunkState, DeviceReport, Error, NodeReport, Order, Work};
use api_types::{ChunkId, DeviceId, Epoch, NodeName, VolumeId};

/// The most orders one beat is answered.
const ORDERS_MAX: usize = 64;
/// Free space is news when it moved by this part of the capacity.
const FREE_STEP_DIVISOR: u64 = 64;

impl State {
    /// What a beat brings that must be remembered; `None` when all is as before, so that an idle cluster logs nothing.
    /// [`Error::NotFound`]: the node or a device isn't known, it must register.
    pub fn news(&self, report: &NodeReport) -> Result<Option<Body>, Error> {
        self.check_report(report)?;
        if !self.nodes.contains_key(&report.node) {
            return Err(Error::NotFound { what: format!("node `{}`", report.node) });
        }
        let mut devices = Vec::new();
        for device in report.devices.iter().filter(|device| !self.upkeep.is_removed(device.address.device)) {
            let id = device.address.device;
            let known = self.devices.get(&id).filter(|known| known.address.node == report.node);
            let known = known.ok_or_else(|| Error::NotFound { what: format!("device {id} on node `{}`", report.node) })?;
            if device.address.node == report.node && changed(known, device) {
                devices.push(device.clone());
            }
        }
        let ours = |id: &u64| {
            self.devices.values().any(|device| {
                device.address.node == report.node && (device.deletes.contains_key(id) || device.repairs.contains_key(id))
            })
        };
        let done: Vec<_> = report.done.iter().filter(|result| ours(&result.id)).cloned().collect();
        let news = !devices.is_empty() || !done.is_empty();
        Ok(news.then(|| Body::Observe { node: report.node.clone(), devices, done }))
    }

    /// What a node's agent should do: repairs first, then deletions.
    #[must_use]
    pub fn orders_for(&self, node: &NodeName) -> Vec<Order> {
        let devices = || self.devices.iter().filter(|(_, device)| device.address.node == *node);
        let repairs = devices()
            .flat_map(|(id, device)| device.repairs.iter().filter_map(|(order, chunk)| self.repair_order(*order, *id, *chunk)));
        let deletes = devices().flat_map(|(id, device)| {
            device.deletes.iter().map(|(order, doomed)| Order { id: *order, device: *id, work: Work::Delete(doomed.chunk) })
        });
        repairs.chain(deletes).take(ORDERS_MAX).collect()
    }

    fn repair_order(&self, order: u64, target: DeviceId, chunk: ChunkId) -> Option<Order> {
        let record = &self.chunks.get(&chunk)?.record;
        let ChunkState::Sealed { length } = record.state else { return None };
        let usable = |device: &DeviceId| self.devices.get(device).is_some_and(|device| !device.lost(&self.upkeep));
        let whole = record.copies.iter().filter(|copy| copy.whole && copy.device != target).map(|copy| copy.device);
        let sources: Vec<DeviceId> = whole.filter(usable).collect();
        if sources.is_empty() {
            return None;
        }
        Some(Order { id: order, device: target, work: Work::Repair { shape: record.shape, length, sources } })
    }

    /// The newest epoch of each volume; `u64::MAX` for one that is gone.
    #[must_use]
    pub fn epochs_of(&self, volumes: &[(VolumeId, Epoch)]) -> Vec<(VolumeId, Epoch)> {
        let newest = |id: &VolumeId| self.volumes.get(id).map_or(Epoch(u64::MAX), |volume| volume.epoch);
        volumes.iter().map(|(id, _)| (*id, newest(id))).collect()
    }
}

fn changed(known: &Device, report: &DeviceReport) -> bool {
    let step = (report.capacity_bytes / FREE_STEP_DIVISOR).max(1);
    known.address != report.address
        || known.healthy != report.healthy
        || known.alignment != report.alignment
        || known.capacity_bytes != report.capacity_bytes
        || known.free_bytes.abs_diff(report.free_bytes) >= step
}
