//! The log's files: segments of a fixed size, filled with zeros before use, so that a sync changes no file length and
//! no extent. Only the last one is written. A segment is made when the one before it is full and synced.
//!
//! After a crash the last segment may end in records that were never synced and are torn: they go. A record that was
//! synced once and doesn't verify now is damage, and the log refuses to open.

use crate::error::OpenError;
use crate::file::{VERSION, sync_directory};
use crate::record::{self, Kind, Record};
use crc32c::crc32c;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"BSLG";
const HEADER_BYTES: u64 = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    version: U32,
    first_sequence: U64,
    zeros: [u8; 12],
    crc: U32,
}

/// One file of the log.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    first_sequence: u64,
    bytes: u64,
}

/// See the module. Used by one thread.
#[derive(Debug)]
pub(crate) struct SegmentLog {
    directory: PathBuf,
    segment_bytes: u64,
    segments: Vec<Segment>,
    current: File,
    /// Where the next record goes in the current segment.
    offset: u64,
    next_sequence: u64,
    synced: u64,
}

impl SegmentLog {
    /// Opens the log in a directory, and hands out what it holds.
    pub(crate) fn open(directory: &Path, segment_bytes: u64) -> Result<(SegmentLog, Vec<Record>), OpenError> {
        fs::create_dir_all(directory).map_err(OpenError::io(directory))?;
        let mut segments = list(directory)?;
        let mut records: Vec<Record> = Vec::new();
        let mut end = HEADER_BYTES;
        let count = segments.len();
        for (nth, segment) in segments.iter_mut().enumerate() {
            let bytes = fs::read(&segment.path).map_err(OpenError::io(&segment.path))?;
            segment.bytes = bytes.len() as u64;
            segment.first_sequence = read_header(&segment.path, &bytes)?;
            let expected = records.last().map_or(segment.first_sequence, |record| record.sequence + 1);
            if segment.first_sequence != expected {
                return Err(OpenError::damaged(
                    &segment.path,
                    format!("it starts with record {}, the one before ends before {expected}", segment.first_sequence),
                ));
            }
            end = scan(&segment.path, &bytes, expected, &mut records)?;
            if nth + 1 == count {
                clear_tail(&segment.path, &bytes, end)?;
            }
        }
        let next_sequence = records.last().map(|record| record.sequence + 1);
        let next_sequence = next_sequence.or_else(|| segments.last().map(|segment| segment.first_sequence)).unwrap_or(1);
        if segments.is_empty() {
            segments.push(create(directory, segment_bytes, 1).map_err(OpenError::io(directory))?);
        }
        let Some(last) = segments.last() else { return Err(OpenError::Config("a log has at least one segment".into())) };
        let current = OpenOptions::new().write(true).open(&last.path).map_err(OpenError::io(&last.path))?;
        // What a killed process wrote may be in the page cache only.
        current.sync_data().map_err(OpenError::io(&last.path))?;
        let synced = next_sequence - 1;
        let log =
            SegmentLog { directory: directory.into(), segment_bytes, segments, current, offset: end, next_sequence, synced };
        Ok((log, records))
    }

    /// Writes records. They are durable after the next [`Self::sync`]. Answers the sequence of the last one.
    pub(crate) fn append(&mut self, records: &[(Kind, Vec<u8>)]) -> io::Result<u64> {
        let mut pending = Vec::new();
        for (kind, body) in records {
            if body.len() > record::BODY_BYTES_MAX {
                return Err(io::Error::other(format!("a record of {} bytes is too long", body.len())));
            }
            let bytes = record::record_bytes(body.len()) as u64;
            let capacity = self.segments.last().map_or(0, |segment| segment.bytes);
            if self.offset + pending.len() as u64 + bytes > capacity {
                self.write(&mut pending)?;
                self.roll(bytes)?;
            }
            record::encode(&mut pending, self.next_sequence, self.synced, *kind, body);
            self.next_sequence += 1;
        }
        self.write(&mut pending)?;
        Ok(self.next_sequence - 1)
    }

    fn write(&mut self, pending: &mut Vec<u8>) -> io::Result<()> {
        self.current.write_all_at(pending, self.offset)?;
        self.offset += pending.len() as u64;
        pending.clear();
        Ok(())
    }

