//! The client: what all streams of one core share.

use crate::{Config, Error, Scan, Writer, WriterOptions};
use api_types::checksum::FooterSeed;
use api_types::chunk::ChunkTransport;
use api_types::master::{ChunkRecord, MasterClient, Replication};
use api_types::{ChunkId, Clock, Epoch, QosClass, Rng, StreamId};
use bytes::Bytes;
use std::rc::Rc;

/// What a client stands on.
#[derive(Clone)]
pub struct Deps {
    /// The way to every chunk store.
    pub transport: Rc<dyn ChunkTransport>,
    /// The way to the masters.
    pub master: Rc<dyn MasterClient>,
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// Chance, for jitter and for the choice among equals.
    pub rng: Rc<dyn Rng>,
    /// Where footer checksums of this cluster start from.
    pub seed: FooterSeed,
}

/// Reads chunks and makes writers. Cheap to clone; all clones share the location cache, the latency model and the
/// blacklists. Must be used inside a tokio `LocalSet`.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

struct Inner {
    #[expect(dead_code, reason = "comes with the next change")]
    deps: Deps,
    #[expect(dead_code, reason = "comes with the next change")]
    config: Config,
}

impl Client {
    /// A client that knows nothing yet.
    #[must_use]
    pub fn new(deps: Deps, config: Config) -> Client {
        Client { inner: Rc::new(Inner { deps, config }) }
    }

    /// Fences all writers of older epochs and seals every chunk of the stream that isn't sealed, open ones and spares,
    /// on at least `max_copy - min_copy + 1` answers each; records the lengths at the masters, then cuts the copies to
    /// them. Returns the chunks in stream order, all sealed. Chunks that never held anything are deleted and left out.
    ///
    /// After a move to another chunk the last units of the chunk that was left may stand there and, again, at the start of
    /// the next one: whoever replays must skip a unit whose sequence isn't above the last one's.
    ///
    /// # Errors
    /// [`Error::Unavailable`] names the devices that didn't answer; [`Error::Fenced`] when the epoch isn't the newest.
    pub async fn recover(&self, stream: StreamId, epoch: Epoch, replication: Replication) -> Result<Vec<ChunkRecord>, Error> {
        let _ = (&self.inner, stream, epoch, replication);
        Err(Error::Unavailable("recover".to_owned()))
    }

    /// The writer of a recovered stream; it goes on in new chunks.
    #[must_use]
    pub fn writer(&self, stream: StreamId, options: WriterOptions) -> Writer {
        let _ = (stream, options);
        Writer {}
    }

    /// Reads committed bytes, at most `limits::READ_BYTES_MAX`. `verify` judges them: a copy that fails is reported to
    /// the masters, and another one is read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no copy verifies, [`Error::Unavailable`] when none answers, [`Error::NotFound`] when the
    /// chunk was deleted.
    pub async fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        qos: QosClass,
        verify: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Bytes, Error> {
        let _ = (chunk, offset, length, qos, verify);
        Err(Error::Unavailable("read".to_owned()))
    }

    /// The units of a sealed or committed range, in order. `from` must be the start of a unit and `to` the end of one.
    #[must_use]
    pub fn scan(&self, chunk: ChunkId, from: u32, to: u32, with_data: bool, qos: QosClass) -> Scan {
        let _ = (chunk, from, to, with_data, qos);
        Scan {}
    }

    /// Gives chunks back. Those already gone are no error.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::Unavailable`].
    pub async fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> Result<(), Error> {
        let _ = (stream, epoch, chunks);
        Err(Error::Unavailable("delete".to_owned()))
    }
}
