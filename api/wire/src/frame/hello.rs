//! The first frame each way. Its header is laid out alike in every version, and carries [`VERSION_MIN`], so that two
//! peers without a common version can still tell each other so.

use super::{ERROR_TEXT_BYTES_MAX, Frame, FrameError, Header, Opcode, VERSION_MAX, VERSION_MIN};
use api_types::{ClusterId, DeviceId};
use bytes::Bytes;
use std::ops::RangeInclusive;
use zerocopy::little_endian::{U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest name a peer may give itself, in bytes; longer ones are cut.
pub const NAME_BYTES_MAX: usize = 253;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHello {
    cluster: U128,
    device: U64,
    version_min: u8,
    version_max: u8,
    reserved: [u8; 6],
}
const RAW_BYTES: usize = size_of::<RawHello>();
pub(super) const PAYLOAD_BYTES_MAX: u32 = (RAW_BYTES + NAME_BYTES_MAX) as u32;

/// What a client says first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The device that it wants to talk to: one connection, one device.
    pub device: DeviceId,
    /// The oldest version it speaks.
    pub version_min: u8,
    /// The newest version it speaks.
    pub version_max: u8,
    /// Its name, for logs.
    pub peer: String,
}

impl Hello {
    /// From this code, for a device.
    #[must_use]
    pub fn new(cluster: ClusterId, device: DeviceId, peer: &str) -> Hello {
        Hello { cluster, device, version_min: VERSION_MIN, version_max: VERSION_MAX, peer: peer.to_owned() }
    }
}

/// Why a server won't talk. The connection ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Belongs to another cluster: a mistake of configuration, or an address that was given to someone else.
    #[error("the server belongs to another cluster")]
    WrongCluster,
    /// The device isn't there: refresh the address.
    #[error("the server does not have this device")]
    UnknownDevice,
    /// Too old or too new.
    #[error("no common version: the server speaks {min} to {max}")]
    NoCommonVersion {
        /// The oldest version of the server.
        min: u8,
        /// The newest version of the server.
        max: u8,
    },
    /// Takes no more connections just now.
    #[error("the server has too many connections")]
    TooMany,
}

// Numbers of refusals on the wire, beside those of errors. Never reused.
const WRONG_CLUSTER: u8 = 64;
const UNKNOWN_DEVICE: u8 = 65;
const NO_COMMON_VERSION: u8 = 66;
const TOO_MANY: u8 = 67;

/// What a server says first: the version that all further frames have, or why not.
pub type Greeting = Result<u8, Refusal>;

/// The newest version that both speak. `spoken` is the server's.
pub fn choose_version(hello: &Hello, spoken: RangeInclusive<u8>) -> Greeting {
    let version = hello.version_max.min(*spoken.end());
    if version < hello.version_min || version < *spoken.start() {
        return Err(Refusal::NoCommonVersion { min: *spoken.start(), max: *spoken.end() });
    }
    Ok(version)
}

/// The client's first frame.
#[must_use]
pub fn hello_frame(id: u64, hello: &Hello) -> Frame {
    let raw = RawHello {
        cluster: hello.cluster.0.into(),
        device: hello.device.0.into(),
        version_min: hello.version_min,
        version_max: hello.version_max,
        reserved: [0; 6],
    };
    let name = &hello.peer.as_bytes()[..hello.peer.floor_char_boundary(NAME_BYTES_MAX)];
    let mut header = Header::new(Opcode::Hello, false, id);
    header.version = VERSION_MIN;
    header.carrying([raw.as_bytes(), name].concat().into())
}

/// Reads the client's first frame, whose payload has been verified.
pub fn read_hello(frame: &Frame) -> Result<Hello, FrameError> {
    if frame.header.response || frame.header.opcode != Opcode::Hello {
        return Err(FrameError::Field("opcode"));
    }
    let (raw, name) = RawHello::read_from_prefix(&frame.payload).map_err(|_| FrameError::Field("payload length"))?;
    if raw.version_min > raw.version_max {
        return Err(FrameError::Field("version"));
    }
    let peer = std::str::from_utf8(name).map_err(|_| FrameError::Field("name"))?.to_owned();
    Ok(Hello {
        cluster: ClusterId(raw.cluster.get()),
        device: DeviceId(raw.device.get()),
        version_min: raw.version_min,
        version_max: raw.version_max,
        peer,
    })
}

/// The server's first frame.
#[must_use]
pub fn welcome_frame(request: &Header, greeting: Greeting) -> Frame {
    let mut header = Header::new(Opcode::Hello, true, request.id);
    header.version = VERSION_MIN;
    match greeting {
        Ok(version) => header.arg0 = version.into(),
        Err(refusal) => {
            header.code = match refusal {
                Refusal::WrongCluster => WRONG_CLUSTER,
                Refusal::UnknownDevice => UNKNOWN_DEVICE,
                Refusal::TooMany => TOO_MANY,
                Refusal::NoCommonVersion { min, max } => {
                    header.arg0 = min.into();
                    header.arg1 = max.into();
                    NO_COMMON_VERSION
                }
            }
        }
    }
    header.carrying(Bytes::new())
}

/// Reads the server's first frame.
pub fn read_greeting(frame: &Frame) -> Result<Greeting, FrameError> {
    let header = &frame.header;
    if !header.response || header.opcode != Opcode::Hello || frame.payload.len() > ERROR_TEXT_BYTES_MAX {
        return Err(FrameError::Field("opcode"));
    }
    let version = |number: u64| u8::try_from(number).map_err(|_| FrameError::Field("version"));
    Ok(match header.code {
        0 => {
            let version = version(header.arg0)?;
            if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
                return Err(FrameError::Version(version));
            }
            Ok(version)
        }
        WRONG_CLUSTER => Err(Refusal::WrongCluster),
        UNKNOWN_DEVICE => Err(Refusal::UnknownDevice),
        TOO_MANY => Err(Refusal::TooMany),
        NO_COMMON_VERSION => Err(Refusal::NoCommonVersion { min: version(header.arg0)?, max: version(header.arg1)? }),
        _ => return Err(FrameError::Field("code")),
    })
}
