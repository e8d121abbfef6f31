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

    /// A writer of `epoch` has recovered and found these units, in this order. What it says of older epochs counts even if
    /// a newer writer was faster; only what may still be acknowledged is judged by the newest one.
    pub(crate) fn recovered(&mut self, epoch: Epoch, units: &[Unit]) -> Result<(), String> {
        let found: BTreeSet<Unit> = units.iter().copied().collect();
        let lost = self.acknowledged.iter().find(|unit| unit.epoch < epoch && !found.contains(unit)).copied();
        if epoch >= self.newest {
            self.newest = epoch;
            self.found = found;
        }
        if let Some(pair) = units.windows(2).find(|pair| pair[0].number >= pair[1].number) {
            return Err(format!("order: {:?} before {:?}", pair[0], pair[1]));
        }
        lost.map_or(Ok(()), |unit| Err(format!("lost: {unit:?} was acknowledged, and the writer of {epoch} does not find it")))
    }
}

#[cfg(test)]
mod tests {
    use super::{Committed, Unit, bytes_of};
    use api_types::Epoch;

    fn unit(epoch: u64, number: u64) -> Unit {
        Unit { epoch: Epoch(epoch), number }
    }

    fn acknowledged(units: &[Unit]) -> Committed {
        let mut checker = Committed::default();
        for unit in units {
            checker.appended(*unit, 100);
            checker.acknowledge(*unit).unwrap();
        }
        checker
    }

    #[test]
    fn a_recovery_that_misses_an_acknowledged_unit_is_found() {
        let all = [unit(1, 1), unit(1, 2), unit(1, 3)];
        assert!(acknowledged(&all).recovered(Epoch(2), &all).is_ok());
        assert!(acknowledged(&all).recovered(Epoch(2), &all[..2]).unwrap_err().starts_with("lost"));
        assert!(acknowledged(&all).recovered(Epoch(2), &[all[0], all[2]]).unwrap_err().starts_with("lost"));
    }

    #[test]
    fn a_unit_that_was_not_acknowledged_may_be_there_or_not() {
        let mut checker = acknowledged(&[unit(1, 1)]);
        checker.appended(unit(1, 2), 100);
        assert!(checker.recovered(Epoch(2), &[unit(1, 1), unit(1, 2)]).is_ok());
        assert!(checker.recovered(Epoch(3), &[unit(1, 1)]).is_ok());
    }

    #[test]
    fn units_out_of_order_are_found() {
        let mut checker = acknowledged(&[unit(1, 1), unit(1, 2)]);
        assert!(checker.recovered(Epoch(2), &[unit(1, 2), unit(1, 1)]).unwrap_err().starts_with("order"));
    }

    #[test]
    fn a_late_acknowledgement_counts_only_if_the_newer_writer_found_the_unit() {
        let mut checker = acknowledged(&[unit(1, 1)]);
        checker.appended(unit(1, 2), 100);
        checker.appended(unit(1, 3), 100);
        checker.recovered(Epoch(2), &[unit(1, 1), unit(1, 2)]).unwrap();
        assert!(checker.acknowledge(unit(1, 2)).is_ok());
        assert!(checker.acknowledge(unit(1, 3)).unwrap_err().contains("did not find it"));
    }

    #[test]
    fn a_recovery_that_was_overtaken_is_judged_too_and_changes_nothing_for_the_newest() {
        let mut checker = acknowledged(&[unit(1, 1), unit(1, 2)]);
        checker.appended(unit(1, 3), 100);
        checker.recovered(Epoch(3), &[unit(1, 1), unit(1, 2), unit(1, 3)]).unwrap();
        assert!(checker.recovered(Epoch(2), &[unit(1, 1)]).unwrap_err().starts_with("lost"));
        assert!(checker.acknowledge(unit(1, 3)).is_ok());
    }

    #[test]
    fn changed_cut_and_unknown_units_are_found() {
        let checker = acknowledged(&[unit(1, 1)]);
        let mut bytes = bytes_of(unit(1, 1), 100);
        assert!(checker.verify(unit(1, 1), &bytes).is_ok());
        assert!(checker.verify(unit(1, 1), &bytes[..99]).is_err());
        assert!(checker.verify(unit(2, 1), &bytes).unwrap_err().contains("never appended"));
        bytes[50] ^= 1;
        assert!(checker.verify(unit(1, 1), &bytes).unwrap_err().contains("changed"));
    }

    #[test]
    fn a_trailer_names_its_unit() {
        assert_eq!(Unit::from_trailer(&unit(3, 9).trailer()), Some(unit(3, 9)));
        assert_eq!(Unit::from_trailer(&[0; 15]), None);
    }
}
