//! What stands on a device, so that nothing of value is formatted over.

use crate::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use api_types::QosClass;
use api_types::checksum::crc32c;
use bytes::Bytes;
use nodeagent_device::Device;
use std::fmt;

const HEAD_BYTES: u32 = (1 << 20) + 4096;
const TAIL_BYTES: u64 = 128 << 10;

/// One thing found on a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// What it is: `ext4`, `xfs`, `gpt`, `basalt` ...
    pub kind: &'static str,
    /// What tells it from another of its kind: its UUID where it has one, else a checksum of its first bytes.
    pub id: String,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

/// What a device holds. Prints the exact id that allows it to be overwritten.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    /// Everything that was recognised, and `data` when there are only bytes of no known kind. Empty: a blank device.
    pub signatures: Vec<Signature>,
    /// The superblock, when it is a device of ours.
    pub superblock: Option<Superblock>,
}

impl Contents {
    /// There is nothing on it.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.signatures.is_empty()
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_blank() {
            return f.write_str("blank");
        }
        for (index, signature) in self.signatures.iter().enumerate() {
            if index > 0 {
                f.write_str("+")?;
            }
            write!(f, "{signature}")?;
        }
        Ok(())
    }
}

/// The device can't be looked at.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {name} to see what it holds")]
pub struct InspectError {
    name: String,
    #[source]
    source: std::io::Error,
}

/// Looks at the first MiB and the last 128 KiB of a device for filesystems, partition tables, volume managers,
/// encryption, and stores of ours. Bytes of no known kind count as contents too.
pub async fn inspect(device: &dyn Device) -> Result<Contents, InspectError> {
    let info = device.info().clone();
    let fail = |source| InspectError { name: info.name.clone(), source };
    let head_bytes = u32::try_from(info.size_bytes.min(u64::from(HEAD_BYTES))).unwrap_or(HEAD_BYTES);
    let head = device.read(0, head_bytes, QosClass::Foreground).await.map_err(fail)?;
    let tail_bytes = info.size_bytes.min(TAIL_BYTES);
    let tail_length = u32::try_from(tail_bytes).unwrap_or(0);
    let tail = device.read(info.size_bytes - tail_bytes, tail_length, QosClass::Foreground).await.map_err(fail)?;
    Ok(recognise(&head, &tail))
}

fn recognise(head: &Bytes, tail: &Bytes) -> Contents {
    let mut contents = Contents::default();
    for at in SUPERBLOCK_AT {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let Some(bytes) = head.get(at..at.saturating_add(SUPERBLOCK_BYTES)) else { continue };
        match Superblock::decode(bytes) {
            Ok(superblock) => {
                contents.superblock.get_or_insert(superblock);
            }
            Err(SuperblockError::Absent) => {}
            Err(_) => contents.signatures.push(Signature { kind: "basalt-damaged", id: checksum(bytes) }),
        }
    }
    if let Some(superblock) = &contents.superblock {
        let id = format!("{}/{}", superblock.cluster, superblock.device);
        contents.signatures = vec![Signature { kind: "basalt", id }];
    }
    let known = MAGICS.iter().filter_map(|magic| magic.find(head));
    contents.signatures.extend(known);
    contents.signatures.extend(at_the_end(tail));
    contents.signatures.sort();
    contents.signatures.dedup();
    if contents.signatures.is_empty() && head.iter().any(|byte| *byte != 0) {
        contents.signatures.push(Signature { kind: "data", id: checksum(head) });
    }
    contents
}

/// A few bytes at a known place, and where the UUID of the thing stands.
struct Magic {
    kind: &'static str,
    at: usize,
    bytes: &'static [u8],
    uuid_at: Option<usize>,
}

