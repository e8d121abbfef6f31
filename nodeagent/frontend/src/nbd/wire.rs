//! The bytes of the NBD protocol (fixed newstyle), as pure functions: numbers in, numbers out, nothing is trusted.
//!
//! ```text
//! greeting    "NBDMAGIC" · "IHAVEOPT" · flags:16                                  server
//! flags:32                                                                        client
//! option      "IHAVEOPT" · option:32 · length:32 · data                           client, repeated
//! reply       0x0003e889045565a9 · option:32 · type:32 · length:32 · data         server
//! request     0x25609513 · flags:16 · type:16 · cookie:64 · offset:64 · length:32 · data of a write
//! answer      0x67446698 · error:32 · cookie:64 · data of a read
//! ```
//! All numbers are big-endian.

/// First half of the greeting.
const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": second half of the greeting, and the start of each option.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Bytes of a request without its payload.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Bytes of an option without its data.
pub(crate) const OPTION_BYTES: usize = 16;
/// The longest option data that is read. The longest honest one is a name of 4096 bytes with a few info requests.
pub(crate) const OPTION_DATA_MAX: u32 = 16 << 10;
/// The longest read or write of one request; advertised to clients.
pub(crate) const PAYLOAD_MAX: u32 = 32 << 20;

const FIXED_NEWSTYLE: u32 = 1;
const NO_ZEROES: u32 = 2;

/// Transmission flags.
pub(crate) mod export_flags {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Error numbers of answers.
pub(crate) mod error {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const EINVAL: u32 = 22;
    pub(crate) const ENOSPC: u32 = 28;
    pub(crate) const ESHUTDOWN: u32 = 108;
}

/// The option numbers we know.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
}

