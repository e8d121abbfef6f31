//! The handshake, once in a mount's life; what it settled is remembered for the servers that follow.

use super::MAX_WRITE;
use super::abi::{InHeader, InitIn, InitOut, OutHeader, init_flags, opcode};
use zerocopy::{FromBytes, IntoBytes};

/// The protocol version we speak. The first with all that is used; the kernel adapts to it.
const MINOR: u32 = 31;
/// Requests that the kernel sends before it makes its callers wait. Above the loop device's own depth of 128.
const MAX_BACKGROUND: u16 = 512;

/// What kernel and filesystem agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// The kernel's minor version.
    pub(crate) kernel_minor: u32,
    /// The flags that both sides have, both halves.
    pub(crate) flags: u64,
}

impl Negotiated {
    /// Requests that a dead server had read can be asked for again (Linux 6.9).
    pub(crate) fn resends(&self) -> bool {
        self.flags & init_flags::HAS_RESEND != 0
    }
}

/// Answers an `INIT` request. `None`: it isn't one, or of a protocol that we don't speak.
pub(crate) fn answer_init(request: &[u8]) -> Option<(Vec<u8>, Option<Negotiated>)> {
    let (header, body) = InHeader::read_from_prefix(request).ok()?;
    if header.opcode != opcode::INIT {
        return None;
    }
    let (init, rest) = InitIn::read_from_prefix(body).ok()?;
    let mut out = InitOut {
        major: 7,
        minor: MINOR,
        max_readahead: init.max_readahead,
        flags: 0,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages: (MAX_WRITE / 4096) as u16,
        map_alignment: 0,
        flags2: 0,
        unused: [0; 7],
    };
    let negotiated = match init.major {
        0..=6 => return None,
        7 if init.minor < MINOR => return None,
        // A kernel of a later protocol asks again in ours.
        8.. => None,
        7 => {
            let extended = u64::from(init.flags) & init_flags::INIT_EXT != 0;
            let high = u32::read_from_prefix(rest).ok().filter(|_| extended).map_or(0, |(high, _)| high);
            let offered = u64::from(init.flags) | u64::from(high) << 32;
            let wanted = init_flags::ASYNC_READ
                | init_flags::BIG_WRITES
                | init_flags::ASYNC_DIO
                | init_flags::PARALLEL_DIROPS
                | init_flags::MAX_PAGES
                | init_flags::INIT_EXT
                | init_flags::HAS_RESEND;
            let flags = offered & wanted;
            out.flags = flags as u32;
            out.flags2 = (flags >> 32) as u32;
            Some(Negotiated { kernel_minor: init.minor, flags })
        }
    };
    let head = OutHeader { len: (size_of::<OutHeader>() + size_of::<InitOut>()) as u32, error: 0, unique: header.unique };
    Some(([head.as_bytes(), out.as_bytes()].concat(), negotiated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(major: u32, minor: u32, flags: u32, flags2: u32) -> Vec<u8> {
        let header = InHeader {
            len: 104,
            opcode: opcode::INIT,
            unique: 2,
            node: 0,
            uid: 0,
            gid: 0,
            pid: 0,
            extension_words: 0,
            padding: 0,
        };
        let init = InitIn { major, minor, max_readahead: 131_072, flags };
        [header.as_bytes(), init.as_bytes(), flags2.as_bytes(), &[0; 44]].concat()
    }

    #[test]
    fn a_new_kernel_agrees_on_direct_io_and_resending() {
        let (answer, negotiated) = answer_init(&request(7, 45, u32::MAX, u32::MAX)).unwrap();
        assert_eq!(answer.len(), 80);
        let negotiated = negotiated.unwrap();
        assert!(negotiated.resends() && negotiated.flags & init_flags::ASYNC_DIO != 0);
        assert_eq!(answer[16..24], [7, 0, 0, 0, 31, 0, 0, 0]);
    }

    #[test]
    fn an_old_kernel_does_not_resend() {
        let (_, negotiated) = answer_init(&request(7, 34, !(1 << 30), u32::MAX)).unwrap();
        assert!(!negotiated.unwrap().resends());
    }

    #[test]
    fn other_protocols_are_refused_or_asked_again() {
        assert!(answer_init(&request(7, 30, 0, 0)).is_none());
        assert!(answer_init(&request(6, 40, 0, 0)).is_none());
        assert!(answer_init(&request(8, 1, 0, 0)).unwrap().1.is_none());
        assert!(answer_init(&[0; 104]).is_none());
        assert!(answer_init(&[0; 10]).is_none());
    }
}
