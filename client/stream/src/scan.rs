//! Walking over the units of a chunk.

use crate::Error;
use api_types::unit::Footer;
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

/// The units of a range, in order. Reads ahead by at most one read of a chunk.
pub struct Scan {}

impl Scan {
    /// The next unit; `None` at the end of the range.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no copy holds a valid unit at the next place, [`Error::Unavailable`] when none answers.
    pub async fn next(&mut self) -> Result<Option<ScannedUnit>, Error> {
        Err(Error::Unavailable("scan".to_owned()))
    }
}
