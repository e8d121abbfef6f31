//! What a device holds, read from its own bytes. Decides whether a filesystem may be made: only where nothing is.

use crate::parameters::Filesystem;
use std::io::{self, Read, Seek, SeekFrom};

/// How much of the start must be zero for a device to be blank. Every signature that matters lies in it or at the end.
const HEAD_BYTES: u64 = 1 << 20;

/// How much of the end must be zero too: spare partition tables and RAID superblocks lie there.
const TAIL_BYTES: u64 = 64 << 10;

/// What a device holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing: a filesystem may be made.
    Blank,
    /// A filesystem of ours.
    Filesystem {
        /// Which.
        kind: Filesystem,
        /// How large it is, whatever the size of the device.
        size_bytes: u64,
    },
    /// An XFS whose making was broken off: it says so itself, and can't hold data.
    HalfMade,
    /// Bytes without a signature: the remains of a filesystem that was being made, or somebody's data.
    Unsigned,
    /// Something else that has a name.
    Foreign(&'static str),
}

/// Signatures that get a name: offset, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 14] = [
    (0, b"LUKS\xba\xbe", "a LUKS container"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "bcache or bcachefs"),
    (0x400, b"\x10\x20\xf5\xf2", "f2fs"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"BSLTDISK", "a device of a Basalt agent"),
    (510, b"\x55\xaa", "a partition table or a FAT filesystem"),
];

/// Looks at a device.
pub fn inspect<D: Read + Seek>(device: &mut D) -> io::Result<Content> {
    let size = device.seek(SeekFrom::End(0))?;
    let head = read(device, 0, HEAD_BYTES.min(size))?;
    if let Some(content) = ext(&head).or_else(|| xfs(&head)) {
        return Ok(content);
    }
    let has = |(offset, magic, _): &(usize, &[u8], &str)| head.get(*offset..offset + magic.len()) == Some(*magic);
    if let Some((_, _, name)) = SIGNATURES.iter().find(|signature| has(signature)) {
        return Ok(Content::Foreign(name));
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !is_zero(&head) {
        return Ok(Content::Unsigned);
    }
    let tail = TAIL_BYTES.min(size);
    if !is_zero(&read(device, size - tail, tail)?) {
        return Ok(Content::Unsigned);
    }
    Ok(Content::Blank)
}

fn read<D: Read + Seek>(device: &mut D, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    device.seek(SeekFrom::Start(offset))?;
    let mut bytes = vec![0; length as usize];
    device.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The superblock of ext2, ext3 and ext4 lies at 1024; numbers are little-endian.
fn ext(head: &[u8]) -> Option<Content> {
    let superblock = head.get(1024..2048)?;
    let word = |at: usize| u32::from_le_bytes([superblock[at], superblock[at + 1], superblock[at + 2], superblock[at + 3]]);
    if superblock[0x38..0x3a] != [0x53, 0xef] {
        return None;
    }
    let (incompatible, has_extents, has_64bit) = (word(0x60), 0x40, 0x80);
    if incompatible & has_extents == 0 {
        return Some(Content::Foreign("ext2 or ext3"));
    }
    let high = if incompatible & has_64bit == 0 { 0 } else { u64::from(word(0x150)) };
    let blocks = high << 32 | u64::from(word(0x4));
    let size_bytes = blocks.saturating_mul(1024 << word(0x18).min(6));
    Some(Content::Filesystem { kind: Filesystem::Ext4, size_bytes })
}

/// The superblock of XFS lies at 0; numbers are big-endian. Byte 126 is set until mkfs has ended.
fn xfs(head: &[u8]) -> Option<Content> {
    let superblock = head.get(..128)?;
    if !superblock.starts_with(b"XFSB") {
        return None;
    }
    if superblock[126] != 0 {
        return Some(Content::HalfMade);
    }
    let block = u32::from_be_bytes(superblock[4..8].try_into().ok()?);
    let blocks = u64::from_be_bytes(superblock[8..16].try_into().ok()?);
    Some(Content::Filesystem { kind: Filesystem::Xfs, size_bytes: blocks.saturating_mul(u64::from(block)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn look(size: usize, writes: &[(usize, &[u8])]) -> Content {
        let mut bytes = vec![0; size];
        for (offset, data) in writes {
            bytes[*offset..offset + data.len()].copy_from_slice(data);
        }
        inspect(&mut Cursor::new(bytes)).unwrap()
    }

    #[test]
    fn only_zeros_are_blank() {
        assert_eq!(look(8 << 20, &[]), Content::Blank);
        assert_eq!(look(4096, &[]), Content::Blank);
        assert_eq!(look(8 << 20, &[(700_000, b"x")]), Content::Unsigned);
        assert_eq!(look(8 << 20, &[((8 << 20) - 1, b"x")]), Content::Unsigned);
    }

    #[test]
    fn foreign_content_has_a_name() {
        for (offset, magic, name) in SIGNATURES {
            assert_eq!(look(2 << 20, &[(offset, magic)]), Content::Foreign(name));
        }
        assert_eq!(look(2 << 20, &[(1024 + 0x38, &[0x53, 0xef])]), Content::Foreign("ext2 or ext3"));
    }

    #[test]
    fn an_xfs_in_the_making_is_known_as_such() {
        assert_eq!(look(2 << 20, &[(0, b"XFSB"), (126, &[1])]), Content::HalfMade);
        let made = look(2 << 20, &[(0, b"XFSB"), (4, &4096u32.to_be_bytes()), (8, &100u64.to_be_bytes())]);
        assert_eq!(made, Content::Filesystem { kind: Filesystem::Xfs, size_bytes: 409_600 });
    }

    #[test]
    fn what_the_tools_make_is_recognised_with_its_size() {
        let dir = tempfile::tempdir().unwrap();
        for (tool, kind, size) in [("mkfs.ext4", Filesystem::Ext4, 64u64 << 20), ("mkfs.xfs", Filesystem::Xfs, 512 << 20)] {
            let path = dir.path().join(tool);
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            match std::process::Command::new(tool).arg("-q").arg(&path).status() {
                Ok(status) => assert!(status.success(), "{tool}"),
                Err(error) => {
                    eprintln!("skipped: {tool}: {error}");
                    continue;
                }
            }
            let content = inspect(&mut std::fs::File::open(&path).unwrap()).unwrap();
            assert_eq!(content, Content::Filesystem { kind, size_bytes: size });
        }
    }
}
