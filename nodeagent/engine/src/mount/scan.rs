//! Searching for units: first ones in reserved extents, last ones in chunks that were open.

use super::READ_BYTES;
use crate::engine::MountReport;
use crate::extent::Run;
use crate::extent::Runs;
use crate::image::{Entry, Image};
use crate::journal::BLOCK_BYTES;
use crate::poison;
use crate::record::End;
use crate::superblock::Superblock;
use api_types::QosClass;
use api_types::checksum::FooterSeed;
use api_types::limits::EXTENT_BYTES;
use api_types::unit::{Alignment, ChunkShape, Footer, Head, find_unit};
use bytes::{Bytes, BytesMut};
use nodeagent_device::Device;
use std::io;

pub(super) struct Scanner<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    seed: FooterSeed,
    /// Bytes read.
    pub(super) bytes: u64,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(device: &'a dyn Device, superblock: &'a Superblock) -> Self {
        Scanner { device, superblock, seed: FooterSeed::of(superblock.cluster), bytes: 0 }
    }

    /// Chunks that began in a reserved extent and that the journal doesn't know yet.
    pub(super) async fn find_created(&mut self, image: &mut Image, report: &mut MountReport) -> io::Result<()> {
        for extent in image.reserved.clone() {
            let Some(footer) = self.first_unit(extent).await? else { continue };
            let shape = footer.shape;
            if image.chunks.contains_key(&shape.chunk) {
                report.damaged.push(format!("extent {extent} holds a second {}: ignored", shape.chunk));
                continue;
            }
            image.reserved.remove(&extent);
            let mut runs = Runs::default();
            runs.push(Run { start: extent, count: 1 });
            image.chunks.insert(shape.chunk, Entry { shape, end: End::Open, length: 0, runs });
        }
        Ok(())
    }

    /// How long the open chunks are.
    pub(super) async fn find_ends(&mut self, image: &mut Image) -> io::Result<()> {
        for entry in image.chunks.values_mut().filter(|entry| entry.end == End::Open) {
            entry.length = self.find_end(&entry.shape, &entry.runs, entry.length).await?;
        }
        Ok(())
    }

    async fn first_unit(&mut self, extent: u32) -> io::Result<Option<Footer>> {
        let run = Run { start: extent, count: 1 };
        let mut runs = Runs::default();
        runs.push(run);
        let head = self.read(&runs, 0, BLOCK_BYTES as u32).await?;
        if poison::is_poison(&head, self.superblock.device, extent) {
            return Ok(None);
        }
        let bytes = self.read(&runs, 0, poison::SEARCH_BYTES).await?;
        let tries = [Alignment::B4096, Alignment::B512]
            .into_iter()
            .filter(|alignment| alignment.bytes().is_multiple_of(self.device.info().block_bytes));
        for alignment in tries {
            if let Head::Unit(footer) = find_unit(&bytes, 0, alignment, None, self.seed) {
                return Ok(Some(footer));
            }
        }
        Ok(None)
    }

    async fn find_end(&mut self, shape: &ChunkShape, runs: &Runs, from: u32) -> io::Result<u32> {
        let limit = u32::try_from(runs.bytes()).unwrap_or(u32::MAX).min(shape.capacity);
        let mut window = BytesMut::new();
        let (mut at, mut read_to) = (from, from);
        loop {
            match find_unit(&window, at, shape.alignment, Some(shape.chunk), self.seed) {
                Head::Unit(footer) if footer.shape == *shape => {
                    let _ = window.split_to(footer.unit_bytes() as usize);
                    at = footer.end();
                }
                Head::More if read_to < limit => {
                    let length = (limit - read_to).min(READ_BYTES);
                    let bytes = self.read(runs, read_to, length).await?;
                    window.extend_from_slice(&bytes);
                    read_to += length;
                }
                _ => return Ok(at),
            }
        }
    }

    async fn read(&mut self, runs: &Runs, offset: u32, length: u32) -> io::Result<Bytes> {
        let origin = self.superblock.layout.extents_offset;
        self.bytes += u64::from(length);
        let mut all = BytesMut::with_capacity(length as usize);
        debug_assert!(u64::from(offset) + u64::from(length) <= runs.bytes().max(u64::from(EXTENT_BYTES)));
        for piece in runs.pieces(offset, length) {
            all.extend_from_slice(&self.device.read(origin + piece.at, piece.bytes, QosClass::Foreground).await?);
        }
        Ok(all.freeze())
    }
}
