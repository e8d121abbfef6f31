//! The volatile cache of a faulty device: what was written and not made durable, block by block.

use api_types::Rng;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Versions of one block remembered between two flushes; a disk may keep any of them.
const VERSIONS_MAX: usize = 4;

/// One block that isn't only on the device behind.
#[derive(Debug, Default)]
struct Block {
    /// What a power loss left here. `None`: what the device behind has.
    settled: Option<Bytes>,
    /// Later contents with the number of their write, oldest first, any of which may be lost.
    versions: Vec<(u64, Bytes)>,
}

impl Block {
    fn latest(&self) -> Option<&Bytes> {
        self.versions.last().map(|(_, bytes)| bytes).or(self.settled.as_ref())
    }
}

#[derive(Debug)]
pub(super) struct Cache {
    block_bytes: usize,
    blocks: BTreeMap<u64, Block>,
    writes: u64,
}

/// Blocks to be moved to the device behind, and how far the moving goes.
pub(super) struct Destage {
    /// Offset and bytes, ascending.
    pub(super) blocks: Vec<(u64, Bytes)>,
    up_to: u64,
}

impl Cache {
    pub(super) fn new(block_bytes: u32) -> Self {
        Cache { block_bytes: block_bytes as usize, blocks: BTreeMap::new(), writes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// A write that isn't durable.
    pub(super) fn put(&mut self, offset: u64, data: &Bytes) {
        self.writes += 1;
        for (at, part) in parts(offset, data, self.block_bytes) {
            let block = self.blocks.entry(at).or_default();
            if block.versions.len() == VERSIONS_MAX {
                block.versions.remove(0);
            }
            block.versions.push((self.writes, part));
        }
    }

    /// The device behind now has, or is about to get, something newer for this range.
    pub(super) fn supersede(&mut self, offset: u64, length: u64) {
        let mut rest = self.blocks.split_off(&offset);
        self.blocks.append(&mut rest.split_off(&(offset + length)));
    }

    /// What lies over the device behind within a range.
    pub(super) fn overlay(&self, offset: u64, length: u64) -> Vec<(u64, Bytes)> {
        let within = self.blocks.range(offset..offset + length);
        within.filter_map(|(at, block)| Some((*at, block.latest()?.clone()))).collect()
    }

    /// What a flush moves to the device behind; [`Self::destaged`] once it is there.
    pub(super) fn destage(&self) -> Destage {
        let blocks = self.blocks.iter().filter_map(|(at, block)| Some((*at, block.latest()?.clone()))).collect();
        Destage { blocks, up_to: self.writes }
    }

    pub(super) fn destaged(&mut self, destage: &Destage) {
        for (at, _) in &destage.blocks {
            if let Some(block) = self.blocks.get_mut(at) {
                block.settled = None;
                block.versions.retain(|(number, _)| *number > destage.up_to);
                if block.versions.is_empty() {
                    self.blocks.remove(at);
                }
            }
        }
    }

    /// The power goes. Writes that were under way join as the latest versions; then each block keeps what was durable
    /// or any version after that, independently of its neighbours: lost, reordered and torn, all in one.
    pub(super) fn crash(&mut self, under_way: Vec<(u64, Bytes)>, rng: &dyn Rng) {
        for (offset, data) in under_way {
            self.put(offset, &data);
        }
        // Some crashes lose all, some nothing, most of them a part.
        let keep_ppm = match rng.below(8) {
            0 => 0,
            1 => 1_000_000,
            _ => rng.below(1_000_001),
        };
        for block in self.blocks.values_mut() {
            let versions = std::mem::take(&mut block.versions);
            if !versions.is_empty() && rng.below(1_000_000) < keep_ppm {
                let last = versions.len() - 1;
                let kept = if rng.below(2) == 0 { last } else { rng.below(versions.len() as u64) as usize };
                block.settled = versions.into_iter().nth(kept).map(|(_, bytes)| bytes);
            }
        }
        self.blocks.retain(|_, block| block.settled.is_some());
    }

    /// Part of a failed write may be there.
    pub(super) fn put_torn(&mut self, offset: u64, data: &Bytes, rng: &dyn Rng) {
        let parts: Vec<_> = parts(offset, data, self.block_bytes).collect();
        for (at, part) in parts {
            if rng.below(2) == 0 {
                self.put(at, &part);
            }
        }
    }
}

fn parts(offset: u64, data: &Bytes, block_bytes: usize) -> impl Iterator<Item = (u64, Bytes)> {
    (0..data.len()).step_by(block_bytes).map(move |at| (offset + at as u64, data.slice(at..(at + block_bytes).min(data.len()))))
}