/// Types of option replies.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Information requests.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Bytes that no honest client sends. The connection ends: after wrong bytes nothing that follows has a meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the client set unknown handshake flags {0:#x}")]
    ClientFlags(u32),
    #[error("an option begins with {0:#x} instead of IHAVEOPT")]
    OptionMagic(u64),
    #[error("option {option} has {length} bytes of data, more than {OPTION_DATA_MAX}")]
    OptionTooBig { option: u32, length: u32 },
    #[error("a request begins with {0:#x}")]
    RequestMagic(u32),
    #[error("a write of {length} bytes, more than {PAYLOAD_MAX}")]
    PayloadTooBig { cookie: u64, length: u32 },
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(be(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(be(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(be(bytes, at))
}

/// What the server says first.
pub(crate) fn greeting() -> [u8; 18] {
    let mut out = [0; 18];
    out[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    out[16..].copy_from_slice(&((FIXED_NEWSTYLE | NO_ZEROES) as u16).to_be_bytes());
    out
}

/// The client's flags: whether the 124 zero bytes after `EXPORT_NAME` are left out.
pub(crate) fn client_flags(bytes: [u8; 4]) -> Result<bool, WireError> {
    let flags = u32::from_be_bytes(bytes);
    if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(WireError::ClientFlags(flags));
    }
    Ok(flags & NO_ZEROES != 0)
}

/// The head of an option: its number and the length of its data.
pub(crate) fn option_head(bytes: &[u8; OPTION_BYTES]) -> Result<(u32, u32), WireError> {
    let magic = u64_at(bytes, 0);
    if magic != OPTION_MAGIC {
        return Err(WireError::OptionMagic(magic));
    }
    let (option, length) = (u32_at(bytes, 8), u32_at(bytes, 12));
    if length > OPTION_DATA_MAX {
        return Err(WireError::OptionTooBig { option, length });
    }
    Ok((option, length))
}

/// Appends one option reply.
pub(crate) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// The data of `INFO` and `GO`: the export's name and what is asked about it. `None`: not well formed.
pub(crate) fn info_request(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let name_bytes = usize::try_from(u32::from_be_bytes(data.get(..4)?.try_into().ok()?)).ok()?;
    let name = data.get(4..)?.get(..name_bytes)?;
    let rest = &data[4 + name_bytes..];
    let count = usize::from(u16::from_be_bytes(rest.get(..2)?.try_into().ok()?));
    let asked = &rest[2..];
    if asked.len() != count * 2 {
        return None;
    }
    Some((name, asked.chunks_exact(2).map(|pair| u16_at(pair, 0)).collect()))
}

/// What a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    Unknown(u16),
}

/// One request of the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) flags: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Request {
    /// Reads a request's head. An error means that where the next request begins is unknown.
    pub(crate) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, WireError> {
        let magic = u32_at(bytes, 0);
        if magic != REQUEST_MAGIC {
            return Err(WireError::RequestMagic(magic));
        }
        let command = match u16_at(bytes, 6) {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            other => Command::Unknown(other),
        };
        let request = Request {
            command,
            flags: u16_at(bytes, 4),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        };
        if command == Command::Write && request.length > PAYLOAD_MAX {
            return Err(WireError::PayloadTooBig { cookie: request.cookie, length: request.length });
        }
        Ok(request)
    }

    /// Bytes that follow the head.
    pub(crate) fn payload(&self) -> usize {
        if self.command == Command::Write { self.length as usize } else { 0 }
    }

    /// Whether an export of `size` bytes can do it; otherwise the error to answer.
    pub(crate) fn check(&self, size: u64, read_only: bool) -> Result<(), u32> {
        const FUA: u16 = 1;
        const NO_HOLE: u16 = 1 << 1;
        const FAST_ZERO: u16 = 1 << 4;
        let known = match self.command {
            Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            Command::Unknown(_) => return Err(error::EINVAL),
            _ => FUA,
        };
        if self.flags & !known != 0 {
            return Err(error::EINVAL);
        }
        if matches!(self.command, Command::Flush | Command::Disconnect) {
            return Ok(());
        }
        if read_only && self.command != Command::Read {
            return Err(error::EPERM);
        }
        if self.length == 0 || (self.command == Command::Read && self.length > PAYLOAD_MAX) {
            return Err(error::EINVAL);
        }
        match self.offset.checked_add(self.length.into()) {
            Some(end) if end <= size => Ok(()),
            _ if matches!(self.command, Command::Write | Command::WriteZeroes) => Err(error::ENOSPC),
            _ => Err(error::EINVAL),
        }
    }
}

/// The head of an answer.
pub(crate) fn simple_reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: u16, flags: u16, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&77u64.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
        assert_eq!(simple_reply(1, 22), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut out = Vec::new();
        option_reply(&mut out, 7, reply::ACK, b"x");
        assert_eq!(out, b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x01x");
    }

    #[test]
    fn requests_beyond_the_export_get_the_error_of_their_kind() {
        let check = |kind, flags, offset, length, read_only| {
            Request::parse(&request(kind, flags, offset, length)).unwrap().check(1 << 20, read_only)
        };
        assert_eq!(check(0, 0, 0, 4096, false), Ok(()));
        assert_eq!(check(0, 0, 1 << 20, 1, false), Err(error::EINVAL));
        assert_eq!(check(1, 1, (1 << 20) - 1, 2, false), Err(error::ENOSPC));
        assert_eq!(check(1, 0, u64::MAX, 2, false), Err(error::ENOSPC));
        assert_eq!(check(1, 0, 0, 2, true), Err(error::EPERM));
        assert_eq!(check(3, 0, 0, 0, true), Ok(()));
        assert_eq!(check(4, 0, 0, 4096, true), Err(error::EPERM));
        assert_eq!(check(6, 0b1_0011, 0, 4096, false), Ok(()));
        assert_eq!(check(0, 1 << 2, 0, 4096, false), Err(error::EINVAL));
        assert_eq!(check(9, 0, 0, 4096, false), Err(error::EINVAL));
        assert_eq!(check(0, 0, 0, 0, false), Err(error::EINVAL));
    }

    #[test]
    fn an_oversize_write_ends_the_connection() {
        let parsed = Request::parse(&request(1, 0, 0, PAYLOAD_MAX + 1));
        assert_eq!(parsed, Err(WireError::PayloadTooBig { cookie: 77, length: PAYLOAD_MAX + 1 }));
        assert_eq!(Request::parse(&[0; REQUEST_BYTES]), Err(WireError::RequestMagic(0)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut head = [0u8; REQUEST_BYTES];
            let n = data.len().min(REQUEST_BYTES);
            head[..n].copy_from_slice(&data[..n]);
            if let Ok(request) = Request::parse(&head) {
                let _ = request.check(1 << 20, false);
            }
            if let Some((name, asked)) = info_request(&data) {
                prop_assert_eq!(4 + name.len() + 2 + asked.len() * 2, data.len());
            }
            let mut option = [0u8; OPTION_BYTES];
            option[..n.min(OPTION_BYTES)].copy_from_slice(&data[..n.min(OPTION_BYTES)]);
            let _ = option_head(&option);
        }
    }
}
