use super::*;
use api_types::chunk::{Append, ChunkInfo, Error, Read, Request, Response, ScrubReport, Seal, Sealed, StoreStats};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ClusterId, DeviceId, LifetimeClass, OwnerId, QosClass};
use proptest::prelude::*;
use std::time::Duration;

fn append(unit: &'static [u8]) -> Request {
    Request::Append(Append {
        chunk: ChunkId(0x0102_0304_0506_0708),
        epoch: Epoch(9),
        offset: 4096,
        unit: Bytes::from_static(unit),
        create: true,
        qos: QosClass::Repair,
    })
}

fn ask(id: u64, request: &Request, budget: Duration) -> Frame {
    ask_frame(id, request, crc32c(&payload_of(request)), budget, false)
}

#[test]
fn an_append_has_these_bytes() {
    let bytes = encode(&ask(0x11, &append(b"unit"), Duration::from_millis(1)));
    let expected = [
        b"BSLF".as_slice(),
        &[1, 2, 1, 1],
        &0x11_u64.to_le_bytes(),
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &9_u64.to_le_bytes(),
        &4096_u64.to_le_bytes(),
        &0_u64.to_le_bytes(),
        &1000_u32.to_le_bytes(),
        &4_u32.to_le_bytes(),
        &crc32c(b"unit").to_le_bytes(),
    ]
    .concat();
    assert_eq!(bytes[..60], expected);
    assert_eq!(bytes[60..64], crc32c(&expected).to_le_bytes());
    assert_eq!(&bytes[64..], b"unit");
    assert_eq!(bytes[60..64], [0x5e, 0x54, 0x20, 0x18], "golden checksum");
}

#[test]
fn a_hello_has_these_bytes() {
    let hello = Hello::new(ClusterId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100), DeviceId(0x17), "node-a");
    let frame = hello_frame(1, &hello);
    let expected =
        [(0..16).collect::<Vec<u8>>(), vec![0x17, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], b"node-a".to_vec()].concat();
    assert_eq!(frame.payload, expected);
    assert_eq!(read_hello(&frame), Ok(hello));
}

#[test]
fn the_newest_common_version_is_chosen() {
    let mut hello = Hello::new(ClusterId(1), DeviceId(1), "x");
    (hello.version_min, hello.version_max) = (2, 5);
    assert_eq!(choose_version(&hello, 1..=3), Ok(3));
    assert_eq!(choose_version(&hello, 4..=9), Ok(5));
    assert_eq!(choose_version(&hello, 6..=9), Err(Refusal::NoCommonVersion { min: 6, max: 9 }));
    assert_eq!(choose_version(&hello, 1..=1), Err(Refusal::NoCommonVersion { min: 1, max: 1 }));
}

#[test]
fn greetings_read_back() {
    let request = hello_frame(7, &Hello::new(ClusterId(1), DeviceId(2), "x")).header;
    let refusals = [Refusal::WrongCluster, Refusal::UnknownDevice, Refusal::TooMany, Refusal::NoCommonVersion { min: 3, max: 4 }];
    for greeting in refusals.into_iter().map(Err).chain([Ok(1)]) {
        let frame = decode(&encode(&welcome_frame(&request, greeting))).unwrap().unwrap().0;
        assert_eq!(read_greeting(&frame), Ok(greeting));
        assert_eq!(frame.header.id, 7);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let bytes = encode(&ask(3, &append(b"some bytes of a unit"), Duration::from_secs(1)));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bad).is_err(), "bit {bit}");
    }
}

#[test]
fn a_part_of_a_frame_asks_for_more() {
    let bytes = encode(&ask(3, &append(b"some bytes"), Duration::ZERO));
    for end in 0..bytes.len() {
        assert_eq!(decode(&bytes[..end]), Ok(None));
    }
}

