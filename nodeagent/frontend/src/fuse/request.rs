//! A request of the kernel, parsed and bounded, as a pure function of its bytes.

use super::MAX_WRITE;
use super::abi::{FallocateIn, InHeader, OpenIn, SET_SIZE, SetAttrIn, TransferIn, opcode};
use zerocopy::FromBytes;

/// What the kernel asks of us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// A name in the directory `node`.
    Lookup {
        name: &'a [u8],
    },
    /// Nothing to do, and no answer.
    Silent,
    GetAttr,
    /// `Some`: to this size.
    SetAttr {
        size: Option<u64>,
    },
    /// With `open(2)`'s flags.
    Open {
        flags: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    /// The data follows the 80 bytes of the two headers.
    Write {
        offset: u64,
        size: u32,
    },
    Statfs,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    ReadDir {
        offset: u64,
    },
    /// Answered with success and nothing else.
    Acknowledge,
    /// Answered with `ENOSYS`, once: the kernel remembers and does without. `FSYNC` and `FLUSH` are among them, because
    /// every answered write is durable.
    Unsupported,
}

/// A request that the kernel can't have sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("{0} bytes are too few for a header")]
    Short(usize),
    #[error("a request says that it has {said} bytes, and has {had}")]
    Length { said: u32, had: usize },
    #[error("the arguments of opcode {0} don't parse")]
    Arguments(u32),
}

/// Reads the header of a request of `total` bytes; `head` is their beginning.
pub(crate) fn header(head: &[u8], total: usize) -> Result<InHeader, Malformed> {
    let (header, _) = InHeader::read_from_prefix(&head[..head.len().min(total)]).map_err(|_| Malformed::Short(total))?;
    if header.len as usize != total {
        return Err(Malformed::Length { said: header.len, had: total });
    }
    Ok(header)
}

/// Reads the arguments. `body` is what follows the header, or its beginning when it is long.
pub(crate) fn parse<'a>(header: &InHeader, body: &'a [u8]) -> Result<Request<'a>, Malformed> {
    let bad = || Malformed::Arguments(header.opcode);
    let transfer = || match TransferIn::read_from_prefix(body) {
        Ok((transfer, _)) if transfer.size <= MAX_WRITE => Ok(transfer),
        _ => Err(bad()),
    };
    Ok(match header.opcode {
        opcode::LOOKUP => {
            let end = body.iter().position(|&byte| byte == 0).ok_or_else(bad)?;
            Request::Lookup { name: &body[..end] }
        }
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Request::Silent,
        opcode::GETATTR => Request::GetAttr,
        opcode::SETATTR => {
            let (set, _) = SetAttrIn::read_from_prefix(body).map_err(|_| bad())?;
            Request::SetAttr { size: (set.valid & SET_SIZE != 0).then_some(set.size) }
        }
        opcode::OPEN => Request::Open { flags: OpenIn::read_from_prefix(body).map_err(|_| bad())?.0.flags },
        opcode::READ => {
            let transfer = transfer()?;
            Request::Read { offset: transfer.offset, size: transfer.size }
        }
        opcode::WRITE => {
            let transfer = transfer()?;
            let head = size_of::<InHeader>() + size_of::<TransferIn>();
            if header.len as usize != head + transfer.size as usize {
                return Err(bad());
            }
            Request::Write { offset: transfer.offset, size: transfer.size }
        }
        opcode::STATFS => Request::Statfs,
        opcode::FALLOCATE => {
            let (fallocate, _) = FallocateIn::read_from_prefix(body).map_err(|_| bad())?;
            Request::Fallocate { offset: fallocate.offset, length: fallocate.length, mode: fallocate.mode }
        }
        opcode::READDIR => Request::ReadDir { offset: transfer()?.offset },
        opcode::RELEASE | opcode::RELEASEDIR | opcode::OPENDIR | opcode::DESTROY => Request::Acknowledge,
        _ => Request::Unsupported,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn head(opcode: u32, body: usize) -> InHeader {
        let len = (40 + body) as u32;
        InHeader { len, opcode, unique: 1 << 63 | 4, node: 2, uid: 0, gid: 0, pid: 1, extension_words: 0, padding: 0 }
    }

    fn transfer(offset: u64, size: u32) -> TransferIn {
        TransferIn { fh: 0, offset, size, transfer_flags: 0, lock_owner: 0, flags: 0, padding: 0 }
    }

    #[test]
    fn a_resent_write_is_a_write() {
        let header_in = head(opcode::WRITE, 40 + 8192);
        let mut bytes = header_in.as_bytes().to_vec();
        bytes.extend_from_slice(transfer(4096, 8192).as_bytes());
        let parsed = header(&bytes, 80 + 8192).unwrap();
        assert_eq!(parsed.unique >> 63, 1);
        assert_eq!(parse(&parsed, &bytes[40..]), Ok(Request::Write { offset: 4096, size: 8192 }));
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let header_in = head(opcode::WRITE, 40 + 4096);
        let mut bytes = header_in.as_bytes().to_vec();
        bytes.extend_from_slice(transfer(0, 8192).as_bytes());
        assert_eq!(parse(&header_in, &bytes[40..]), Err(Malformed::Arguments(opcode::WRITE)));
        assert_eq!(header(&bytes, 80), Err(Malformed::Length { said: 80 + 4096, had: 80 }));
        assert_eq!(header(&bytes, 10), Err(Malformed::Short(10)));
        let read = transfer(0, MAX_WRITE + 1);
        assert_eq!(parse(&head(opcode::READ, 40), read.as_bytes()), Err(Malformed::Arguments(opcode::READ)));
        assert_eq!(parse(&head(opcode::LOOKUP, 3), b"abc"), Err(Malformed::Arguments(opcode::LOOKUP)));
    }

    #[test]
    fn what_is_not_needed_is_unsupported() {
        for opcode in [20, 22, 25, 46, 34, 39, 9999] {
            assert_eq!(parse(&head(opcode, 0), &[]), Ok(Request::Unsupported));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(opcode in 0u32..60, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&head(opcode, bytes.len()), &bytes);
            let _ = header(&bytes, bytes.len());
        }
    }
}
