//! Requests as frames.

use super::{Flags, Frame, FrameError, Header, Opcode, to_u32};
use api_types::chunk::{Append, Error, Read, Request, Seal};
use api_types::limits::{READ_BYTES_MAX, UNIT_BYTES_MAX};
use api_types::{OwnerId, QosClass};
use bytes::Bytes;
use std::time::Duration;

/// A request as it arrives.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What is asked.
    pub request: Request,
    /// How long the client will still wait.
    pub budget: Duration,
    /// The operation is traced.
    pub trace: bool,
}

/// Says whether a frame can carry this request; the error is what the caller gets.
pub fn check_request(request: &Request) -> Result<(), Error> {
    match request {
        Request::Append(append) if append.unit.len() > UNIT_BYTES_MAX as usize => {
            Err(Error::Invalid(format!("unit of {} bytes is longer than {UNIT_BYTES_MAX}: split it", append.unit.len())))
        }
        Request::Append(append) if append.unit.is_empty() => Err(Error::Invalid("unit is empty".to_owned())),
        Request::Read(read) if read.length > READ_BYTES_MAX => {
            Err(Error::Invalid(format!("read of {} bytes is longer than {READ_BYTES_MAX}: split it", read.length)))
        }
        _ => Ok(()),
    }
}

/// The payload that a request travels with.
#[must_use]
pub fn payload_of(request: &Request) -> Bytes {
    match request {
        Request::Append(append) => append.unit.clone(),
        _ => Bytes::new(),
    }
}

/// A request as a frame. `payload_crc` is the CRC-32C of [`payload_of`] it: one unit goes to several replicas, and is
/// summed once.
#[must_use]
pub fn ask_frame(id: u64, request: &Request, payload_crc: u32, budget: Duration, trace: bool) -> Frame {
    let mut header = Header::new(opcode_of(request), false, id);
    header.time_us = u32::try_from(budget.as_micros()).unwrap_or(u32::MAX);
    header.flags = Flags::default().with(Flags::TRACE, trace);
    match request {
        Request::Append(append) => {
            header.chunk = append.chunk;
            header.epoch = append.epoch;
            header.arg0 = append.offset.into();
            header.code = append.qos as u8;
            header.flags = header.flags.with(Flags::CREATE, append.create);
        }
        Request::Read(read) => {
            header.chunk = read.chunk;
            header.arg0 = read.offset.into();
            header.arg1 = read.length.into();
            header.code = read.qos as u8;
        }
        Request::Seal(seal) => {
            header.chunk = seal.chunk;
            header.epoch = seal.epoch;
            header.arg0 = seal.owner.0;
            header.arg1 = seal.length.unwrap_or(0).into();
            header.flags = header.flags.with(Flags::PRESENT, seal.length.is_some());
        }
        Request::Delete(chunk) | Request::Stat(chunk) | Request::Scrub(chunk) | Request::List(chunk) => header.chunk = *chunk,
        Request::Probe => {}
    }
    header.carrying_with_crc(payload_of(request), payload_crc)
}

/// Reads a request from a frame whose payload has been verified.
pub fn read_ask(frame: Frame) -> Result<Ask, FrameError> {
    let Frame { header, payload } = frame;
    if header.response {
        return Err(FrameError::Field("opcode"));
    }
    let chunk = header.chunk;
    let qos = QosClass::from_u8(header.code).ok_or(FrameError::Field("class"))?;
    let request = match header.opcode {
        Opcode::Hello => return Err(FrameError::Field("opcode")),
        Opcode::Append if payload.is_empty() => return Err(FrameError::Field("payload length")),
        Opcode::Append => Request::Append(Append {
            chunk,
            epoch: header.epoch,
            offset: to_u32(header.arg0, "offset")?,
            unit: payload,
            create: header.flags.has(Flags::CREATE),
            qos,
        }),
        Opcode::Read => {
            let (offset, length) = (to_u32(header.arg0, "offset")?, to_u32(header.arg1, "length")?);
            if length > READ_BYTES_MAX {
                return Err(FrameError::Field("length"));
            }
            Request::Read(Read { chunk, offset, length, qos })
        }
        Opcode::Seal => {
            let length = to_u32(header.arg1, "length")?;
            let length = header.flags.has(Flags::PRESENT).then_some(length);
            Request::Seal(Seal { chunk, owner: OwnerId(header.arg0), epoch: header.epoch, length })
        }
        Opcode::Delete => Request::Delete(chunk),
        Opcode::Stat => Request::Stat(chunk),
        Opcode::Scrub => Request::Scrub(chunk),
        Opcode::Probe => Request::Probe,
        Opcode::List => Request::List(chunk),
    };
    let budget = Duration::from_micros(header.time_us.into());
    Ok(Ask { request, budget, trace: header.flags.has(Flags::TRACE) })
}

fn opcode_of(request: &Request) -> Opcode {
    match request {
        Request::Append(_) => Opcode::Append,
        Request::Read(_) => Opcode::Read,
        Request::Seal(_) => Opcode::Seal,
        Request::Delete(_) => Opcode::Delete,
        Request::Stat(_) => Opcode::Stat,
        Request::Scrub(_) => Opcode::Scrub,
        Request::Probe => Opcode::Probe,
        Request::List(_) => Opcode::List,
    }
}

impl Opcode {
    /// What this request is.
    #[must_use]
    pub fn of(request: &Request) -> Opcode {
        opcode_of(request)
    }
}
