//! Journal commits and checkpoints.

use super::{Counters, Shell};
use crate::checkpoint::Checkpoint;
use crate::image::Image;
use crate::journal::{BLOCK_BYTES, COMMIT_BLOCKS_MAX, Ring};
use crate::mount::Position;
use crate::observe::{Op, Stage};
use crate::record::Record;
use crate::superblock::Superblock;
use api_types::{QosClass, Rule};
use bytes::Bytes;
use nodeagent_device::{Device, Durability};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A checkpoint is written in pieces of this many bytes.
const PIECE_BYTES: usize = 512 << 10;
/// How often a checkpoint is tried, and how long apart.
const TRIES: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where the journal stands.
pub(super) struct Journal {
    ring: Ring,
    pending: VecDeque<Record>,
    /// What all blocks before `next` amount to.
    image: Image,
    position: Position,
    /// Records that are durable, counted since the store was opened.
    committed: u64,
}

impl Journal {
    pub(super) fn new(superblock: &Superblock, image: Image, position: Position) -> Journal {
        Journal { ring: ring_of(superblock), pending: VecDeque::new(), image, position, committed: 0 }
    }

    pub(super) fn push(&mut self, record: Record) {
        self.pending.push_back(record);
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.position.incarnation
    }

    /// Blocks that the older checkpoint doesn't have.
    fn used(&self) -> u64 {
        self.position.next - self.position.from[0]
    }

    fn has_room(&self) -> bool {
        self.used() + COMMIT_BLOCKS_MAX <= self.ring.blocks
    }

    fn wants_checkpoint(&self) -> bool {
        self.position.next - self.position.from[1] > self.ring.blocks / 3
    }

    /// The blocks of the next commit, and how many records are in them.
    fn next_commit(&mut self) -> Result<(u64, Vec<u8>, usize), String> {
        let first = self.position.next;
        let (bytes, taken) = self.ring.encode(self.position.incarnation, first, self.pending.make_contiguous());
        for record in self.pending.drain(..taken) {
            // A record that contradicts the image would make the device impossible to open: it must not get there.
            self.image.apply(&record).map_err(|error| error.to_string())?;
        }
        self.position.next += (bytes.len() / BLOCK_BYTES) as u64;
        Ok((first, bytes, taken))
    }
}

/// The journal's place on a device.
pub(crate) fn ring_of(superblock: &Superblock) -> Ring {
    let layout = &superblock.layout;
    Ring { device: superblock.device, offset: layout.journal_offset, blocks: layout.journal_bytes / BLOCK_BYTES as u64 }
}

impl Shell {
    pub(super) async fn commit_loop(self: Rc<Self>) {
        loop {
            self.bells.journal.notified().await;
            if let Err(why) = self.commit_pending().await {
                if !self.is_stopped.get() {
                    tracing::error!(device = %self.superblock.device, %why, "journal failed: nothing is changed any more");
                    self.core.borrow_mut().fail(format!("journal: {why}"));
                    self.pump();
                }
                return;
            }
        }
    }

    async fn commit_pending(self: &Rc<Self>) -> Result<(), String> {
        while !self.journal.borrow().pending.is_empty() {
            loop {
                let room = self.bells.room.notified();
                if self.journal.borrow().has_room() {
                    break;
                }
                self.bells.checkpoint.notify_one();
                room.await;
            }
            let begun = self.clock.now();
            let (first, bytes, taken) = self.journal.borrow_mut().next_commit()?;
            let length = bytes.len();
            self.write_blocks(first, Bytes::from(bytes)).await.map_err(|error| error.to_string())?;
            self.observe(Op::Own, Stage::Journal, QosClass::Foreground, length, begun);
            Counters::add(&self.counters.commits);
            let (committed, wants_checkpoint) = {
                let mut journal = self.journal.borrow_mut();
                journal.committed += taken as u64;
                (journal.committed, journal.wants_checkpoint())
            };
            if wants_checkpoint {
                self.bells.checkpoint.notify_one();
            }
            self.core.borrow_mut().durable(committed);
            self.pump();
        }
        Ok(())
    }

