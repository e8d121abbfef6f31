//! Writes a file-backed device through, once.
//!
//! A filesystem marks space that was reserved and never written; the first durable write to each such place costs a
//! journal commit of the filesystem besides. After zeros have been written everywhere, a durable write is one write.

use super::FileDevice;
use crate::device::{Device, Durability, Write};
use api_types::QosClass;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;

const PIECE_BYTES: u64 = 1 << 20;
const PIECES_UNDER_WAY: usize = 4;

/// How far [`FileDevice::write_through`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes known to be written.
    pub done_bytes: u64,
    /// The device's size, in bytes.
    pub total_bytes: u64,
}

impl FileDevice {
    /// Writes zeros wherever the file has never been written, which leaves its contents as they are; a no-op on a block
    /// device. Nobody else may write meanwhile. The filesystem knows what is written already, so a second call goes on
    /// where the first was stopped. `progress` may end it early: the answer is then `false`.
    pub async fn write_through(&self, mut progress: impl FnMut(Progress) -> ControlFlow<()>) -> io::Result<bool> {
        let total_bytes = self.info().size_bytes;
        if self.probe().block_device {
            return Ok(progress(Progress { done_bytes: total_bytes, total_bytes }).is_continue());
        }
        let mut zeros = self.pool().take(PIECE_BYTES as usize).await?;
        zeros.fill(0);
        let zeros = zeros.freeze();
        let mut under_way = FuturesUnordered::new();
        let mut done_bytes = 0;
        while let Some((start, end)) = next_hole(self.file(), done_bytes, total_bytes)? {
            let mut at = start;
            while at < end {
                let length = PIECE_BYTES.min(end - at);
                let data = zeros.slice(..length as usize);
                under_way.push(self.write(Write { offset: at, data, durability: Durability::Cached, qos: QosClass::Repair }));
                at += length;
                if under_way.len() >= PIECES_UNDER_WAY {
                    under_way.next().await.transpose()?;
                    if progress(Progress { done_bytes: at, total_bytes }).is_break() {
                        while under_way.next().await.transpose()?.is_some() {}
                        return Ok(false);
                    }
                }
            }
            done_bytes = end;
        }
        while under_way.next().await.transpose()?.is_some() {}
        self.flush().await?;
        Ok(progress(Progress { done_bytes: total_bytes, total_bytes }).is_continue())
    }
}

/// The next range from `from` on that was never written, in whole blocks of a page.
fn next_hole(file: &File, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    if from >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Hole(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    if start >= end {
        return Ok(None);
    }
    let stop = match rustix::fs::seek(file, SeekFrom::Data(start)) {
        Ok(stop) => stop.min(end),
        Err(Errno::NXIO) => end,
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((start, stop)))
}
