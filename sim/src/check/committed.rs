//! No committed byte is lost or changed: a unit that was acknowledged is found by every later recovery, once, at its
//! place in the order, with its bytes.

use crate::clock::Chance;
use api_types::{Epoch, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// Names a unit of the workload: who wrote it, and its number in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit {
    pub(crate) epoch: Epoch,
    pub(crate) number: u64,
}

impl Unit {
    pub(crate) fn trailer(self) -> Vec<u8> {
        [self.epoch.0.to_le_bytes(), self.number.to_le_bytes()].concat()
    }

    pub(crate) fn from_trailer(trailer: &[u8]) -> Option<Unit> {
        let (epoch, number) = trailer.split_at_checked(8)?;
        let epoch = Epoch(u64::from_le_bytes(epoch.try_into().ok()?));
        Some(Unit { epoch, number: u64::from_le_bytes(number.try_into().ok()?) })
    }
}

/// The bytes that a unit of this length holds.
pub(crate) fn bytes_of(unit: Unit, length: usize) -> Vec<u8> {
    let chance = Chance::new(unit.epoch.0 ^ unit.number.rotate_left(32));
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&chance.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// See the module.
#[derive(Debug, Default)]
pub struct Committed {
    lengths: BTreeMap<Unit, usize>,
    acknowledged: BTreeSet<Unit>,
    newest: Epoch,
    found: BTreeSet<Unit>,
}

impl Committed {
    /// How many units were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    pub(crate) fn appended(&mut self, unit: Unit, length: usize) {
        self.lengths.insert(unit, length);
    }

    /// A unit was acknowledged: if a newer writer has recovered already, it must have found it.
    pub(crate) fn acknowledge(&mut self, unit: Unit) -> Result<(), String> {
        self.acknowledged.insert(unit);
        if unit.epoch < self.newest && !self.found.contains(&unit) {
            return Err(format!("{unit:?} is acknowledged, but the writer of {} did not find it", self.newest));
        }
        Ok(())
    }

    /// Whether a unit holds what was appended.
    pub(crate) fn verify(&self, unit: Unit, data: &[u8]) -> Result<(), String> {
        match self.lengths.get(&unit) {
            None => Err(format!("{unit:?} was never appended")),
            Some(length) if *length == data.len() && bytes_of(unit, *length) == data => Ok(()),
            Some(_) => Err(format!("{unit:?} changed")),
        }
    }

    /// A writer of `epoch` has recovered and found these units, in this order.
    pub(crate) fn recovered(&mut self, epoch: Epoch, units: &[Unit]) -> Result<(), String> {
        if epoch < self.newest {
            return Ok(());
        }
        let found: BTreeSet<Unit> = units.iter().copied().collect();
        self.newest = epoch;
        let lost = self.acknowledged.iter().find(|unit| unit.epoch < epoch && !found.contains(unit)).copied();
        self.found = found;
        if let Some(pair) = units.windows(2).find(|pair| pair[0].number >= pair[1].number) {
            return Err(format!("order: {:?} before {:?}", pair[0], pair[1]));
        }
        lost.map_or(Ok(()), |unit| Err(format!("lost: {unit:?} was acknowledged, and the writer of {epoch} does not find it")))
    }
}
