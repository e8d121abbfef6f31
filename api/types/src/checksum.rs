//! CRC-32C (Castagnoli), the one checksum of every format and frame.

use crate::id::ClusterId;

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of `bytes` continued from `crc`, the checksum of what comes before them.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// Where the checksum of a footer starts from: a number of the cluster's own. A footer of another cluster, or one that
/// a tenant wrote into its own data, doesn't verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FooterSeed(pub u32);

impl FooterSeed {
    /// The seed of a cluster.
    #[must_use]
    pub fn of(cluster: ClusterId) -> Self {
        FooterSeed(crc32c(&cluster.0.to_le_bytes()))
    }
}
