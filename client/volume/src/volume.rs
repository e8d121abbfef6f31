//! The volume: one owner of a map, three streams and the requests under way.

use crate::{BlockDevice, BlockError, Config, OpenError, PoolSpace, Stats, TraceHook};
use api_types::master::{MasterClient, QosLimits, VolumeLease};
use api_types::{Clock, Rng};
use bytes::Bytes;
use client_stream::Client;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::rc::Rc;

/// A volume that is being served. Must be used inside a tokio `LocalSet`. Dropping it stops it where it is, as a crash
/// would; [`Volume::close`] leaves nothing to replay.
pub struct Volume {
    _private: (),
}

impl Volume {
    /// Recovers the streams of a volume whose lease the caller has taken, replays the tail of its log, and serves.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is served and nothing is lost on an error; opening again is safe.
    pub async fn open(
        client: Client,
        master: Rc<dyn MasterClient>,
        clock: Rc<dyn Clock>,
        rng: Rc<dyn Rng>,
        lease: VolumeLease,
        config: Config,
    ) -> Result<Rc<Volume>, OpenError> {
        let _ = (client, master, clock, rng, lease, config);
        Err(OpenError::Unavailable("comes with the next change".to_owned()))
    }

    /// Grows the volume to `bytes`, at once. The same size again is no error.
    ///
    /// # Errors
    /// [`BlockError::Invalid`] when smaller than now, or no multiple of the block.
    pub fn set_size(&self, bytes: u64) -> Result<(), BlockError> {
        let _ = bytes;
        Ok(())
    }

    /// Changes the limits of foreground requests.
    pub fn set_qos(&self, limits: QosLimits) {
        let _ = limits;
    }

    /// Tells how full the pool is: sets the pace of reclaim.
    pub fn set_pool_space(&self, space: PoolSpace) {
        let _ = space;
    }

    /// Calls `hook` for every request answered from now on; `None` stops it.
    pub fn set_trace(&self, hook: Option<TraceHook>) {
        let _ = hook;
    }

    /// Stops serving at once: another writer has taken over. Every later request, and every one under way, is answered
    /// with [`BlockError::Fenced`].
    pub fn fence(&self) {}

    /// A newer writer was noticed, or [`Volume::fence`] called.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        false
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Hands the volume back: refuses new requests, waits for those under way, writes a checkpoint, closes the streams
    /// and tells the masters.
    ///
    /// # Errors
    /// See [`OpenError`]. The volume is closed either way; after an error the next open replays.
    pub async fn close(&self) -> Result<(), OpenError> {
        Ok(())
    }
}

impl BlockDevice for Volume {
    fn size_bytes(&self) -> u64 {
        0
    }

    fn read(&self, _offset: u64, _length: u32) -> LocalBoxFuture<'static, Result<Vec<Bytes>, BlockError>> {
        async { Err(BlockError::Closed) }.boxed_local()
    }

    fn write(&self, _offset: u64, _data: Bytes) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        async { Err(BlockError::Closed) }.boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        async { Err(BlockError::Closed) }.boxed_local()
    }

    fn discard(&self, _offset: u64, _length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        async { Err(BlockError::Closed) }.boxed_local()
    }

    fn write_zeroes(&self, _offset: u64, _length: u64) -> LocalBoxFuture<'static, Result<(), BlockError>> {
        async { Err(BlockError::Closed) }.boxed_local()
    }
}
