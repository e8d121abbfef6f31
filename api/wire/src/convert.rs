//! The control plane's messages to and from the plain values of `api_types::master`. Parsed once, here, and trusted
//! after; what doesn't parse is [`Error::Invalid`] and names the field.

mod chunk;
mod failure;
mod node;
mod volume;

pub use failure::{Answer, not_leader, read_status, to_status};

use api_types::master::Error;
use api_types::{ClusterId, RequestId};

/// A value that must be there.
pub fn need<T>(value: Option<T>, field: &str) -> Result<T, Error> {
    value.ok_or_else(|| Error::Invalid(format!("field `{field}` is missing")))
}

/// A cluster id from its 16 bytes.
pub fn cluster_id(bytes: &[u8]) -> Result<ClusterId, Error> {
    let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| Error::Invalid("field `cluster` must have 16 bytes".to_owned()))?;
    Ok(ClusterId(u128::from_be_bytes(bytes)))
}

/// A request id from its 16 bytes.
pub fn request_id(bytes: &[u8]) -> Result<RequestId, Error> {
    let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| Error::Invalid("field `request_id` must have 16 bytes".to_owned()))?;
    Ok(RequestId(u128::from_be_bytes(bytes)))
}

/// A number that must fit a smaller one.
pub(crate) fn fit<T: TryFrom<u32>>(number: u32, field: &str) -> Result<T, Error> {
    T::try_from(number).map_err(|_| Error::Invalid(format!("field `{field}` is out of range: {number}")))
}

/// Parses every message of a list.
pub fn all<A, B: TryFrom<A, Error = Error>>(list: Vec<A>) -> Result<Vec<B>, Error> {
    list.into_iter().map(B::try_from).collect()
}

#[cfg(test)]
mod tests;