    /// Makes everything durable that was appended.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.current.sync_data()?;
        self.synced = self.next_sequence - 1;
        Ok(())
    }

    fn roll(&mut self, record_bytes: u64) -> io::Result<()> {
        self.sync()?;
        let bytes = self.segment_bytes.max(HEADER_BYTES + record_bytes);
        let segment = create(&self.directory, bytes, self.next_sequence)?;
        self.current = OpenOptions::new().write(true).open(&segment.path)?;
        self.segments.push(segment);
        self.offset = HEADER_BYTES;
        Ok(())
    }

    /// Removes the segments that hold nothing from `sequence` on.
    pub(crate) fn drop_before(&mut self, sequence: u64) -> io::Result<()> {
        let unneeded = self.segments.windows(2).take_while(|pair| pair[1].first_sequence <= sequence).count();
        if unneeded == 0 {
            return Ok(());
        }
        for segment in self.segments.drain(..unneeded) {
            fs::remove_file(&segment.path)?;
        }
        sync_directory(&self.directory)
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

fn list(directory: &Path) -> Result<Vec<Segment>, OpenError> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory).map_err(OpenError::io(directory))? {
        let path = entry.map_err(OpenError::io(directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".new") {
            // A segment that was never finished holds nothing.
            fs::remove_file(&path).map_err(OpenError::io(&path))?;
        } else if let Some(first_sequence) = name.strip_prefix("log-").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            segments.push(Segment { path, first_sequence, bytes: 0 });
        }
    }
    segments.sort_by_key(|segment| segment.first_sequence);
    Ok(segments)
}

fn create(directory: &Path, bytes: u64, first_sequence: u64) -> io::Result<Segment> {
    let mut header = Header {
        magic: u32::from_le_bytes(MAGIC).into(),
        version: VERSION.into(),
        first_sequence: first_sequence.into(),
        zeros: [0; 12],
        crc: 0.into(),
    };
    header.crc = crc32c(&header.as_bytes()[..HEADER_BYTES as usize - 4]).into();
    let path = directory.join(format!("log-{first_sequence:016x}"));
    let temporary = directory.join(format!("log-{first_sequence:016x}.new"));
    let file = File::create(&temporary)?;
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let step = zeros.len().min(usize::try_from(bytes - at).unwrap_or(zeros.len()));
        file.write_all_at(&zeros[..step], at)?;
        at += step as u64;
    }
    file.write_all_at(header.as_bytes(), 0)?;
    file.sync_all()?;
    fs::rename(&temporary, &path)?;
    sync_directory(directory)?;
    Ok(Segment { path, first_sequence, bytes })
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<u64, OpenError> {
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| OpenError::damaged(path, "it is shorter than its header"))?;
    if header.magic.get() != u32::from_le_bytes(MAGIC) || crc32c(&bytes[..HEADER_BYTES as usize - 4]) != header.crc.get() {
        return Err(OpenError::damaged(path, "its header does not verify"));
    }
    if header.version.get() != VERSION {
        return Err(OpenError::Version { path: path.into(), version: header.version.get() });
    }
    Ok(header.first_sequence.get())
}

/// Reads the records of a segment; answers where they end.
fn scan(path: &Path, bytes: &[u8], first_sequence: u64, records: &mut Vec<Record>) -> Result<u64, OpenError> {
    let (mut at, mut expected) = (HEADER_BYTES as usize, first_sequence);
    while let Some(record) = bytes.get(at..).and_then(record::decode).filter(|record| record.sequence == expected) {
        at += record::record_bytes(record.body.len());
        expected += 1;
        records.push(record);
    }
    // Whatever stands behind was either never synced, or proves that what is missing here was.
    let mut later = at + 8;
    while later + record::HEAD_BYTES <= bytes.len() {
        if bytes[later..later + 4] != [0; 4]
            && let Some(record) = record::decode(&bytes[later..])
            && record.sequence > expected
            && record.synced >= expected
        {
            return Err(OpenError::damaged(path, format!("record {expected} at byte {at} was written once and does not verify")));
        }
        later += 8;
    }
    Ok(at as u64)
}

/// Overwrites a torn tail with zeros, so that it can't come back behind new records.
fn clear_tail(path: &Path, bytes: &[u8], end: u64) -> Result<(), OpenError> {
    let from = usize::try_from(end).unwrap_or(bytes.len()).min(bytes.len());
    let Some(last) = bytes[from..].iter().rposition(|byte| *byte != 0) else { return Ok(()) };
    let file = OpenOptions::new().write(true).open(path).map_err(OpenError::io(path))?;
    file.write_all_at(&vec![0; last + 1], end).map_err(OpenError::io(path))?;
    file.sync_data().map_err(OpenError::io(path))
}

#[cfg(test)]
mod tests;