#[test]
fn a_payload_too_long_for_its_kind_is_refused_before_it_is_awaited() {
    let mut header = Header::new(Opcode::Probe, false, 1);
    header.payload_bytes = 1;
    assert_eq!(Header::decode(&header.encode()), Err(FrameError::Field("payload length")));
    let mut header = Header::new(Opcode::Append, false, 1);
    header.payload_bytes = UNIT_BYTES_MAX + 1;
    assert_eq!(Header::decode(&header.encode()), Err(FrameError::Field("payload length")));
}

#[test]
fn a_wrong_answer_of_a_store_becomes_an_error() {
    let request = ask(3, &Request::Probe, Duration::ZERO).header;
    let frame = answer_frame(&request, Ok(Response::Delete), Duration::ZERO);
    assert!(matches!(read_answer(frame).unwrap().result, Err(Error::Io(_))));
}

#[test]
fn a_long_error_text_is_cut_between_characters() {
    let request = ask(3, &Request::Probe, Duration::ZERO).header;
    let frame = refusal_frame(&request, &Error::Io("ü".repeat(ERROR_TEXT_BYTES_MAX)));
    let Err(Error::Io(text)) = read_answer(frame).unwrap().result else { panic!("not an I/O error") };
    assert_eq!(text, "ü".repeat(ERROR_TEXT_BYTES_MAX / 2));
}

#[test]
fn oversized_requests_are_refused_before_they_are_sent() {
    let read = Request::Read(Read { chunk: ChunkId(1), offset: 0, length: READ_BYTES_MAX + 1, qos: QosClass::Foreground });
    assert!(matches!(check_request(&read), Err(Error::Invalid(_))));
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 1..5000).prop_map(Bytes::from)
}

fn any_qos() -> impl Strategy<Value = QosClass> {
    (0..4_u8).prop_map(|number| QosClass::from_u8(number).unwrap())
}

fn any_request() -> impl Strategy<Value = Request> {
    let chunk = any::<u64>().prop_map(ChunkId);
    prop_oneof![
        (chunk.clone(), any::<u64>(), any::<u32>(), any_bytes(), any::<bool>(), any_qos()).prop_map(
            |(chunk, epoch, offset, unit, create, qos)| Request::Append(Append {
                chunk,
                epoch: Epoch(epoch),
                offset,
                unit,
                create,
                qos
            })
        ),
        (chunk.clone(), any::<u32>(), 0..=READ_BYTES_MAX, any_qos())
            .prop_map(|(chunk, offset, length, qos)| Request::Read(Read { chunk, offset, length, qos })),
        (chunk.clone(), any::<u64>(), any::<u64>(), any::<Option<u32>>()).prop_map(
            |(chunk, owner, epoch, length)| Request::Seal(Seal { chunk, owner: OwnerId(owner), epoch: Epoch(epoch), length })
        ),
        chunk.clone().prop_map(Request::Delete),
        chunk.clone().prop_map(Request::Stat),
        chunk.clone().prop_map(Request::Scrub),
        chunk.prop_map(Request::List),
        Just(Request::Probe),
    ]
}

fn any_info() -> impl Strategy<Value = ChunkInfo> {
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>(), 0..4_u8, any::<bool>()).prop_map(
        |(chunk, owner, epoch, capacity, length, small, class, sealed)| ChunkInfo {
            shape: ChunkShape {
                chunk: ChunkId(chunk),
                owner: OwnerId(owner),
                epoch: Epoch(epoch),
                capacity,
                alignment: if small { Alignment::B512 } else { Alignment::B4096 },
                class: LifetimeClass::from_u8(class).unwrap(),
            },
            length,
            sealed,
        },
    )
}

