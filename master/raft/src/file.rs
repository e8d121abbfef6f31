//! Small files that are replaced as a whole: written beside, synced, renamed. They are the old one or the new one after
//! a crash, never a part of both.
//!
//! ```text
//!  magic u32 | version u32 | head length u32 | head CRC u32 | body length u64 | body CRC u32 | header CRC u32 | head | body
//! ```

use crate::error::OpenError;
use crc32c::crc32c;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of all files of a master.
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    version: U32,
    head_bytes: U32,
    head_crc: U32,
    body_bytes: U64,
    body_crc: U32,
    header_crc: U32,
}

/// Makes the directory remember which files are in it.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Replaces `directory/name` by a file with this head and body, durably.
pub(crate) fn replace(directory: &Path, name: &str, magic: [u8; 4], head: &[u8], body: &[u8]) -> io::Result<()> {
    let too_long = || io::Error::other("head of a file is longer than 4 GiB");
    let mut header = Header {
        magic: u32::from_le_bytes(magic).into(),
        version: VERSION.into(),
        head_bytes: u32::try_from(head.len()).map_err(|_| too_long())?.into(),
        head_crc: crc32c(head).into(),
        body_bytes: (body.len() as u64).into(),
        body_crc: crc32c(body).into(),
        header_crc: 0.into(),
    };
    header.header_crc = crc32c(&header.as_bytes()[..HEADER_BYTES - 4]).into();
    let temporary = directory.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(header.as_bytes())?;
    file.write_all(head)?;
    file.write_all(body)?;
    file.sync_all()?;
    fs::rename(&temporary, directory.join(name))?;
    sync_directory(directory)
}

/// Head and body of a file.
pub(crate) type Parts = (Vec<u8>, Vec<u8>);

/// Reads head and body of a file; `None` when there is none.
pub(crate) fn read(path: &Path, magic: [u8; 4]) -> Result<Option<Parts>, OpenError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io(path)(error)),
    };
    let damaged = |what: &str| OpenError::damaged(path, what);
    let (header, rest) = Header::read_from_prefix(&bytes).map_err(|_| damaged("it is shorter than its header"))?;
    if header.magic.get() != u32::from_le_bytes(magic) {
        return Err(damaged("it starts with other bytes than it should"));
    }
    if crc32c(&bytes[..HEADER_BYTES - 4]) != header.header_crc.get() {
        return Err(damaged("its header does not verify"));
    }
    if header.version.get() != VERSION {
        return Err(OpenError::Version { path: path.into(), version: header.version.get() });
    }
    let head_bytes = header.head_bytes.get() as usize;
    if rest.len() as u64 != head_bytes as u64 + header.body_bytes.get() {
        return Err(damaged("it has not the length its header says"));
    }
    let (head, body) = rest.split_at(head_bytes);
    if crc32c(head) != header.head_crc.get() || crc32c(body) != header.body_crc.get() {
        return Err(damaged("its content does not verify"));
    }
    Ok(Some((head.to_vec(), body.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back_and_every_flipped_byte_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        assert!(read(&path, *b"TEST").unwrap().is_none());
        replace(directory.path(), "f", *b"TEST", b"head", b"and body").unwrap();
        assert_eq!(read(&path, *b"TEST").unwrap(), Some((b"head".to_vec(), b"and body".to_vec())));
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(read(&path, *b"TEST").is_err(), "byte {at}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(read(&path, *b"TEST").is_err());
    }
}
