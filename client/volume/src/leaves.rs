//! Map leaves in memory: loaded when needed, kept while a change is under way.

use crate::BlockError;
use crate::error::block_error;
use crate::map::{LEAF_BYTES, Leaf, NodePointer, State as LeafState, leaf_of};
use crate::streams::Streams;
use crate::volume::Inner;
use api_types::QosClass;
use api_types::checksum::crc32c;
use bytes::Bytes;
use client_stream::Error as StreamError;
use futures::stream::{StreamExt, TryStreamExt};
use std::rc::Rc;

/// Tries of a look-up whose chunk was freed in between.
pub(crate) const LOOKUPS_MAX: u32 = 16;

/// Leaves that stay in memory while this lives.
pub(crate) struct Pins {
    inner: Rc<Inner>,
    leaves: Vec<u64>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        // A borrow may be under way only where pins were forgotten about in the middle of a change: never.
        let state = self.inner.state.borrow();
        for leaf in &self.leaves {
            state.map.unpin(*leaf);
        }
    }
}

/// The leaves of a range, whether they hold anything or not.
pub(crate) fn leaves_of(first: u64, count: u64) -> std::ops::RangeInclusive<u64> {
    leaf_of(first)..=leaf_of(first + count.max(1) - 1)
}

/// Reads a node of the map and checks it against its pointer.
pub(crate) async fn read_node(streams: &dyn Streams, pointer: NodePointer, qos: QosClass) -> Result<Bytes, StreamError> {
    let verify = |bytes: &[u8]| crc32c(bytes) == pointer.crc;
    streams.read(pointer.chunk, pointer.offset, pointer.length, qos, &verify).await
}

impl Inner {
    /// Pins leaves that are all in memory, or hold nothing; `None` when one must be loaded first.
    pub(crate) fn try_pin(self: &Rc<Self>, leaves: impl Iterator<Item = u64> + Clone) -> Option<Pins> {
        let mut state = self.state.borrow_mut();
        if leaves.clone().any(|leaf| matches!(state.map.state(leaf), LeafState::Absent(_))) {
            return None;
        }
        let leaves: Vec<u64> = leaves.collect();
        for leaf in &leaves {
            state.map.pin(*leaf);
        }
        Some(Pins { inner: self.clone(), leaves })
    }

    /// Brings leaves into memory and keeps them there.
    pub(crate) async fn pin(self: &Rc<Self>, leaves: Vec<u64>, qos: QosClass) -> Result<Pins, BlockError> {
        {
            let mut state = self.state.borrow_mut();
            for leaf in &leaves {
                state.map.pin(*leaf);
            }
        }
        let pins = Pins { inner: self.clone(), leaves };
        let absent: Vec<u64> = {
            let state = self.state.borrow();
            let absent = |leaf: &&u64| matches!(state.map.state(**leaf), LeafState::Absent(_));
            pins.leaves.iter().filter(absent).copied().collect()
        };
        let loads = futures::stream::iter(absent.into_iter().map(|leaf| self.load(leaf, qos)));
        loads.buffer_unordered(self.config.read_parallel_max.max(1)).try_collect::<()>().await?;
        Ok(pins)
    }

    async fn load(self: &Rc<Self>, leaf: u64, qos: QosClass) -> Result<(), BlockError> {
        for _ in 0..LOOKUPS_MAX {
            let LeafState::Absent(pointer) = self.state.borrow().map.state(leaf) else { return Ok(()) };
            match read_node(&*self.streams, pointer, qos).await {
                Ok(bytes) => {
                    let decoded =
                        Leaf::decode(&bytes).map_err(|error| BlockError::Unavailable(format!("map leaf {leaf}: {error}")))?;
                    let mut state = self.state.borrow_mut();
                    state.stats.leaf_loads += 1;
                    state.map.install(leaf, pointer, decoded);
                    state.map.shrink(self.config.leaf_bytes_max / LEAF_BYTES);
                }
                // The leaf was written anew and its old chunk freed: look again.
                Err(StreamError::NotFound(_)) => {}
                Err(error) => return Err(block_error(&error)),
            }
        }
        Err(BlockError::Unavailable(format!("map leaf {leaf} is not where the map says")))
    }
}
