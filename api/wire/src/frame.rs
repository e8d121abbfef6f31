//! Frames of the data path: 64 bytes of header, then a payload. The byte table is in `docs/protocol.md`.
//!
//! ```text
//! | magic 4 | version 1 | opcode 1 | code 1 | flags 1 | id 8 | chunk 8 | epoch 8 |
//! | arg0 8 | arg1 8 | time 4 | payload length 4 | payload CRC 4 | header CRC 4 | payload … |      little-endian
//! ```
//! Pure: bytes in, values out. Every length is checked against its limit before anyone allocates for it, both checksums
//! before anyone believes a byte. A peer that sends anything else gets its connection closed: there is no way to find
//! the next frame in a stream of bytes that can't be trusted.

mod answer;
mod ask;
mod hello;

pub use answer::{Answer, answer_frame, read_answer, refusal_frame};
pub use ask::{Ask, ask_frame, check_request, payload_of, read_ask};
pub use hello::{
    Greeting, Hello, NAME_BYTES_MAX, Refusal, choose_version, hello_frame, read_greeting, read_hello, welcome_frame,
};

use api_types::checksum::crc32c;
use api_types::limits::{READ_BYTES_MAX, UNIT_BYTES_MAX};
use api_types::{ChunkId, Epoch};
use bytes::Bytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 64;
/// The oldest version of the frames that this code speaks.
pub const VERSION_MIN: u8 = 1;
/// The newest version of the frames that this code speaks.
pub const VERSION_MAX: u8 = 1;
/// The longest text of an error, in bytes; longer ones are cut.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"BSLF");
const RESPONSE: u8 = 0x80;

/// What a frame asks or answers. The number is the one on the wire; an answer's has the top bit set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// First frame of a connection: who is asking for which device, in which versions.
    Hello = 1,
    /// See `chunk::Append`.
    Append = 2,
    /// See `chunk::Read`.
    Read = 3,
    /// See `chunk::Seal`.
    Seal = 4,
    /// See `chunk::Request::Delete`.
    Delete = 5,
    /// See `chunk::Request::Stat`.
    Stat = 6,
    /// See `chunk::Request::Scrub`.
    Scrub = 7,
    /// See `chunk::Request::Probe`.
    Probe = 8,
    /// See `chunk::Request::List`.
    List = 9,
}

impl Opcode {
    /// All of them, by number.
    pub const ALL: [Opcode; 9] = [
        Opcode::Hello,
        Opcode::Append,
        Opcode::Read,
        Opcode::Seal,
        Opcode::Delete,
        Opcode::Stat,
        Opcode::Scrub,
        Opcode::Probe,
        Opcode::List,
    ];

    /// The one with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Opcode::Hello => "hello",
            Opcode::Append => "append",
            Opcode::Read => "read",
            Opcode::Seal => "seal",
            Opcode::Delete => "delete",
            Opcode::Stat => "stat",
            Opcode::Scrub => "scrub",
            Opcode::Probe => "probe",
            Opcode::List => "list",
        }
    }

    /// The longest payload that a frame of this kind may have.
    #[must_use]
    pub fn payload_bytes_max(self, response: bool) -> u32 {
        const TEXT: u32 = ERROR_TEXT_BYTES_MAX as u32;
        match (self, response) {
            (Opcode::Append, false) => UNIT_BYTES_MAX,
            (Opcode::Read | Opcode::List, true) => READ_BYTES_MAX,
            (Opcode::Hello, false) => hello::PAYLOAD_BYTES_MAX,
            (_, true) => TEXT,
            (_, false) => 0,
        }
    }
}

/// Yes-or-no properties of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// Append: create the chunk when it isn't there.
    pub const CREATE: Flags = Flags(1);
    /// Request: this operation is traced; the server records its stages.
    pub const TRACE: Flags = Flags(1 << 1);
    /// Seal request: `arg1` holds the length to cut at. Seal answer: the chunk is there and `arg0` is its length.
    pub const PRESENT: Flags = Flags(1 << 2);
    const KNOWN: u8 = 0b111;

    /// Has all of these.
    #[must_use]
    pub fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// With these too, when `on`.
    #[must_use]
    pub fn with(self, flags: Flags, on: bool) -> Flags {
        if on { Flags(self.0 | flags.0) } else { self }
    }
}

/// A header, decoded and verified, or yet to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version the connection settled on.
    pub version: u8,
    /// What it is about.
    pub opcode: Opcode,
    /// An answer, not a request.
    pub response: bool,
    /// Request: the QoS class. Answer: zero, or the number of the error.
    pub code: u8,
    /// See [`Flags`].
    pub flags: Flags,
    /// Chosen by the client, repeated by the server.
    pub id: u64,
    /// The chunk, repeated in the answer.
    pub chunk: ChunkId,
    /// The writer's epoch; in an error, the lowest epoch allowed.
    pub epoch: Epoch,
    /// Meaning by opcode.
    pub arg0: u64,
    /// Meaning by opcode.
    pub arg1: u64,
    /// Microseconds. Request: the time left until the client gives up. Answer: the time the store took.
    pub time_us: u32,
    /// Length of the payload.
    pub payload_bytes: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

/// A header and its payload.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// Says what the payload is, its length and its checksum.
    pub header: Header,
    /// The bytes.
    pub payload: Bytes,
}

