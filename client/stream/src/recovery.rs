//! Fencing and recovery: what a new owner does before it writes.
//!
//! Each chunk that isn't sealed at the masters is sealed on its copies with the new epoch. Any `max_copy - min_copy + 1`
//! answers include one of every set of `min_copy` copies that an append was committed on, and a copy that has answered
//! takes nothing of the old epoch any more; so the longest answer covers every committed byte, and no byte can be
//! committed afterwards.

use crate::Error;
use crate::client::Client;
use api_types::chunk::{self, Request, Response, Seal, Sealed};
use api_types::master::{ChunkRecord, ChunkState, Replication, SealChunk};
use api_types::{ChunkId, DeviceId, Epoch, OwnerId, Rule, StreamId};
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::time::Duration;

/// Chunks recovered at once.
const CHUNKS_AT_ONCE: usize = 16;

/// What the copies of one chunk have answered. Pure.
#[derive(Debug)]
pub(crate) struct Answers {
    needed: usize,
    lengths: BTreeMap<DeviceId, u32>,
}

impl Answers {
    /// Counts by the pool's `max_copy`, not by the copies in the chunk's record: the masters strike off those of a node
    /// that is forgotten, and such a copy may have been one of the `min_copy` of a commit.
    pub(crate) fn new(replication: Replication) -> Self {
        let needed = usize::from(replication.max_copy - replication.min_copy) + 1;
        Answers { needed, lengths: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, device: DeviceId, sealed: Sealed) {
        let length = match sealed {
            Sealed::At(length) => length,
            Sealed::Absent => 0,
        };
        self.lengths.insert(device, length);
    }

    pub(crate) fn is_enough(&self) -> bool {
        self.lengths.len() >= if Rule::SealQuorum.is_kept() { self.needed } else { 1 }
    }

    /// The length that covers every committed byte.
    pub(crate) fn length(&self) -> Option<u32> {
        if !self.is_enough() {
            return None;
        }
        let lengths = self.lengths.values().copied();
        if Rule::SealLongest.is_kept() { lengths.max() } else { lengths.min() }
    }

    /// The copies that hold every byte up to `length`.
    pub(crate) fn whole(&self, length: u32) -> Vec<DeviceId> {
        self.lengths.iter().filter(|(_, has)| **has >= length).map(|(device, _)| *device).collect()
    }

    /// The copies that hold more than `length`.
    fn longer(&self, length: u32) -> Vec<DeviceId> {
        self.lengths.iter().filter(|(_, has)| **has > length).map(|(device, _)| *device).collect()
    }
}

/// Recovers a whole stream; see [`Client::recover`].
pub(crate) async fn recover(
    client: &Client,
    stream: StreamId,
    epoch: Epoch,
    replication: Replication,
) -> Result<Vec<ChunkRecord>, Error> {
    let record = client.deps().master.stream(stream).await?;
    let tasks = record.chunks.into_iter().map(|chunk| recover_chunk(client, chunk, epoch, replication));
    let chunks: Vec<Option<ChunkRecord>> = futures::stream::iter(tasks).buffered(CHUNKS_AT_ONCE).try_collect().await?;
    let (mut kept, mut empty): (Vec<ChunkRecord>, Vec<ChunkId>) = (Vec::new(), Vec::new());
    for chunk in chunks.into_iter().flatten() {
        match chunk.state {
            ChunkState::Sealed { length: 0 } => empty.push(chunk.shape.chunk),
            _ => kept.push(chunk),
        }
    }
    if !empty.is_empty() {
        client.deps().master.delete_chunks(stream, epoch, empty).await?;
    }
    for chunk in &kept {
        client.directory().insert(chunk.clone());
    }
    Ok(kept)
}

async fn recover_chunk(
    client: &Client,
    mut record: ChunkRecord,
    epoch: Epoch,
    replication: Replication,
) -> Result<Option<ChunkRecord>, Error> {
    if let ChunkState::Sealed { .. } = record.state {
        return Ok(Some(record));
    }
    let (chunk, owner) = (record.shape.chunk, record.shape.owner);
    let answers = ask_copies(client, &record, owner, epoch, replication).await?;
    let length = answers.length().unwrap_or(0);
    let seal = SealChunk { chunk, epoch, length, whole: answers.whole(length) };
    let recorded = client.deps().master.seal(seal).await?;
    // What lies beyond was never committed. A copy that can't be cut now keeps bytes that nobody will ever ask for.
    for device in answers.longer(recorded) {
        let seal = Seal { chunk, owner, epoch, length: Some(recorded) };
        let limit = client.config().seal_timeout;
        let cut = client.call(device, Request::Seal(seal), limit);
        tokio::task::spawn_local(async move { drop(cut.await) });
    }
    record.state = ChunkState::Sealed { length: recorded };
    for copy in &mut record.copies {
        copy.whole = answers.lengths.get(&copy.device).is_some_and(|has| *has >= recorded);
    }
    Ok(Some(record))
}

/// Seals every copy with the new epoch, until enough have answered and the rest had a moment more.
async fn ask_copies(
    client: &Client,
    record: &ChunkRecord,
    owner: OwnerId,
    epoch: Epoch,
    replication: Replication,
) -> Result<Answers, Error> {
    let (config, clock) = (client.config(), client.deps().clock.clone());
    let chunk = record.shape.chunk;
    let started = clock.now();
    let mut answers = Answers::new(replication);
    let mut asked: FuturesUnordered<_> =
        record.copies.iter().map(|copy| ask_one(client, copy.device, chunk, owner, epoch, Duration::ZERO)).collect();
    let mut enough_at = None;
    let mut failed: BTreeMap<DeviceId, String> = BTreeMap::new();
    loop {
        let now = clock.now();
        let end = enough_at.map_or(started + config.recover_limit, |at: Duration| at + config.recover_linger);
        if now >= end {
            break;
        }
        let sleep = clock.sleep(end - now);
        tokio::select! {
            biased;
            answer = asked.next() => match answer {
                None => break,
                Some((device, Ok(sealed))) => {
                    failed.remove(&device);
                    answers.add(device, sealed);
                }
                Some((_, Err(chunk::Error::Fenced { .. }))) => return Err(Error::Fenced),
                Some((device, Err(error))) => {
                    failed.insert(device, error.to_string());
                    if enough_at.is_none() {
                        asked.push(ask_one(client, device, chunk, owner, epoch, config.retry_wait_max));
                    }
                }
            },
            () = sleep => break,
        }
        if enough_at.is_none() && answers.is_enough() {
            enough_at = Some(clock.now());
        }
    }
    if answers.is_enough() {
        return Ok(answers);
    }
    let who: Vec<String> = failed.iter().map(|(device, why)| format!("{device} ({why})")).collect();
    Err(Error::Unavailable(format!(
        "chunk {chunk} can't be closed: {} of {} copies answered, {} are needed; no answer of {}",
        answers.lengths.len(),
        record.copies.len(),
        answers.needed,
        who.join(", ")
    )))
}

async fn ask_one(
    client: &Client,
    device: DeviceId,
    chunk: ChunkId,
    owner: OwnerId,
    epoch: Epoch,
    wait: Duration,
) -> (DeviceId, Result<Sealed, chunk::Error>) {
    if !wait.is_zero() {
        client.deps().clock.sleep(wait).await;
    }
    let request = Request::Seal(Seal { chunk, owner, epoch, length: None });
    let result = match client.call(device, request, client.config().seal_timeout).await {
        Ok(Response::Seal(sealed)) => Ok(sealed),
        Ok(_) => Err(chunk::Error::Invalid("the store answered something else than was asked".to_owned())),
        Err(error) => Err(error),
    };
    (device, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_enough_answers_is_the_length() {
        let mut answers = Answers::new(Replication { max_copy: 3, min_copy: 2 });
        answers.add(DeviceId(1), Sealed::At(512));
        assert_eq!(answers.length(), None);
        answers.add(DeviceId(2), Sealed::Absent);
        assert_eq!(answers.length(), Some(512));
        assert_eq!(answers.whole(512), [DeviceId(1)]);
        answers.add(DeviceId(3), Sealed::At(1024));
        assert_eq!((answers.length(), answers.longer(512)), (Some(1024), vec![DeviceId(3)]));
    }

    #[test]
    fn the_same_copy_twice_is_one_answer() {
        let mut answers = Answers::new(Replication { max_copy: 3, min_copy: 2 });
        answers.add(DeviceId(1), Sealed::At(512));
        answers.add(DeviceId(1), Sealed::At(512));
        assert!(!answers.is_enough());
    }
}
