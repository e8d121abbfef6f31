//! Option haggling, as a pure function: an option in, the bytes to answer and what comes next out.

use super::wire::{export_flags, info, option, option_reply, reply};
use api_types::limits::BLOCK_BYTES;

/// An export as the handshake shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Going away: no new client.
    pub(crate) closing: bool,
}

impl Shown {
    /// The transmission flags. Every answered write is durable and nothing is cached per connection, hence
    /// `CAN_MULTI_CONN`; zeroing only touches the map, hence `SEND_FAST_ZERO`.
    fn flags(&self) -> u16 {
        use export_flags::{
            CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_FAST_ZERO, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
        always | if self.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO }
    }
}

/// What the connection does after the answer was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another option.
    Option,
    /// Requests to the export at this place of the list.
    Transmit(usize),
    /// The end.
    Close,
}

/// Finds an export by the name a client gave. The empty name is the only export, when there is only one.
fn find(exports: &[Shown], name: &[u8]) -> Option<usize> {
    if name.is_empty() && exports.len() == 1 {
        return Some(0);
    }
    exports.iter().position(|export| export.name.as_bytes() == name)
}

/// Answers one option.
pub(crate) fn answer(number: u32, data: &[u8], no_zeroes: bool, exports: &[Shown], out: &mut Vec<u8>) -> Next {
    match number {
        option::EXPORT_NAME => export_name(data, no_zeroes, exports, out),
        option::ABORT => {
            option_reply(out, number, reply::ACK, &[]);
            Next::Close
        }
        option::LIST => list(data, exports, out),
        option::INFO | option::GO => describe(number, data, exports, out),
        _ => {
            option_reply(out, number, reply::ERR_UNSUP, b"unknown option");
            Next::Option
        }
    }
}

/// The oldest way in: no error can be told, the connection just ends.
fn export_name(data: &[u8], no_zeroes: bool, exports: &[Shown], out: &mut Vec<u8>) -> Next {
    let Some(at) = find(exports, data).filter(|&at| !exports[at].closing) else { return Next::Close };
    out.extend_from_slice(&exports[at].size.to_be_bytes());
    out.extend_from_slice(&exports[at].flags().to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; 124]);
    }
    Next::Transmit(at)
}

fn list(data: &[u8], exports: &[Shown], out: &mut Vec<u8>) -> Next {
    if !data.is_empty() {
        option_reply(out, option::LIST, reply::ERR_INVALID, b"list takes no data");
        return Next::Option;
    }
    for export in exports {
        let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
        entry.extend_from_slice(export.name.as_bytes());
        option_reply(out, option::LIST, reply::SERVER, &entry);
    }
    option_reply(out, option::LIST, reply::ACK, &[]);
    Next::Option
}