/// Why bytes aren't a frame. After any of these the connection can't be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Something else speaks on this socket.
    #[error("not a frame: the magic number differs")]
    Magic,
    /// A version that wasn't agreed on.
    #[error("frame version {0} is not spoken here")]
    Version(u8),
    /// The header changed on its way.
    #[error("checksum of the frame header differs")]
    HeaderChecksum,
    /// The payload changed on its way.
    #[error("checksum of the frame payload differs")]
    PayloadChecksum,
    /// The header verifies and asks for nonsense.
    #[error("frame field `{0}` is out of range")]
    Field(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: u8,
    opcode: u8,
    code: u8,
    flags: u8,
    id: U64,
    chunk: U64,
    epoch: U64,
    arg0: U64,
    arg1: U64,
    time_us: U32,
    payload_bytes: U32,
    payload_crc: U32,
    header_crc: U32,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const CRC_AT: usize = HEADER_BYTES - 4;

impl Header {
    /// A header with nothing in it but its kind.
    #[must_use]
    pub fn new(opcode: Opcode, response: bool, id: u64) -> Header {
        Header {
            version: VERSION_MAX,
            opcode,
            response,
            code: 0,
            flags: Flags::default(),
            id,
            chunk: ChunkId(0),
            epoch: Epoch(0),
            arg0: 0,
            arg1: 0,
            time_us: 0,
            payload_bytes: 0,
            payload_crc: 0,
        }
    }

    /// The 64 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC.into(),
            version: self.version,
            opcode: self.opcode as u8 | if self.response { RESPONSE } else { 0 },
            code: self.code,
            flags: self.flags.0,
            id: self.id.into(),
            chunk: self.chunk.0.into(),
            epoch: self.epoch.0.into(),
            arg0: self.arg0.into(),
            arg1: self.arg1.into(),
            time_us: self.time_us.into(),
            payload_bytes: self.payload_bytes.into(),
            payload_crc: self.payload_crc.into(),
            header_crc: 0.into(),
        };
        raw.header_crc = crc32c(&raw.as_bytes()[..CRC_AT]).into();
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads and verifies 64 bytes: magic, version, checksum, kind, flags, and that the payload isn't longer than its
    /// kind allows.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let raw = RawHeader::read_from_bytes(bytes).map_err(|_| FrameError::Magic)?;
        if raw.magic.get() != MAGIC {
            return Err(FrameError::Magic);
        }
        if crc32c(&bytes[..CRC_AT]) != raw.header_crc.get() {
            return Err(FrameError::HeaderChecksum);
        }
        if !(VERSION_MIN..=VERSION_MAX).contains(&raw.version) {
            return Err(FrameError::Version(raw.version));
        }
        let opcode = Opcode::from_u8(raw.opcode & !RESPONSE).ok_or(FrameError::Field("opcode"))?;
        let response = raw.opcode & RESPONSE != 0;
        if raw.flags & !Flags::KNOWN != 0 {
            return Err(FrameError::Field("flags"));
        }
        let payload_bytes = raw.payload_bytes.get();
        if payload_bytes > opcode.payload_bytes_max(response) {
            return Err(FrameError::Field("payload length"));
        }
        Ok(Header {
            version: raw.version,
            opcode,
            response,
            code: raw.code,
            flags: Flags(raw.flags),
            id: raw.id.get(),
            chunk: ChunkId(raw.chunk.get()),
            epoch: Epoch(raw.epoch.get()),
            arg0: raw.arg0.get(),
            arg1: raw.arg1.get(),
            time_us: raw.time_us.get(),
            payload_bytes,
            payload_crc: raw.payload_crc.get(),
        })
    }

    /// Says whether these bytes are the payload that the header speaks of.
    pub fn verify(&self, payload: &[u8]) -> Result<(), FrameError> {
        if payload.len() != self.payload_bytes as usize {
            return Err(FrameError::Field("payload length"));
        }
        if crc32c(payload) != self.payload_crc {
            return Err(FrameError::PayloadChecksum);
        }
        Ok(())
    }

    /// The same header, for this payload.
    #[must_use]
    pub fn carrying(self, payload: Bytes) -> Frame {
        let crc = crc32c(&payload);
        self.carrying_with_crc(payload, crc)
    }

    /// The same header, for this payload whose checksum is known.
    #[must_use]
    pub fn carrying_with_crc(mut self, payload: Bytes, crc: u32) -> Frame {
        self.payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.payload_crc = crc;
        Frame { header: self, payload }
    }
}

/// The first frame in `bytes` and how many bytes it took; `None` while it isn't all there. For tests and tools:
/// connections receive header and payload apart, so that a large payload is never copied.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let header = Header::decode(head)?;
    let Some(payload) = rest.get(..header.payload_bytes as usize) else {
        return Ok(None);
    };
    header.verify(payload)?;
    let taken = HEADER_BYTES + payload.len();
    Ok(Some((Frame { header, payload: Bytes::copy_from_slice(payload) }, taken)))
}

/// The bytes of a whole frame in a row. For tests and tools.
#[must_use]
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + frame.payload.len());
    bytes.extend_from_slice(&frame.header.encode());
    bytes.extend_from_slice(&frame.payload);
    bytes
}

fn to_u32(number: u64, field: &'static str) -> Result<u32, FrameError> {
    u32::try_from(number).map_err(|_| FrameError::Field(field))
}

#[cfg(test)]
mod tests;
