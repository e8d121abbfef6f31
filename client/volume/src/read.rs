//! Reads: follow the map, join what stands together, check every block.

use crate::BlockError;
use crate::error::block_error;
use crate::leaves::{LOOKUPS_MAX, leaves_of};
use crate::map::Location;
use crate::stats::{Operation, Trace};
use crate::volume::{Inner, Phase};
use api_types::checksum::crc32c;
use api_types::limits::{BLOCK_BYTES, READ_BYTES_MAX};
use api_types::{ChunkId, QosClass};
use bytes::Bytes;
use client_stream::Error as StreamError;
use futures::stream::{StreamExt, TryStreamExt};
use std::rc::Rc;
use std::time::Duration;

/// Most bytes of one request.
const READ_MAX: u64 = 32 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of one chunk that are read with one request.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    chunk: ChunkId,
    offset: u32,
    length: u32,
    /// Place of the first block in the request.
    first: usize,
    /// Where in the run each block starts, and its checksum.
    blocks: Vec<(u32, u32)>,
}

/// Joins neighbours: blocks that follow each other both in the request and, but for a gap of at most `gap_max` bytes
/// (a trailer between two units, say), in their chunk.
fn runs(locations: &[Option<Location>], gap_max: u32) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (place, location) in locations.iter().enumerate() {
        let Some(location) = location else { continue };
        if let Some(run) = runs.last_mut()
            && run.chunk == location.chunk
            && run.first + run.blocks.len() == place
            && let Some(gap) = location.offset.checked_sub(run.offset + run.length)
            && gap <= gap_max
            && location.offset + BLOCK_BYTES - run.offset <= READ_BYTES_MAX
        {
            run.blocks.push((location.offset - run.offset, location.crc));
            run.length = location.offset + BLOCK_BYTES - run.offset;
            continue;
        }
        runs.push(Run {
            chunk: location.chunk,
            offset: location.offset,
            length: BLOCK_BYTES,
            first: place,
            blocks: vec![(0, location.crc)],
        });
    }
    runs
}

impl Run {
    fn verifies(&self, bytes: &[u8]) -> bool {
        let block = |start: u32| bytes.get(start as usize..(start + BLOCK_BYTES) as usize);
        self.blocks.iter().all(|(start, crc)| block(*start).is_some_and(|block| crc32c(block) == *crc))
    }

    /// The blocks without the gaps, neighbours in one part.
    fn cut(&self, bytes: &Bytes, parts: &mut Vec<Bytes>) {
        let mut start = 0;
        let mut end = 0;
        for (block, _) in &self.blocks {
            if *block != end {
                parts.push(bytes.slice(start as usize..end as usize));
                start = *block;
            }
            end = block + BLOCK_BYTES;
        }
        parts.push(bytes.slice(start as usize..end as usize));
    }
}

fn push_zeros(parts: &mut Vec<Bytes>, mut length: usize) {
    while length > 0 {
        let step = length.min(ZEROS.len());
        parts.push(Bytes::from_static(&ZEROS[..step]));
        length -= step;
    }
}

async fn fetch(inner: &Inner, run: &Run) -> Result<Bytes, StreamError> {
    let verify = |bytes: &[u8]| run.verifies(bytes);
    inner.streams.read(run.chunk, run.offset, run.length, QosClass::Foreground, &verify).await
}

async fn fetch_all(inner: &Inner, runs: &[Run]) -> Result<Vec<Bytes>, StreamError> {
    if let [run] = runs {
        return Ok(vec![fetch(inner, run).await?]);
    }
    let fetches = futures::stream::iter(runs.iter().map(|run| fetch(inner, run)));
    fetches.buffered(inner.config.read_parallel_max.max(1)).try_collect().await
}

async fn read_blocks(
    inner: &Rc<Inner>,
    first: u64,
    count: u64,
    place: &mut Option<(ChunkId, u32)>,
) -> Result<Vec<Bytes>, BlockError> {
    for _ in 0..LOOKUPS_MAX {
        let pins = match inner.try_pin(leaves_of(first, count)) {
            Some(pins) => pins,
            None => inner.pin(leaves_of(first, count).collect(), QosClass::Foreground).await?,
        };
        let locations: Vec<Option<Location>> = {
            let state = inner.state.borrow();
            (first..first + count).map(|block| state.map.get(block)).collect()
        };
        drop(pins);
        let runs = runs(&locations, inner.config.read_gap_max);
        *place = runs.first().map(|run| (run.chunk, run.offset));
        match fetch_all(inner, &runs).await {
            Ok(data) => return Ok(assemble(&runs, &data, locations.len())),
            // Reclaim moved the blocks and the chunk was freed in between: look again.
            Err(StreamError::NotFound(_)) => {}
            Err(error) => return Err(block_error(&error)),
        }
    }
    Err(BlockError::Unavailable(format!("blocks from {first} on are not where the map says")))
}

fn assemble(runs: &[Run], data: &[Bytes], blocks: usize) -> Vec<Bytes> {
    let block = BLOCK_BYTES as usize;
    let mut parts = Vec::new();
    let mut next = 0;
    for (run, bytes) in runs.iter().zip(data) {
        push_zeros(&mut parts, (run.first - next) * block);
        run.cut(bytes, &mut parts);
        next = run.first + run.blocks.len();
    }
    push_zeros(&mut parts, (blocks - next) * block);
    parts
}

/// See [`BlockDevice::read`](crate::BlockDevice::read).
pub(crate) async fn read(inner: Rc<Inner>, offset: u64, length: u32) -> Result<Vec<Bytes>, BlockError> {
    let (start, zero) = (inner.clock.now(), Duration::ZERO);
    let length = u64::from(length);
    let mut trace = Trace {
        operation: Operation::Read,
        offset,
        length,
        start,
        throttled: zero,
        queued: zero,
        stream: zero,
        place: None,
        ok: true,
    };
    let answer = match inner.check_open().and_then(|()| inner.blocks(offset, length)) {
        Err(error) => Err(error),
        Ok(_) if length > READ_MAX => Err(BlockError::Invalid("a read has at most 32 MiB")),
        Ok((_, 0)) => Ok(Vec::new()),
        Ok((first, count)) => {
            let delay = inner.charge(length, false);
            if !delay.is_zero() {
                inner.clock.sleep(delay).await;
                trace.throttled = delay;
            }
            read_blocks(&inner, first, count, &mut trace.place).await
        }
    };
    // What was read while another writer took over may be old by now.
    let answer = if inner.phase.get() == Phase::Fenced { Err(BlockError::Fenced) } else { answer };
    trace.stream = inner.clock.now().saturating_sub(start).saturating_sub(trace.throttled);
    inner.count(trace, &answer.as_ref().map(|_| ()).map_err(Clone::clone));
    answer
}

#[cfg(test)]
mod tests;
