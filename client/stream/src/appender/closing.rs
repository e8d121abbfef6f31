//! A chunk its writer has left: the copies that are behind are drained from memory, then cut and sealed, then the
//! masters are told the length and which copies are whole.

use super::chunk::{Chunk, CopyState};
use crate::Config;
use api_types::chunk::{self, Sealed};
use api_types::{ChunkId, DeviceId, Rule};
use std::time::Duration;

/// What sealing has come to on one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SealState {
    /// Not everything committed is there yet.
    Draining,
    /// To be asked at `again`, not after `until`.
    Asking { again: Duration, until: Duration, wait: Duration },
    /// Asked, no answer yet.
    Asked { until: Duration, wait: Duration },
    /// Answered, or not asked any more. The length it has, when known.
    Done(Option<u32>),
}

/// What the masters know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Copies first.
    Waiting,
    /// The seal has to be recorded, not before this.
    Record { after: Duration, wait: Duration },
    /// The seal is being recorded.
    Recording { wait: Duration },
    /// Recorded, and empty: has to be deleted, not before this.
    Delete { after: Duration, tries: u32 },
    /// Is being deleted.
    Deleting { tries: u32 },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) chunk: Chunk,
    seals: Vec<SealState>,
    pub(super) report: Report,
}

impl Closing {
    /// Begins to close a chunk at what is committed in it. A chunk that was never written to needs no answer of any
    /// copy: only its writer could have made it exist, and won't.
    pub(super) fn new(chunk: Chunk, now: Duration) -> Self {
        let first = if chunk.touched { SealState::Draining } else { SealState::Done(Some(0)) };
        let seals = vec![first; chunk.copies.len()];
        let report = if chunk.touched { Report::Waiting } else { Report::Record { after: now, wait: Duration::ZERO } };
        Closing { chunk, seals, report }
    }

    pub(super) fn id(&self) -> ChunkId {
        self.chunk.id()
    }

    /// Where the chunk ends for ever.
    pub(super) fn length(&self) -> u32 {
        self.chunk.committed
    }

    /// Copies are still being drained or sealed.
    pub(super) fn busy(&self) -> bool {
        self.report == Report::Waiting
    }

    /// Moves copies on; returns the devices to send a seal to.
    pub(super) fn advance(&mut self, config: &Config, now: Duration) -> Vec<DeviceId> {
        let mut ask = Vec::new();
        if !self.busy() {
            return ask;
        }
        self.chunk.judge_silence(config, now);
        let length = self.chunk.committed;
        for (copy, seal) in self.chunk.copies.iter().zip(&mut self.seals) {
            if *seal == SealState::Draining {
                let whole = copy.acked >= length;
                // A copy that was given up is asked just once: the seal is a kindness to it, nothing waits for it long.
                let limit = if copy.state == CopyState::GivenUp { Duration::ZERO } else { config.seal_limit };
                if whole || copy.state == CopyState::GivenUp {
                    *seal = SealState::Asking { again: now, until: now + limit, wait: Duration::ZERO };
                }
            }
            if let SealState::Asking { again, until, wait } = *seal
                && again <= now
            {
                *seal = SealState::Asked { until, wait };
                ask.push(copy.device);
            }
        }
        self.chunk.trim();
        if self.seals.iter().all(|seal| matches!(seal, SealState::Done(_))) {
            self.report = Report::Record { after: now, wait: Duration::ZERO };
        }
        ask
    }

    /// Takes the answer to a seal; true when it says that a newer writer exists.
    pub(super) fn sealed(
        &mut self,
        device: DeviceId,
        result: Result<Sealed, chunk::Error>,
        config: &Config,
        now: Duration,
    ) -> bool {
        let Some(at) = self.chunk.copies.iter().position(|copy| copy.device == device) else { return false };
        let SealState::Asked { until, wait } = self.seals[at] else { return false };
        self.seals[at] = match result {
            Ok(Sealed::At(length)) => SealState::Done(Some(length)),
            Ok(Sealed::Absent) => SealState::Done(Some(0)),
            Err(chunk::Error::Fenced { .. }) => return true,
            Err(chunk::Error::Unreachable(_) | chunk::Error::Deadline | chunk::Error::Busy) if now < until => {
                let wait = (wait * 2).clamp(config.retry_wait, config.retry_wait_max);
                SealState::Asking { again: now + wait, until, wait }
            }
            Err(_) => SealState::Done(None),
        };
        false
    }

    /// The devices known to hold every byte: they have said so to an append, and to the seal if that was answered.
    pub(super) fn whole(&self) -> Vec<DeviceId> {
        let length = self.chunk.committed;
        if length == 0 {
            return Vec::new();
        }
        let holds = |acked: u32, seal: &SealState| match seal {
            _ if !Rule::WholeMeansAll.is_kept() => true,
            SealState::Done(Some(sealed)) => *sealed >= length,
            _ => acked >= length,
        };
        let pairs = self.chunk.copies.iter().zip(&self.seals);
        pairs.filter(|(copy, seal)| holds(copy.acked, seal)).map(|(copy, _)| copy.device).collect()
    }

    /// When something has to be looked at again though nothing happens.
    pub(super) fn deadline(&self, config: &Config) -> Option<Duration> {
        match self.report {
            Report::Waiting => {
                let seals = self.seals.iter().filter_map(|seal| match seal {
                    SealState::Asking { again, .. } => Some(*again),
                    _ => None,
                });
                seals.chain(self.chunk.deadline(config)).min()
            }
            Report::Record { after, .. } | Report::Delete { after, .. } => Some(after),
            Report::Recording { .. } | Report::Deleting { .. } => None,
        }
    }
}
