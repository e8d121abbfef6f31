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