const MAGICS: [Magic; 20] = [
    Magic { kind: "ext4", at: 1024 + 56, bytes: &[0x53, 0xef], uuid_at: Some(1024 + 104) },
    Magic { kind: "xfs", at: 0, bytes: b"XFSB", uuid_at: Some(32) },
    Magic { kind: "btrfs", at: 0x10040, bytes: b"_BHRfS_M", uuid_at: Some(0x10020) },
    Magic { kind: "f2fs", at: 1024, bytes: &[0x10, 0x20, 0xf5, 0xf2], uuid_at: Some(1024 + 108) },
    Magic { kind: "ntfs", at: 3, bytes: b"NTFS    ", uuid_at: None },
    Magic { kind: "exfat", at: 3, bytes: b"EXFAT   ", uuid_at: None },
    Magic { kind: "swap", at: 4096 - 10, bytes: b"SWAPSPACE2", uuid_at: Some(1024 + 12) },
    Magic { kind: "luks", at: 0, bytes: b"LUKS\xba\xbe", uuid_at: None },
    Magic { kind: "lvm", at: 512, bytes: b"LABELONE", uuid_at: None },
    Magic { kind: "lvm", at: 0, bytes: b"LABELONE", uuid_at: None },
    Magic { kind: "lvm", at: 1024, bytes: b"LABELONE", uuid_at: None },
    Magic { kind: "gpt", at: 512, bytes: b"EFI PART", uuid_at: Some(512 + 56) },
    Magic { kind: "gpt", at: 4096, bytes: b"EFI PART", uuid_at: Some(4096 + 56) },
    Magic { kind: "mbr", at: 510, bytes: &[0x55, 0xaa], uuid_at: None },
    Magic { kind: "md", at: 0, bytes: &MD, uuid_at: Some(16) },
    Magic { kind: "md", at: 4096, bytes: &MD, uuid_at: Some(4096 + 16) },
    Magic { kind: "bluestore", at: 0, bytes: b"bluestore block device", uuid_at: None },
    Magic { kind: "iso9660", at: 0x8001, bytes: b"CD001", uuid_at: None },
    Magic { kind: "bcache", at: 4096 + 24, bytes: &BCACHE, uuid_at: Some(4096 + 40) },
    Magic { kind: "zfs", at: 128 << 10, bytes: &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0], uuid_at: None },
];
const MD: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];
const BCACHE: [u8; 16] = [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];

impl Magic {
    fn find(&self, head: &[u8]) -> Option<Signature> {
        (head.get(self.at..self.at + self.bytes.len())? == self.bytes).then(|| Signature { kind: self.kind, id: self.id(head) })
    }

    fn id(&self, head: &[u8]) -> String {
        let uuid = self.uuid_at.and_then(|at| head.get(at..at + 16)).and_then(|bytes| uuid::Uuid::from_slice(bytes).ok());
        uuid.map_or_else(|| checksum(&head[..head.len().min(4096)]), |uuid| uuid.to_string())
    }
}

/// The backup of a partition table, and arrays that keep their superblock at the end.
fn at_the_end(tail: &[u8]) -> Vec<Signature> {
    let from_end = |distance: usize| tail.len().checked_sub(distance).map(|at| &tail[at..]);
    let mut found = Vec::new();
    for distance in [512, 4096] {
        if let Some(bytes) = from_end(distance).filter(|bytes| bytes.starts_with(b"EFI PART")) {
            found.push(Signature { kind: "gpt-backup", id: checksum(&bytes[..512]) });
        }
    }
    // Version 1.0 stands 8 to 12 KiB before the end; 0.90 in the last whole 64 KiB but one, whatever the size is.
    let arrays = tail.chunks(4096).filter(|block| block.starts_with(&MD));
    found.extend(arrays.map(|block| Signature { kind: "md", id: checksum(block) }));
    found
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32c(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> (Vec<u8>, Vec<u8>) {
        (vec![0; HEAD_BYTES as usize], vec![0; TAIL_BYTES as usize])
    }

    fn look(head: Vec<u8>, tail: Vec<u8>) -> Contents {
        recognise(&Bytes::from(head), &Bytes::from(tail))
    }

    #[test]
    fn zeros_are_blank() {
        let (head, tail) = blank();
        let contents = look(head, tail);
        assert!(contents.is_blank());
        assert_eq!(contents.to_string(), "blank");
    }

    #[test]
    fn every_magic_is_recognised_by_its_name() {
        for magic in &MAGICS {
            let (mut head, tail) = blank();
            head[magic.at..magic.at + magic.bytes.len()].copy_from_slice(magic.bytes);
            let contents = look(head, tail);
            assert!(contents.signatures.iter().any(|found| found.kind == magic.kind), "{}", magic.kind);
        }
    }

    #[test]
    fn an_id_is_the_uuid_where_there_is_one() {
        let (mut head, tail) = blank();
        head[1080..1082].copy_from_slice(&[0x53, 0xef]);
        head[1128..1144].copy_from_slice(&[0x11; 16]);
        assert_eq!(look(head, tail).to_string(), "ext4:11111111-1111-1111-1111-111111111111");
    }

    #[test]
    fn arrays_and_backup_tables_at_the_end_are_seen() {
        let (head, mut tail) = blank();
        let end = tail.len();
        tail[end - 512..end - 504].copy_from_slice(b"EFI PART");
        tail[end - 8192..end - 8188].copy_from_slice(&MD);
        let kinds: Vec<_> = look(head, tail).signatures.iter().map(|found| found.kind).collect();
        assert_eq!(kinds, ["gpt-backup", "md"]);
    }

    #[test]
    fn bytes_of_no_known_kind_count_as_contents() {
        let (mut head, tail) = blank();
        head[777] = 1;
        let contents = look(head, tail);
        assert_eq!(contents.signatures[0].kind, "data");
    }
}
