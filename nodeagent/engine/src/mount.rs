//! Opening: which checkpoint, what the journal adds, and where the chunks that were open end.

mod scan;

use crate::checkpoint::{Checkpoint, CheckpointError, HEADER_BYTES};
use crate::engine::{MountReport, OpenError};
use crate::image::Image;
use crate::inspect::inspect;
use crate::journal::{BLOCK_BYTES, COMMIT_BLOCKS_MAX};
use crate::record::End;
use crate::shell::{ring_of, write_region};
use crate::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock, SuperblockError, VERSION};
use api_types::{ClusterId, QosClass};
use bytes::{Bytes, BytesMut};
use nodeagent_device::{Device, Durability, Write};
use scan::Scanner;
use std::io;

/// One read at the device.
pub(crate) const READ_BYTES: u32 = 512 << 10;

/// Where the journal goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) incarnation: u64,
    /// The next block to write.
    pub(crate) next: u64,
    /// The newer checkpoint's number.
    pub(crate) number: u64,
    /// The first block that the older and the newer checkpoint don't have.
    pub(crate) from: [u64; 2],
}

/// A store that is ready to be served.
pub(crate) struct Mounted {
    pub(crate) superblock: Superblock,
    pub(crate) image: Image,
    pub(crate) position: Position,
    pub(crate) report: MountReport,
}

struct Mounter<'a> {
    device: &'a dyn Device,
    report: MountReport,
}

/// Reads everything that was durable, closes the chunks that were open, and writes that down in both checkpoints: all
/// before the first request, so that the journal starts anew.
pub(crate) async fn mount(device: &dyn Device, cluster: ClusterId) -> Result<Mounted, OpenError> {
    let mut mounter = Mounter { device, report: MountReport::default() };
    let superblock = mounter.superblock(cluster).await?;
    let (checkpoint, mut image) = mounter.checkpoint(&superblock).await?;
    let next = mounter.replay(&superblock, &checkpoint, &mut image).await?;
    let mut scanner = Scanner::new(device, &superblock);
    scanner.find_created(&mut image, &mut mounter.report).await.map_err(|source| mounter.io(source))?;
    scanner.find_ends(&mut image).await.map_err(|source| mounter.io(source))?;
    mounter.report.scanned_bytes = scanner.bytes;
    image.reserved.clear();
    image.restoring.clear();
    for entry in image.chunks.values_mut().filter(|entry| entry.end == End::Open) {
        entry.end = End::Closed;
        entry.runs.shrink_to(entry.length);
        mounter.report.closed += 1;
    }
    let position = Position { incarnation: checkpoint.incarnation + 1, next, number: checkpoint.number + 2, from: [next, next] };
    for number in [checkpoint.number + 1, checkpoint.number + 2] {
        let checkpoint = Checkpoint { incarnation: position.incarnation, number, journal_from: next };
        let bytes = Bytes::from(checkpoint.encode(superblock.device, &image));
        write_region(device, &superblock, number, bytes, || false).await.map_err(|source| mounter.io(source))?;
    }
    Ok(Mounted { superblock, image, position, report: mounter.report })
}

