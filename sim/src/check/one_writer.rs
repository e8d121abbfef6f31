//! One writer at a time: what is appended after a newer writer has recovered is never acknowledged.

use api_types::Epoch;
use std::collections::BTreeMap;
use std::time::Duration;

/// See the module.
#[derive(Debug, Default)]
pub struct OneWriter {
    recovered: BTreeMap<Epoch, Duration>,
}

impl OneWriter {
    pub(crate) fn recovered(&mut self, epoch: Epoch, at: Duration) {
        self.recovered.insert(epoch, at);
    }

    pub(crate) fn acknowledge(&self, epoch: Epoch, appended_at: Duration) -> Result<(), String> {
        let newer = self.recovered.iter().find(|(other, at)| **other > epoch && **at < appended_at);
        newer.map_or(Ok(()), |(other, at)| {
            Err(format!(
                "two writers: {epoch} appended at {appended_at:?} and was acknowledged, though {other} had recovered at {at:?}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::OneWriter;
    use api_types::Epoch;
    use std::time::Duration;

    #[test]
    fn only_what_was_appended_before_a_newer_recovery_may_be_acknowledged() {
        let (before, after) = (Duration::from_secs(9), Duration::from_secs(11));
        let mut checker = OneWriter::default();
        checker.recovered(Epoch(2), Duration::from_secs(10));
        assert!(checker.acknowledge(Epoch(1), before).is_ok());
        assert!(checker.acknowledge(Epoch(1), after).unwrap_err().starts_with("two writers"));
        assert!(checker.acknowledge(Epoch(2), after).is_ok());
        assert!(checker.acknowledge(Epoch(3), after).is_ok());
    }
}
