//! One life of a volume: from an open to a crash, a close or a takeover, with every answer checked against a model.

use super::fake::{Dice, Masters, TestClock, World};
use crate::{BlockDevice, BlockError, Config, OpenError, Volume};
use api_types::Rng;
use api_types::limits::BLOCK_BYTES;
use bytes::Bytes;
use futures::future::join_all;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What each block may hold, by tag; a block that isn't named holds zeros, whose tag is zero.
#[derive(Default)]
pub(crate) struct Model {
    blocks: BTreeMap<u64, BTreeSet<u64>>,
    next_tag: u64,
    /// Writes of one unit that nobody answered and no other request met: all of it or nothing.
    atomic: Vec<(u64, Vec<u64>)>,
}

fn block_of(tag: u64) -> [u8; BLOCK as usize] {
    let mut block = [0; BLOCK as usize];
    if tag != 0 {
        for (place, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&tag.wrapping_add((place as u64) << 48).to_le_bytes());
        }
    }
    block
}

fn tag_of(bytes: &[u8], block: u64) -> u64 {
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == block_of(tag), "block {block} holds a mixture");
    tag
}

#[derive(Debug, Clone)]
enum Kind {
    Write,
    Discard,
    Zero,
}

#[derive(Debug, Clone)]
struct Request {
    kind: Kind,
    first: u64,
    /// One for each block.
    tags: Vec<u64>,
    answer: Option<Result<(), BlockError>>,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Crash,
    Close,
    Takeover,
}

/// Who lives.
pub(crate) struct Life {
    pub(crate) world: Rc<World>,
    pub(crate) config: Config,
    pub(crate) dice: Dice,
    /// Blocks that requests start at, and how many they reach over.
    pub(crate) areas: Vec<(u64, u64)>,
    pub(crate) model: Model,
    /// Errors that the faults of this run explain.
    pub(crate) may_fail: bool,
}

pub(crate) async fn open(world: &Rc<World>, config: &Config) -> Result<Rc<Volume>, OpenError> {
    let (clock, master) = (Rc::new(TestClock::new()), Rc::new(Masters(world.clone())));
    Volume::open_on(Rc::new(world.clone()), master, clock, &world.dice, world.lease(), config.clone()).await
}

impl Life {
    /// Lives through `steps` batches of requests, then ends.
    pub(crate) async fn live(&mut self, steps: u64, end: End) {
        let volume = open(&self.world, &self.config).await.expect("it opens");
        self.settle(&volume).await;
        let crash_at = if end == End::Crash { self.dice.below(steps) } else { u64::MAX };
        for step in 0..steps {
            let batch = self.batch();
            if step == crash_at {
                let limit = Duration::from_micros(self.dice.below(8000));
                self.issue(&volume, batch, Some(limit)).await;
                return;
            }
            self.issue(&volume, batch, None).await;
            match self.dice.below(12) {
                0 => self.check_some(&volume).await,
                1 => tokio::time::sleep(Duration::from_millis(self.dice.below(3000))).await,
                2 => drop(volume.checkpoint().await),
                3 => volume.flush().await.unwrap(),
                _ => {}
            }
        }
        self.check_some(&volume).await;
        match end {
            End::Crash => {}
            End::Close => self.close(&volume).await,
            End::Takeover => self.take_over(&volume).await,
        }
    }

    /// Writes the same few blocks again and again.
    pub(crate) async fn overwrite(&mut self, volume: &Rc<Volume>, blocks: u64, rounds: u64) {
        for _ in 0..rounds {
            let tags = (0..blocks).map(|_| self.model.tag()).collect();
            let (first, _) = self.areas[0];
            self.issue(volume, vec![Request { kind: Kind::Write, first, tags, answer: None }], None).await;
        }
    }

    async fn close(&mut self, volume: &Rc<Volume>) {
        self.world.closed.set(false);
        let result = volume.close().await;
        assert!(result.is_ok() || self.may_fail, "{result:?}");
        if result.is_ok() {
            assert!(self.world.closed.get());
        }
        assert_eq!(volume.write(0, Bytes::from(vec![1; 4096])).await, Err(BlockError::Closed));
    }

    /// Another owner opens while this one still believes it is the one.
    async fn take_over(&mut self, old: &Rc<Volume>) {
        let new = open(&self.world, &self.config).await.expect("it opens");
        let (first, _) = self.areas[0];
        let answer = old.write(first * BLOCK, Bytes::from(vec![1; 4096])).await;
        assert_eq!(answer, Err(BlockError::Fenced), "the old owner can write nothing any more");
        assert!(old.is_fenced());
        assert_eq!(old.read(first * BLOCK, 4096).await, Err(BlockError::Fenced));
        self.settle(&new).await;
        self.check_some(&new).await;
    }

    fn range(&self) -> (u64, u64) {
        let (first, length) = self.areas[self.dice.below(self.areas.len() as u64) as usize];
        let start = self.dice.below(length);
        let most = match self.dice.below(10) {
            0 => 256,
            1 | 2 => 64,
            3..6 => 8,
            _ => 1,
        };
        (first + start, 1 + self.dice.below(most.min(length - start)))
    }