fn any_result() -> impl Strategy<Value = (Opcode, Result<Response, Error>)> {
    let ok = prop_oneof![
        any::<u32>().prop_map(|length| (Opcode::Append, Response::Append(length))),
        any_bytes().prop_map(|bytes| (Opcode::Read, Response::Read(bytes))),
        any::<u32>().prop_map(|length| (Opcode::Seal, Response::Seal(Sealed::At(length)))),
        Just((Opcode::Seal, Response::Seal(Sealed::Absent))),
        Just((Opcode::Delete, Response::Delete)),
        any_info().prop_map(|info| (Opcode::Stat, Response::Stat(info))),
        any::<(u64, u64, Option<u32>)>()
            .prop_map(|(units, bytes, bad_at)| (Opcode::Scrub, Response::Scrub(ScrubReport { units, bytes, bad_at }))),
        any::<(u64, u64, u64, u32)>().prop_map(|(capacity_bytes, free_bytes, chunks, queued)| (
            Opcode::Probe,
            Response::Probe(StoreStats { capacity_bytes, free_bytes, chunks, queued })
        )),
        proptest::collection::vec(any_info(), 0..20).prop_map(|chunks| (Opcode::List, Response::List(chunks))),
    ];
    let error = prop_oneof![
        Just(Error::Unknown),
        any::<u32>().prop_map(|length| Error::Sealed { length }),
        any::<u32>().prop_map(|expected| Error::WrongOffset { expected }),
        any::<u64>().prop_map(|floor| Error::Fenced { floor: Epoch(floor) }),
        Just(Error::Full),
        Just(Error::Conflict),
        any::<u32>().prop_map(|offset| Error::Corrupt { offset }),
        "[a-z ]{0,40}".prop_map(Error::Invalid),
        Just(Error::Busy),
        Just(Error::Deadline),
        "[a-z ]{0,40}".prop_map(Error::Io),
        "[a-z ]{0,40}".prop_map(Error::Unreachable),
    ];
    prop_oneof![
        ok.prop_map(|(opcode, response)| (opcode, Ok(response))),
        (1..8_usize, error).prop_map(|(at, error)| (Opcode::ALL[at], Err(error))),
    ]
}

proptest! {
    #[test]
    fn requests_read_back(request in any_request(), id: u64, budget_us: u32, trace: bool) {
        let budget = Duration::from_micros(budget_us.into());
        let sent = ask_frame(id, &request, crc32c(&payload_of(&request)), budget, trace);
        let (frame, taken) = decode(&encode(&sent)).unwrap().unwrap();
        prop_assert_eq!(taken, HEADER_BYTES + sent.payload.len());
        prop_assert_eq!(frame.header.id, id);
        let ask = read_ask(frame).unwrap();
        // Requests have no equality of their own; what they print is all they hold.
        prop_assert_eq!(format!("{:?}", ask.request), format!("{request:?}"));
        prop_assert_eq!((ask.budget, ask.trace), (budget, trace));
    }

    #[test]
    fn answers_read_back((opcode, result) in any_result(), id: u64, time_us: u32) {
        let device_time = Duration::from_micros(time_us.into());
        let request = Header::new(opcode, false, id);
        let sent = answer_frame(&request, result.clone(), device_time);
        let (frame, _) = decode(&encode(&sent)).unwrap().unwrap();
        prop_assert_eq!(frame.header.id, id);
        prop_assert_eq!(read_answer(frame).unwrap(), Answer { result, device_time });
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn arbitrary_fields_under_a_good_checksum_never_panic(mut bytes in proptest::array::uniform32(any::<u8>()), payload in any_bytes()) {
        let mut head = [0; HEADER_BYTES];
        head[..4].copy_from_slice(b"BSLF");
        head[4] = 1;
        bytes[0] = (bytes[0] % 10) | (bytes[0] & 0x80);
        bytes[2] &= 7;
        head[5..37].copy_from_slice(&bytes);
        head[52..56].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        head[56..60].copy_from_slice(&crc32c(&payload).to_le_bytes());
        let crc = crc32c(&head[..60]);
        head[60..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(Some((frame, _))) = decode(&[&head[..], &payload].concat()) {
            let _ = read_hello(&frame);
            let _ = read_greeting(&frame);
            let _ = read_answer(frame.clone());
            let _ = read_ask(frame);
        }
    }
}
