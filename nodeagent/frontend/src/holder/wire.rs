//! What an agent and a holder say to each other over a unix stream socket: fixed records of 40 bytes in the machine's
//! own byte order (both ends are on one machine, and may be of different versions: fields are only ever added in the
//! place of `reserved`).

#![expect(unsafe_code, reason = "the kernel hands descriptors over as numbers")]

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u32 = u32::from_le_bytes(*b"BFH1");

/// What a record means.
pub(crate) mod kind {
    /// Agent: I want to serve. Answered with [`STATE`] and the session, or [`REFUSED`].
    pub(crate) const SERVE: u32 = 1;
    /// Agent: who are you? Answered with [`STATE`] without a session.
    pub(crate) const QUERY: u32 = 2;
    /// Agent: all that I read is answered; I stop. Not answered.
    pub(crate) const DRAINED: u32 = 3;
    /// Agent: unmount and exit; `flag`: abort the session first. Answered with [`DONE`] or [`REFUSED`].
    pub(crate) const DETACH: u32 = 4;
    /// Agent, once, to a holder that was started to take a session over: here it is, with `negotiated`.
    pub(crate) const GIVE: u32 = 5;
    /// Holder: `negotiated`, `kernel_minor`, `count` of sessions handed out; `flag`: the last server left requests
    /// unanswered.
    pub(crate) const STATE: u32 = 11;
    /// Holder: another agent serves from now on. Stop, and close the connection.
    pub(crate) const SUPERSEDED: u32 = 12;
    /// Holder: done.
    pub(crate) const DONE: u32 = 13;
    /// Holder: no, because of `errno`.
    pub(crate) const REFUSED: u32 = 14;
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) magic: u32,
    pub(crate) kind: u32,
    pub(crate) errno: i32,
    pub(crate) flag: u32,
    pub(crate) negotiated: u64,
    pub(crate) kernel_minor: u32,
    pub(crate) reserved: u32,
    pub(crate) count: u64,
}

/// Length of a record.
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();

const _: () = assert!(RECORD_BYTES == 40);

impl Record {
    pub(crate) fn new(kind: u32) -> Self {
        Record { magic: MAGIC, kind, errno: 0, flag: 0, negotiated: 0, kernel_minor: 0, reserved: 0, count: 0 }
    }

    /// Reads one; foreign bytes are `InvalidData`.
    pub(crate) fn parse(bytes: &[u8; RECORD_BYTES]) -> io::Result<Self> {
        match Record::read_from_bytes(bytes) {
            Ok(record) if record.magic == MAGIC => Ok(record),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a record of a fuse holder")),
        }
    }
}

/// Sends a record, with a descriptor if one is given. Records are so short that a socket takes all or nothing.
pub(crate) fn send(socket: BorrowedFd<'_>, record: &Record, session: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let session: Option<RawFd> = session.map(|fd| fd.as_raw_fd());
    let session = session.as_slice();
    let rights = [ControlMessage::ScmRights(session)];
    let control = if session.is_empty() { &[][..] } else { &rights[..] };
    let bytes = [IoSlice::new(record.as_bytes())];
    let sent = sendmsg::<()>(socket.as_raw_fd(), &bytes, control, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == RECORD_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a record, with the descriptor that came along. The end of the connection is `UnexpectedEof`.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<(Record, Option<OwnedFd>)> {
    let mut bytes = [0; RECORD_BYTES];
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let mut session = None;
    let received = {
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut control), flags)?;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = part {
                for descriptor in descriptors {
                    session = Some(owned(descriptor));
                }
            }
        }
        message.bytes
    };
    if received != RECORD_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((Record::parse(&bytes)?, session))
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: `recvmsg` has just made this descriptor for us, and nothing else knows its number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_record_and_a_descriptor_arrive_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut record = Record::new(kind::STATE);
        record.negotiated = 1 << 39;
        send(ours.as_fd(), &record, Some(ours.as_fd())).unwrap();
        let (got, descriptor) = receive(theirs.as_fd()).unwrap();
        assert_eq!(got, record);
        assert!(descriptor.is_some());
        send(ours.as_fd(), &record, None).unwrap();
        assert!(receive(theirs.as_fd()).unwrap().1.is_none());
    }

    #[test]
    fn garbage_and_ends_are_errors() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[7; RECORD_BYTES]).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        ours.write_all(&[7; 5]).unwrap();
        drop(ours);
        assert_eq!(receive(theirs.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