    fn batch(&mut self) -> Vec<Request> {
        let mut batch = Vec::new();
        for _ in 0..1 + self.dice.below(12) {
            let (first, count) = self.range();
            let kind = match self.dice.below(12) {
                0 => Kind::Discard,
                1 => Kind::Zero,
                _ => Kind::Write,
            };
            let tags = (0..count).map(|_| if matches!(kind, Kind::Write) { self.model.tag() } else { 0 }).collect();
            batch.push(Request { kind, first, tags, answer: None });
        }
        batch
    }

    /// Sends all requests of a batch at once, and learns from the answers. With a limit the power fails when it is over.
    async fn issue(&mut self, volume: &Rc<Volume>, batch: Vec<Request>, limit: Option<Duration>) {
        let batch = Rc::new(RefCell::new(batch));
        let count = batch.borrow().len();
        let all = join_all((0..count).map(|number| {
            let request = batch.borrow()[number].clone();
            let (offset, length) = (request.first * BLOCK, request.tags.len() as u64 * BLOCK);
            let answer = match request.kind {
                Kind::Discard => volume.discard(offset, length),
                Kind::Zero => volume.write_zeroes(offset, length),
                Kind::Write => {
                    volume.write(offset, request.tags.iter().flat_map(|tag| block_of(*tag)).collect::<Vec<u8>>().into())
                }
            };
            let batch = batch.clone();
            async move {
                let answer = answer.await;
                batch.borrow_mut()[number].answer = Some(answer);
            }
        }));
        match limit {
            None => drop(all.await),
            Some(limit) => drop(tokio::time::timeout(limit, all).await),
        }
        let batch = batch.borrow().clone();
        for request in &batch {
            if let Some(Err(error)) = &request.answer {
                assert!(self.may_fail, "{request:?} failed: {error}");
            }
        }
        self.model.learn(&batch);
    }

    /// After an open: what was uncertain is what it is now, for good.
    async fn settle(&mut self, volume: &Rc<Volume>) {
        let uncertain: Vec<u64> = self.model.blocks.iter().filter(|(_, tags)| tags.len() > 1).map(|(block, _)| *block).collect();
        let mut now = BTreeMap::new();
        for block in uncertain {
            let tag = self.check(volume, block, 1).await[0];
            now.insert(block, tag);
        }
        for (first, tags) in std::mem::take(&mut self.model.atomic) {
            let new = tags.iter().enumerate().filter(|(step, tag)| now.get(&(first + *step as u64)) == Some(*tag)).count();
            assert!(new == 0 || new == tags.len(), "a write at {first} of {} blocks is torn: {new} are new", tags.len());
        }
        for (block, tag) in now {
            self.model.blocks.insert(block, BTreeSet::from([tag]));
        }
    }

    async fn check_some(&mut self, volume: &Rc<Volume>) {
        for _ in 0..8 {
            let (first, count) = self.range();
            self.check(volume, first, count).await;
        }
    }

    pub(crate) async fn check_all(&mut self, volume: &Rc<Volume>) {
        for (first, length) in self.areas.clone() {
            for start in (0..length).step_by(200) {
                self.check(volume, first + start, 200.min(length - start)).await;
            }
        }
    }

    async fn check(&mut self, volume: &Rc<Volume>, first: u64, count: u64) -> Vec<u64> {
        let parts = volume.read(first * BLOCK, (count * BLOCK) as u32).await.expect("reads never fail here");
        let bytes = parts.concat();
        assert_eq!(bytes.len() as u64, count * BLOCK);
        let mut tags = Vec::new();
        for (step, bytes) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            let block = first + step as u64;
            let tag = tag_of(bytes, block);
            let allowed = self.model.allowed(block);
            assert!(allowed.contains(&tag), "block {block} holds {tag}, not one of {allowed:?}");
            tags.push(tag);
        }
        tags
    }
}

impl Model {
    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn allowed(&self, block: u64) -> BTreeSet<u64> {
        self.blocks.get(&block).cloned().unwrap_or_else(|| BTreeSet::from([0]))
    }

    /// Zeros for sure.
    pub(crate) fn forget(&mut self, first: u64, count: u64) {
        self.atomic.clear();
        for block in first..first + count {
            self.blocks.remove(&block);
        }
    }

    fn learn(&mut self, batch: &[Request]) {
        let mut touched: BTreeMap<u64, Vec<(u64, bool)>> = BTreeMap::new();
        for request in batch {
            for (step, tag) in request.tags.iter().enumerate() {
                let sure = request.answer == Some(Ok(()));
                touched.entry(request.first + step as u64).or_default().push((*tag, sure));
            }
        }
        for request in batch {
            let blocks = || request.first..request.first + request.tags.len() as u64;
            let alone = blocks().all(|block| touched[&block].len() == 1);
            let known = blocks().all(|block| self.allowed(block).len() == 1);
            if request.answer.is_none() && matches!(request.kind, Kind::Write) && request.tags.len() <= 128 && alone && known {
                self.atomic.push((request.first, request.tags.clone()));
            }
        }
        for (block, tags) in touched {
            let mut allowed: BTreeSet<u64> = tags.iter().map(|(tag, _)| *tag).collect();
            if !tags.iter().any(|(_, sure)| *sure) {
                allowed.extend(self.allowed(block));
            }
            self.blocks.insert(block, allowed);
        }
    }
}
