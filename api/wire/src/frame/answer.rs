//! Answers as frames. A number or two travel in the header; more is a plain record in the payload.

use super::{ERROR_TEXT_BYTES_MAX, Flags, Frame, FrameError, Header, Opcode, to_u32};
use api_types::chunk::{ChunkInfo, Error, Response, ScrubReport, Sealed, StoreStats};
use api_types::limits::READ_BYTES_MAX;
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, Epoch, LifetimeClass, OwnerId};
use bytes::Bytes;
use std::time::Duration;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An answer as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What the store said.
    pub result: Result<Response, Error>,
    /// How long the store took; the rest of the client's wait was network and queues.
    pub device_time: Duration,
}

// Numbers of errors on the wire. Never reused.
const UNKNOWN: u8 = 1;
const SEALED: u8 = 2;
const WRONG_OFFSET: u8 = 3;
const FENCED: u8 = 4;
const FULL: u8 = 5;
const CONFLICT: u8 = 6;
const CORRUPT: u8 = 7;
const INVALID: u8 = 8;
const BUSY: u8 = 9;
const DEADLINE: u8 = 10;
const IO: u8 = 11;
const UNREACHABLE: u8 = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawChunk {
    chunk: U64,
    owner: U64,
    epoch: U64,
    capacity: U32,
    length: U32,
    alignment_shift: u8,
    class: u8,
    sealed: u8,
    reserved: [u8; 5],
}
const CHUNK_BYTES: usize = size_of::<RawChunk>();
const LIST_CHUNKS_MAX: usize = READ_BYTES_MAX as usize / CHUNK_BYTES;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawScrub {
    units: U64,
    bytes: U64,
    bad_at: U32,
    bad: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawStats {
    capacity_bytes: U64,
    free_bytes: U64,
    chunks: U64,
    queued: U32,
    reserved: U32,
}

/// The answer to the request with this header, as a frame. An answer that a store gave to another kind of request is
/// the store's mistake, and travels as `Io`.
#[must_use]
pub fn answer_frame(request: &Header, result: Result<Response, Error>, device_time: Duration) -> Frame {
    let mut header = Header::new(request.opcode, true, request.id);
    header.version = request.version;
    header.chunk = request.chunk;
    header.time_us = u32::try_from(device_time.as_micros()).unwrap_or(u32::MAX);
    match result {
        Ok(response) => match put_response(&mut header, response) {
            Ok(payload) => header.carrying(payload),
            Err(error) => put_error(header, &error),
        },
        Err(error) => put_error(header, &error),
    }
}

/// An error instead of an answer, where no store was asked.
#[must_use]
pub fn refusal_frame(request: &Header, error: &Error) -> Frame {
    let mut header = Header::new(request.opcode, true, request.id);
    header.version = request.version;
    header.chunk = request.chunk;
    put_error(header, error)
}

fn put_response(header: &mut Header, response: Response) -> Result<Bytes, Error> {
    let payload = match (header.opcode, response) {
        (Opcode::Append, Response::Append(length)) => {
            header.arg0 = length.into();
            Bytes::new()
        }
        (Opcode::Read, Response::Read(bytes)) if bytes.len() <= READ_BYTES_MAX as usize => bytes,
        (Opcode::Seal, Response::Seal(sealed)) => {
            if let Sealed::At(length) = sealed {
                header.arg0 = length.into();
                header.flags = Flags::PRESENT;
            }
            Bytes::new()
        }
        (Opcode::Delete, Response::Delete) => Bytes::new(),
        (Opcode::Stat, Response::Stat(info)) => Bytes::copy_from_slice(raw_chunk(&info).as_bytes()),
        (Opcode::Scrub, Response::Scrub(report)) => Bytes::copy_from_slice(raw_scrub(&report).as_bytes()),
        (Opcode::Probe, Response::Probe(stats)) => Bytes::copy_from_slice(raw_stats(&stats).as_bytes()),
        // As many as fit: the client goes on above the last one it got.
        (Opcode::List, Response::List(chunks)) => {
            chunks.iter().take(LIST_CHUNKS_MAX).flat_map(|info| raw_chunk(info).as_bytes().to_vec()).collect()
        }
        (opcode, _) => return Err(Error::Io(format!("the store answered something else than a {}", opcode.as_str()))),
    };
    Ok(payload)
}

fn put_error(mut header: Header, error: &Error) -> Frame {
    let mut text = "";
    header.code = match error {
        Error::Unknown => UNKNOWN,
        Error::Sealed { length } => {
            header.arg0 = (*length).into();
            SEALED
        }
        Error::WrongOffset { expected } => {
            header.arg0 = (*expected).into();
            WRONG_OFFSET
        }
        Error::Fenced { floor } => {
            header.epoch = *floor;
            FENCED
        }
        Error::Full => FULL,
        Error::Conflict => CONFLICT,
        Error::Corrupt { offset } => {
            header.arg0 = (*offset).into();
            CORRUPT
        }
        Error::Invalid(why) => {
            text = why;
            INVALID
        }
        Error::Busy => BUSY,
        Error::Deadline => DEADLINE,
        Error::Io(why) => {
            text = why;
            IO
        }
        Error::Unreachable(why) => {
            text = why;
            UNREACHABLE
        }
    };
    let cut = text.floor_char_boundary(ERROR_TEXT_BYTES_MAX);
    header.carrying(Bytes::copy_from_slice(&text.as_bytes()[..cut]))
}

/// Reads an answer from a frame whose payload has been verified.
pub fn read_answer(frame: Frame) -> Result<Answer, FrameError> {
    let Frame { header, payload } = frame;
    if !header.response || header.opcode == Opcode::Hello {
        return Err(FrameError::Field("opcode"));
    }
    let result = if header.code == 0 { Ok(get_response(&header, payload)?) } else { Err(get_error(&header, &payload)?) };
    Ok(Answer { result, device_time: Duration::from_micros(header.time_us.into()) })
}

fn get_response(header: &Header, payload: Bytes) -> Result<Response, FrameError> {
    let bare = |response| if payload.is_empty() { Ok(response) } else { Err(FrameError::Field("payload length")) };
    match header.opcode {
        Opcode::Append => bare(Response::Append(to_u32(header.arg0, "length")?)),
        Opcode::Read => Ok(Response::Read(payload)),
        Opcode::Seal if header.flags.has(Flags::PRESENT) => bare(Response::Seal(Sealed::At(to_u32(header.arg0, "length")?))),
        Opcode::Seal => bare(Response::Seal(Sealed::Absent)),
        Opcode::Delete => bare(Response::Delete),
        Opcode::Stat => Ok(Response::Stat(chunk_info(&record(&payload)?)?)),
        Opcode::Scrub => {
            let raw: RawScrub = record(&payload)?;
            let bad_at = (raw.bad.get() != 0).then_some(raw.bad_at.get());
            Ok(Response::Scrub(ScrubReport { units: raw.units.get(), bytes: raw.bytes.get(), bad_at }))
        }
        Opcode::Probe => {
            let raw: RawStats = record(&payload)?;
            Ok(Response::Probe(StoreStats {
                capacity_bytes: raw.capacity_bytes.get(),
                free_bytes: raw.free_bytes.get(),
                chunks: raw.chunks.get(),
                queued: raw.queued.get(),
            }))
        }
        Opcode::List => {
            let (records, rest) = payload.as_chunks::<CHUNK_BYTES>();
            if !rest.is_empty() {
                return Err(FrameError::Field("payload length"));
            }
            records.iter().map(|bytes| chunk_info(&record(bytes)?)).collect::<Result<_, _>>().map(Response::List)
        }
        Opcode::Hello => Err(FrameError::Field("opcode")),
    }
}

fn get_error(header: &Header, payload: &[u8]) -> Result<Error, FrameError> {
    if payload.len() > ERROR_TEXT_BYTES_MAX {
        return Err(FrameError::Field("error text"));
    }
    let text = || std::str::from_utf8(payload).map(str::to_owned).map_err(|_| FrameError::Field("error text"));
    let place = || to_u32(header.arg0, "offset");
    Ok(match header.code {
        UNKNOWN => Error::Unknown,
        SEALED => Error::Sealed { length: place()? },
        WRONG_OFFSET => Error::WrongOffset { expected: place()? },
        FENCED => Error::Fenced { floor: header.epoch },
        FULL => Error::Full,
        CONFLICT => Error::Conflict,
        CORRUPT => Error::Corrupt { offset: place()? },
        INVALID => Error::Invalid(text()?),
        BUSY => Error::Busy,
        DEADLINE => Error::Deadline,
        IO => Error::Io(text()?),
        UNREACHABLE => Error::Unreachable(text()?),
        _ => return Err(FrameError::Field("code")),
    })
}

fn record<R: FromBytes>(payload: &[u8]) -> Result<R, FrameError> {
    R::read_from_bytes(payload).map_err(|_| FrameError::Field("payload length"))
}

fn raw_chunk(info: &ChunkInfo) -> RawChunk {
    RawChunk {
        chunk: info.shape.chunk.0.into(),
        owner: info.shape.owner.0.into(),
        epoch: info.shape.epoch.0.into(),
        capacity: info.shape.capacity.into(),
        length: info.length.into(),
        alignment_shift: info.shape.alignment.shift(),
        class: info.shape.class as u8,
        sealed: info.sealed.into(),
        reserved: [0; 5],
    }
}

fn chunk_info(raw: &RawChunk) -> Result<ChunkInfo, FrameError> {
    Ok(ChunkInfo {
        shape: ChunkShape {
            chunk: ChunkId(raw.chunk.get()),
            owner: OwnerId(raw.owner.get()),
            epoch: Epoch(raw.epoch.get()),
            capacity: raw.capacity.get(),
            alignment: Alignment::from_shift(raw.alignment_shift).ok_or(FrameError::Field("alignment"))?,
            class: LifetimeClass::from_u8(raw.class).ok_or(FrameError::Field("lifetime class"))?,
        },
        length: raw.length.get(),
        sealed: match raw.sealed {
            0 => false,
            1 => true,
            _ => return Err(FrameError::Field("sealed")),
        },
    })
}

fn raw_scrub(report: &ScrubReport) -> RawScrub {
    RawScrub {
        units: report.units.into(),
        bytes: report.bytes.into(),
        bad_at: report.bad_at.unwrap_or(0).into(),
        bad: u32::from(report.bad_at.is_some()).into(),
    }
}

fn raw_stats(stats: &StoreStats) -> RawStats {
    RawStats {
        capacity_bytes: stats.capacity_bytes.into(),
        free_bytes: stats.free_bytes.into(),
        chunks: stats.chunks.into(),
        queued: stats.queued.into(),
        reserved: 0.into(),
    }
}
