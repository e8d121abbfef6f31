//! Nodes of the map on their way to the index stream.

use crate::map::NodePointer;
use crate::volume::Inner;
use api_types::checksum::crc32c;
use api_types::limits::UNIT_DATA_BYTES_MAX;
use bytes::Bytes;
use client_stream::Error as StreamError;

/// Packs nodes into units of the index stream.
pub(crate) struct Nodes<'a> {
    inner: &'a Inner,
    pending: Vec<Bytes>,
    pending_bytes: usize,
    written: Vec<NodePointer>,
    put: usize,
}

impl<'a> Nodes<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Self {
        Nodes { inner, pending: Vec::new(), pending_bytes: 0, written: Vec::new(), put: 0 }
    }

    /// Takes a node; its number is the place of its pointer in what [`Nodes::finish`] returns.
    pub(crate) async fn put(&mut self, node: Vec<u8>) -> Result<usize, StreamError> {
        if self.pending_bytes + node.len() > UNIT_DATA_BYTES_MAX as usize {
            self.flush().await?;
        }
        self.pending_bytes += node.len();
        self.pending.push(node.into());
        self.put += 1;
        Ok(self.put - 1)
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let nodes = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let position = self.inner.append_index(nodes.clone()).await?;
        let mut offset = position.offset;
        for node in nodes {
            let length = node.len() as u32;
            self.written.push(NodePointer { chunk: position.chunk, offset, length, crc: crc32c(&node) });
            offset += length;
        }
        Ok(())
    }

    pub(crate) async fn finish(mut self) -> Result<Vec<NodePointer>, StreamError> {
        self.flush().await?;
        Ok(self.written)
    }
}