    /// Writes the blocks of a commit, in two parts where the ring wraps.
    async fn write_blocks(&self, first: u64, bytes: Bytes) -> io::Result<()> {
        let ring = self.journal.borrow().ring;
        let blocks = (bytes.len() / BLOCK_BYTES) as u64;
        let head_blocks = ring.side_by_side(first, blocks);
        let mut tail = bytes;
        let head = tail.split_to(usize::try_from(head_blocks).unwrap_or(0) * BLOCK_BYTES);
        let head = self.write(ring.at(first), head, Durability::Durable, QosClass::Foreground);
        let tail =
            (!tail.is_empty()).then(|| self.write(ring.at(first + head_blocks), tail, Durability::Durable, QosClass::Foreground));
        let head = self.note(Op::Own, head.await);
        if let Some(tail) = tail {
            self.note(Op::Own, tail.await)?;
        }
        head
    }

    pub(super) async fn checkpoint_loop(self: Rc<Self>) {
        loop {
            self.bells.checkpoint.notified().await;
            let mut tries = 0;
            while let Err(error) = self.write_checkpoint().await {
                tries += 1;
                if self.is_stopped.get() {
                    return;
                }
                if tries == TRIES {
                    tracing::error!(device = %self.superblock.device, %error, "no checkpoint can be written");
                    self.core.borrow_mut().fail(format!("checkpoint: {error}"));
                    self.pump();
                    return;
                }
                self.clock.sleep(RETRY_AFTER).await;
            }
            self.bells.room.notify_waiters();
        }
    }

    /// Writes the image over the older checkpoint.
    pub(super) async fn write_checkpoint(&self) -> io::Result<()> {
        let _alone = self.checkpointing.lock().await;
        let begun = self.clock.now();
        let (checkpoint, bytes) = {
            let journal = self.journal.borrow();
            let checkpoint = Checkpoint {
                incarnation: journal.position.incarnation,
                number: journal.position.number + 1,
                journal_from: journal.position.next,
            };
            (checkpoint, Bytes::from(checkpoint.encode(self.superblock.device, &journal.image)))
        };
        let length = bytes.len();
        if self.is_stopped.get() {
            return Err(io::Error::other("the store is stopped"));
        }
        self.note(
            Op::Own,
            write_region(self.device.as_ref(), &self.superblock, checkpoint.number, bytes, || self.is_stopped.get()).await,
        )?;
        let mut journal = self.journal.borrow_mut();
        journal.position.number = checkpoint.number;
        journal.position.from = [journal.position.from[1], checkpoint.journal_from];
        drop(journal);
        Counters::add(&self.counters.checkpoints);
        self.observe(Op::Own, Stage::Checkpoint, QosClass::Reclaim, length, begun);
        Ok(())
    }
}

/// Writes a whole checkpoint to the region that its number has, durably.
pub(crate) async fn write_region(
    device: &dyn Device,
    superblock: &Superblock,
    number: u64,
    mut bytes: Bytes,
    is_stopped: impl Fn() -> bool,
) -> io::Result<()> {
    let layout = &superblock.layout;
    if bytes.len() as u64 > layout.checkpoint_bytes {
        return Err(io::Error::other("the checkpoint is larger than its region"));
    }
    let mut at = layout.checkpoint_offsets[usize::from(!number.is_multiple_of(2))];
    while !bytes.is_empty() {
        if is_stopped() {
            return Err(io::Error::other("the store is stopped"));
        }
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        let length = piece.len() as u64;
        let write = nodeagent_device::Write { offset: at, data: piece, durability: Durability::Cached, qos: QosClass::Reclaim };
        device.write(write).await?;
        at += length;
    }
    if Rule::CheckpointBarrier.is_kept() { device.flush().await } else { Ok(()) }
}
