//! What a store has answered a seal with holds, whatever happens to the store afterwards: its copy takes no append of an
//! older epoch any more, and in the end it is still sealed, at the length at which it was cut or, made whole again by
//! repair, at the one that the masters have recorded.

use api_types::chunk::{ChunkInfo, Request, Response, Sealed};
use api_types::{ChunkId, DeviceId, Epoch};
use std::collections::BTreeMap;

/// What each store answered to whoever sealed one of its copies.
#[derive(Debug, Default)]
pub struct Seals(BTreeMap<(DeviceId, ChunkId), Answered>);

#[derive(Debug, Default)]
struct Answered {
    /// The newest epoch in which it was sealed.
    epoch: Epoch,
    /// Where it was cut, if somebody said where.
    cut: Option<u32>,
}

/// A request of which the answer will be judged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked {
    /// To seal, in this epoch, and perhaps at this length.
    Seal(ChunkId, Epoch, Option<u32>),
    /// To append, in an epoch that had ended by the second one when the request arrived.
    Late(ChunkId, Epoch, Epoch),
}

impl Seals {
    /// Looks at a request that has arrived at a store.
    pub(crate) fn arrived(&self, device: DeviceId, request: &Request) -> Option<Asked> {
        match request {
            Request::Seal(seal) => Some(Asked::Seal(seal.chunk, seal.epoch, seal.length)),
            Request::Append(append) => {
                let sealed = self.0.get(&(device, append.chunk))?.epoch;
                (append.epoch < sealed).then_some(Asked::Late(append.chunk, append.epoch, sealed))
            }
            _ => None,
        }
    }

    /// Looks at what the store answers.
    pub(crate) fn answered(&mut self, device: DeviceId, asked: Asked, answer: &Response) -> Result<(), String> {
        match (asked, answer) {
            (Asked::Seal(chunk, epoch, length), Response::Seal(sealed)) => {
                let answered = self.0.entry((device, chunk)).or_default();
                answered.epoch = answered.epoch.max(epoch);
                if let (Some(length), Sealed::At(at)) = (length, sealed)
                    && length == *at
                {
                    answered.cut = Some(length);
                }
                Ok(())
            }
            (Asked::Late(chunk, epoch, sealed), Response::Append(_)) => {
                Err(format!("{device} took an append of {epoch} to {chunk}, which it had sealed in {sealed}"))
            }
            _ => Ok(()),
        }
    }

    /// Looks at a copy as it is in the end; `recorded` is where the masters say that the chunk ends.
    pub(crate) fn check(&self, device: DeviceId, info: &ChunkInfo, recorded: Option<u32>) -> Result<(), String> {
        let Some(answered) = self.0.get(&(device, info.shape.chunk)) else { return Ok(()) };
        if info.sealed && answered.cut.is_none_or(|cut| cut == info.length || recorded == Some(info.length)) {
            return Ok(());
        }
        Err(format!("{device} had answered a seal with {answered:?}, and its copy is now {info:?}"))
    }
}