fn describe(number: u32, data: &[u8], exports: &[Shown], out: &mut Vec<u8>) -> Next {
    let Some((name, asked)) = super::wire::info_request(data) else {
        option_reply(out, number, reply::ERR_INVALID, b"lengths don't add up");
        return Next::Option;
    };
    let Some(at) = find(exports, name) else {
        option_reply(out, number, reply::ERR_UNKNOWN, b"no such export");
        return Next::Option;
    };
    let export = &exports[at];
    if export.closing {
        option_reply(out, number, reply::ERR_SHUTDOWN, b"the export is going away");
        return Next::Option;
    }
    let mut about = info::EXPORT.to_be_bytes().to_vec();
    about.extend_from_slice(&export.size.to_be_bytes());
    about.extend_from_slice(&export.flags().to_be_bytes());
    option_reply(out, number, reply::INFO, &about);
    if asked.contains(&info::NAME) {
        let mut about = info::NAME.to_be_bytes().to_vec();
        about.extend_from_slice(export.name.as_bytes());
        option_reply(out, number, reply::INFO, &about);
    }
    if asked.contains(&info::DESCRIPTION) {
        let mut about = info::DESCRIPTION.to_be_bytes().to_vec();
        about.extend_from_slice(b"basalt volume");
        option_reply(out, number, reply::INFO, &about);
    }
    // Sent unasked too: a client that doesn't ask learns the preferred block as well.
    let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [1, BLOCK_BYTES, super::wire::PAYLOAD_MAX] {
        about.extend_from_slice(&size.to_be_bytes());
    }
    option_reply(out, number, reply::INFO, &about);
    option_reply(out, number, reply::ACK, &[]);
    if number == option::GO { Next::Transmit(at) } else { Next::Option }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(name: &str) -> Shown {
        Shown { name: name.to_owned(), size: 1 << 20, read_only: false, closing: false }
    }

    fn go(name: &str, count: u16, asked: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&count.to_be_bytes());
        asked.iter().for_each(|a| data.extend_from_slice(&a.to_be_bytes()));
        data
    }

    fn run(number: u32, data: &[u8], exports: &[Shown]) -> (Next, Vec<u32>) {
        let mut out = Vec::new();
        let next = answer(number, data, true, exports, &mut out);
        let mut kinds = Vec::new();
        let mut at = 0;
        while number != option::EXPORT_NAME && at < out.len() {
            kinds.push(u32::from_be_bytes(out[at + 12..at + 16].try_into().unwrap()));
            at += 20 + u32::from_be_bytes(out[at + 16..at + 20].try_into().unwrap()) as usize;
        }
        (next, kinds)
    }

    #[test]
    fn go_describes_the_export_and_begins_transmission() {
        let exports = [shown("a"), shown("b")];
        let (next, kinds) = run(option::GO, &go("b", 1, &[info::BLOCK_SIZE]), &exports);
        assert_eq!((next, kinds), (Next::Transmit(1), vec![reply::INFO, reply::INFO, reply::ACK]));
        let (next, kinds) = run(option::INFO, &go("b", 2, &[1, 2]), &exports);
        assert_eq!((next, kinds), (Next::Option, vec![reply::INFO; 4].into_iter().chain([reply::ACK]).collect()));
    }

    #[test]
    fn the_empty_name_is_the_only_export() {
        assert_eq!(run(option::GO, &go("", 0, &[]), &[shown("a")]).0, Next::Transmit(0));
        let (next, kinds) = run(option::GO, &go("", 0, &[]), &[shown("a"), shown("b")]);
        assert_eq!((next, kinds), (Next::Option, vec![reply::ERR_UNKNOWN]));
    }

    #[test]
    fn wrong_options_are_answered_and_haggling_goes_on() {
        let exports = [shown("a")];
        assert_eq!(run(option::GO, &go("a", 2, &[3]), &exports), (Next::Option, vec![reply::ERR_INVALID]));
        assert_eq!(run(option::LIST, b"x", &exports), (Next::Option, vec![reply::ERR_INVALID]));
        assert_eq!(run(8, b"", &exports), (Next::Option, vec![reply::ERR_UNSUP]));
        assert_eq!(run(option::EXPORT_NAME, b"zz", &exports).0, Next::Close);
        assert_eq!(run(option::ABORT, b"", &exports), (Next::Close, vec![reply::ACK]));
    }

    #[test]
    fn an_export_that_goes_away_takes_no_new_client() {
        let exports = [Shown { closing: true, ..shown("a") }];
        assert_eq!(run(option::GO, &go("a", 0, &[]), &exports), (Next::Option, vec![reply::ERR_SHUTDOWN]));
        assert_eq!(run(option::EXPORT_NAME, b"a", &exports).0, Next::Close);
    }

    proptest! {
        #[test]
        fn any_option_is_answered(number in 0u32..16, data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = Vec::new();
            let next = answer(number, &data, false, &[shown("a")], &mut out);
            prop_assert!(next == Next::Close || !out.is_empty());
        }
    }
}