impl Mounter<'_> {
    fn name(&self) -> String {
        self.device.info().name.clone()
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { name: self.name(), source }
    }

    fn damaged(&self, what: String) -> OpenError {
        OpenError::Damaged { name: self.name(), what }
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, OpenError> {
        self.device.read(offset, length, QosClass::Foreground).await.map_err(|source| self.io(source))
    }

    async fn superblock(&mut self, cluster: ClusterId) -> Result<Superblock, OpenError> {
        let info = self.device.info().clone();
        let mut copies = Vec::new();
        for at in SUPERBLOCK_AT {
            if at + SUPERBLOCK_BYTES as u64 > info.size_bytes {
                return Err(OpenError::NotFormatted { name: self.name() });
            }
            let bytes = self.read(at, SUPERBLOCK_BYTES as u32).await?;
            copies.push(Superblock::decode(&bytes));
        }
        let superblock = match (copies[0], copies[1]) {
            (Ok(first), Ok(second)) if first == second => first,
            (Ok(_), Ok(_)) => {
                return Err(
                    self.damaged("the two superblocks name different stores: formatting was interrupted, format it again".into())
                );
            }
            (Ok(good), Err(why)) | (Err(why), Ok(good)) => {
                self.mend_superblock(&good, why, usize::from(copies[0].is_ok())).await?;
                good
            }
            (Err(SuperblockError::Absent), Err(SuperblockError::Absent)) => {
                return Err(OpenError::NotFormatted { name: self.name() });
            }
            (Err(SuperblockError::Version(found)), Err(_)) | (Err(_), Err(SuperblockError::Version(found))) => {
                return Err(OpenError::WrongVersion { name: self.name(), found, known: VERSION });
            }
            (Err(first), Err(second)) => {
                return Err(self.damaged(format!("both superblocks: {first}; {second}")));
            }
        };
        if superblock.cluster != cluster {
            return Err(OpenError::WrongCluster { name: self.name(), found: superblock.cluster, expected: cluster });
        }
        if superblock.size_bytes > info.size_bytes {
            return Err(OpenError::Shrunk {
                name: self.name(),
                size_bytes: info.size_bytes,
                formatted_bytes: superblock.size_bytes,
            });
        }
        if info.block_bytes > superblock.block_bytes {
            let (is, was) = (info.block_bytes, superblock.block_bytes);
            return Err(self.damaged(format!("its blocks have {is} bytes now and had {was} when it was formatted")));
        }
        Ok(superblock)
    }

    /// One copy is bad: written again, unless somebody put something of his own there.
    async fn mend_superblock(&mut self, good: &Superblock, why: SuperblockError, bad: usize) -> Result<(), OpenError> {
        let at = SUPERBLOCK_AT[bad];
        let contents = inspect(self.device).await.map_err(|error| self.damaged(error.to_string()))?;
        if let Some(foreign) = contents.signatures.iter().find(|found| !found.kind.starts_with("basalt")) {
            return Err(self.damaged(format!("{foreign} was written over a store of ours")));
        }
        self.report.damaged.push(format!("superblock at byte {at}: {why}; written again from the other copy"));
        let data = Bytes::from(good.encode());
        let write = Write { offset: at, data, durability: Durability::Durable, qos: QosClass::Foreground };
        self.device.write(write).await.map_err(|source| self.io(source))
    }

    /// The newest checkpoint that verifies.
    async fn checkpoint(&mut self, superblock: &Superblock) -> Result<(Checkpoint, Image), OpenError> {
        let mut best: Option<(Checkpoint, Image)> = None;
        let mut bad = Vec::new();
        for (region, at) in superblock.layout.checkpoint_offsets.into_iter().enumerate() {
            match self.read_checkpoint(superblock, at).await? {
                Ok(found) => {
                    if best.as_ref().is_none_or(|(checkpoint, _)| checkpoint.number < found.0.number) {
                        best = Some(found);
                    }
                }
                Err(error) => bad.push(format!("checkpoint region {region} at byte {at}: {error}")),
            }
        }
        let Some(best) = best else { return Err(self.damaged(bad.join("; "))) };
        self.report.damaged.extend(bad.into_iter().map(|text| text + "; the other one is used"));
        Ok(best)
    }

    async fn read_checkpoint(
        &self,
        superblock: &Superblock,
        at: u64,
    ) -> Result<Result<(Checkpoint, Image), CheckpointError>, OpenError> {
        let header = self.read(at, HEADER_BYTES as u32).await?;
        let body_bytes = match Checkpoint::decode_header(&header, superblock.device) {
            Ok((_, body_bytes)) => body_bytes as u64,
            Err(error) => return Ok(Err(error)),
        };
        let total = (HEADER_BYTES as u64 + body_bytes).next_multiple_of(4096);
        if total > superblock.layout.checkpoint_bytes {
            return Ok(Err(CheckpointError::Body));
        }
        let mut bytes = BytesMut::from(header.as_ref());
        while (bytes.len() as u64) < total {
            let length = (total - bytes.len() as u64).min(u64::from(READ_BYTES));
            let piece = self.read(at + bytes.len() as u64, u32::try_from(length).unwrap_or(READ_BYTES)).await?;
            bytes.extend_from_slice(&piece);
        }
        Ok(Checkpoint::decode(&bytes, superblock.device))
    }

    /// Replays what came after the checkpoint. Returns the number of the next block.
    async fn replay(&mut self, superblock: &Superblock, checkpoint: &Checkpoint, image: &mut Image) -> Result<u64, OpenError> {
        let ring = ring_of(superblock);
        let mut next = checkpoint.journal_from;
        // Blocks of the commit that was under way, and of what comes after it if this is no torn end.
        let mut beyond = None;
        let mut at = next;
        while at < checkpoint.journal_from + ring.blocks {
            let count = ring.side_by_side(at, COMMIT_BLOCKS_MAX).min(checkpoint.journal_from + ring.blocks - at);
            let bytes = self.read(ring.at(at), u32::try_from(count).unwrap_or(1) * BLOCK_BYTES as u32).await?;
            for (index, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
                let sequence = at + index as u64;
                let block = ring.decode(bytes).filter(|block| {
                    block.as_ref().map_or(true, |block| (block.incarnation, block.sequence) == (checkpoint.incarnation, sequence))
                });
                match (block, beyond) {
                    (Some(Err(error)), None) => {
                        return Err(self.damaged(format!("journal block {sequence}: {error}")));
                    }
                    (Some(Ok(block)), None) => {
                        for record in &block.records {
                            image.apply(record).map_err(|error| self.damaged(format!("journal block {sequence}: {error}")))?;
                        }
                        self.report.records += block.records.len() as u64;
                        next = sequence + 1;
                    }
                    (None, None) => beyond = Some(sequence),
                    (Some(Ok(block)), Some(torn)) if block.commit > torn => {
                        return Err(self.damaged(format!("journal block {torn} does not verify, but later commits do")));
                    }
                    (_, Some(_)) => {}
                }
            }
            at += count;
            if beyond.is_some_and(|torn| at >= torn + 2 * COMMIT_BLOCKS_MAX) {
                break;
            }
        }
        Ok(next)
    }
}
