//! Names of things. Every id is a newtype, so that a chunk can't be passed where a stream is meant.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Text that isn't the id it should be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a {kind}: expected {expected}")]
pub struct ParseIdError {
    kind: &'static str,
    expected: &'static str,
    text: String,
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{:x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix(concat!($prefix, "-"))
                    .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                    .map($name)
                    .ok_or_else(|| ParseIdError {
                        kind: stringify!($name),
                        expected: concat!("`", $prefix, "-` and hexadecimal digits"),
                        text: text.to_owned(),
                    })
            }
        }
    };
}

number_id!(
    /// An append-only run of bytes, named by the masters and never reused, so that stale bytes of an older chunk can't
    /// pass for a newer one's. Zero is no chunk.
    ChunkId, "c"
);
number_id!(
    /// An ordered list of chunks, only the last of which is open.
    StreamId, "s"
);
number_id!(
    /// A log-structured block device. Masters draw volume, stream and chunk ids from one counter, so the numbers never
    /// collide.
    VolumeId, "v"
);
number_id!(
    /// One disk: drawn at random when it is formatted and written in its superblock, so that a disk is known by what
    /// is on it and not by the name the kernel gave it today.
    DeviceId, "d"
);
number_id!(
    /// A fencing group: all chunks whose writer holds one epoch. A volume's streams share the volume's number; a
    /// stream outside any volume owns itself.
    OwnerId, "o"
);

impl From<VolumeId> for OwnerId {
    fn from(volume: VolumeId) -> Self {
        OwnerId(volume.0)
    }
}

/// The generation of an owner's writer. A new writer takes the next one at the masters; a chunk has exactly one.
/// The first writer has epoch 1; zero is no writer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of the writer that comes after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The cluster a device, an agent or a master belongs to. Drawn once when the masters first come up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&uuid::Uuid::from_u128(self.0), f)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClusterId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        uuid::Uuid::parse_str(text).map(|uuid| ClusterId(uuid.as_u128())).map_err(|_| ParseIdError {
            kind: "ClusterId",
            expected: "a UUID",
            text: text.to_owned(),
        })
    }
}

/// Names one attempt to change the masters' state. A retry carries the same id and gets the first answer again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u128);

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The name of a node, as Kubernetes has it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(pub String);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        NodeName(name.to_owned())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        assert_eq!("c-ff".parse::<ChunkId>(), Ok(ChunkId(255)));
        assert_eq!(ChunkId(255).to_string().parse(), Ok(ChunkId(255)));
        let cluster = ClusterId(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        assert_eq!(cluster.to_string().parse(), Ok(cluster));
    }

    #[test]
    fn a_wrong_prefix_is_named_in_the_error() {
        let error = "s-1".parse::<ChunkId>().unwrap_err();
        assert_eq!(error.to_string(), "`s-1` is not a ChunkId: expected `c-` and hexadecimal digits");
    }
}
