//! Walking over the units of a chunk.

use crate::Error;
use crate::client::Client;
use api_types::limits::READ_BYTES_MAX;
use api_types::unit::{Alignment, Footer, Head, find_unit, trailer_of};
use api_types::{ChunkId, QosClass};
use bytes::Bytes;

/// One unit, verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedUnit {
    /// Its footer: where it starts and how long it is.
    pub footer: Footer,
    /// What the writer gave as trailer.
    pub trailer: Bytes,
    /// What the writer gave as data, when asked for.
    pub data: Option<Bytes>,
}

/// The units of a range, in order. Holds at most one read of a chunk in memory.
pub struct Scan {
    client: Client,
    chunk: ChunkId,
    at: u32,
    to: u32,
    with_data: bool,
    qos: QosClass,
    alignment: Option<Alignment>,
    /// Bytes of the chunk from `at` on.
    ahead: Bytes,
}

impl Scan {
    pub(crate) fn new(client: Client, chunk: ChunkId, from: u32, to: u32, with_data: bool, qos: QosClass) -> Self {
        Scan { client, chunk, at: from, to, with_data, qos, alignment: None, ahead: Bytes::new() }
    }

    /// The next unit; `None` at the end of the range.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no copy holds a valid unit at the next place, [`Error::Unavailable`] when none answers.
    pub async fn next(&mut self) -> Result<Option<ScannedUnit>, Error> {
        if self.at >= self.to {
            return Ok(None);
        }
        let alignment = match self.alignment {
            Some(alignment) => alignment,
            None => {
                let found = self.client.directory().locate(self.chunk).await?;
                let record = found.ok_or_else(|| Error::NotFound(format!("chunk {}", self.chunk)))?;
                *self.alignment.insert(record.shape.alignment)
            }
        };
        let footer = match self.head(&self.ahead, alignment) {
            Some(footer) => footer,
            None => self.read_ahead(alignment).await?,
        };
        let length = footer.unit_bytes() as usize;
        let unit = self.ahead.split_to(length);
        self.at += footer.unit_bytes();
        let trailer = unit.slice_ref(trailer_of(&unit, &footer));
        let data = self.with_data.then(|| unit.slice(..footer.data_bytes as usize));
        Ok(Some(ScannedUnit { footer, trailer, data }))
    }

    /// Reads from where the next unit starts; a copy on which it doesn't verify is passed over.
    async fn read_ahead(&mut self, alignment: Alignment) -> Result<Footer, Error> {
        let length = (self.to - self.at).min(READ_BYTES_MAX);
        let read = {
            let this = &*self;
            this.client.read(this.chunk, this.at, length, this.qos, &|bytes| this.head(bytes, alignment).is_some()).await
        };
        self.ahead = read?;
        self.head(&self.ahead, alignment)
            .ok_or_else(|| Error::Corrupt(format!("no unit starts at {} of chunk {}", self.at, self.chunk)))
    }

    fn head(&self, bytes: &[u8], alignment: Alignment) -> Option<Footer> {
        match find_unit(bytes, self.at, alignment, Some(self.chunk), self.client.deps().seed) {
            Head::Unit(footer) => Some(footer),
            Head::More | Head::Nothing => None,
        }
    }
}
