use super::*;
use crate::proto::master as pb;
use api_types::master::{ChunkRecord, ChunkState, Copy, Order, Role, Work};
use api_types::unit::{Alignment, ChunkShape};
use api_types::{ChunkId, DeviceId, Epoch, LifetimeClass, OwnerId, StreamId};

fn shape() -> ChunkShape {
    ChunkShape {
        chunk: ChunkId(1),
        owner: OwnerId(2),
        epoch: Epoch(3),
        capacity: 64 << 20,
        alignment: Alignment::B4096,
        class: LifetimeClass::Long,
    }
}

#[test]
fn records_survive_the_way_there_and_back() {
    for state in [ChunkState::Granted, ChunkState::Sealed { length: 0 }, ChunkState::Sealed { length: 4096 }] {
        let record = ChunkRecord {
            shape: shape(),
            stream: StreamId(4),
            index: 5,
            state,
            copies: vec![Copy { device: DeviceId(6), role: Role::Replica, whole: true }],
        };
        assert_eq!(ChunkRecord::try_from(pb::ChunkRecord::from(record.clone())), Ok(record));
    }
    let order =
        Order { id: 1, device: DeviceId(2), work: Work::Repair { shape: shape(), length: 9, sources: vec![DeviceId(3)] } };
    assert_eq!(Order::try_from(pb::Order::from(order.clone())), Ok(order));
}

#[test]
fn a_missing_or_impossible_field_is_named() {
    let error = ChunkRecord::try_from(pb::ChunkRecord::default()).unwrap_err();
    assert_eq!(error, Error::Invalid("field `shape` is missing".to_owned()));
    let shape = pb::ChunkShape { alignment_shift: 10, ..shape().into() };
    assert!(ChunkShape::try_from(shape).unwrap_err().to_string().contains("`alignment_shift` must be 9 or 12"));
    assert!(request_id(&[1, 2]).unwrap_err().to_string().contains("`request_id` must have 16 bytes"));
}

#[test]
fn errors_survive_the_way_there_and_back() {
    let errors = [
        Error::Fenced { epoch: Epoch(7) },
        Error::NotFound { what: "volume db-0".to_owned() },
        Error::Conflict("in use".to_owned()),
        Error::NoSpace("full".to_owned()),
        Error::Invalid("field `x`".to_owned()),
    ];
    for error in errors {
        assert_eq!(read_status(&to_status(&error)), Answer::Decided(error));
    }
    assert_eq!(read_status(&not_leader(Some("a:1"))), Answer::NotLeader(Some("a:1".to_owned())));
    assert_eq!(read_status(&not_leader(None)), Answer::NotLeader(None));
    assert!(matches!(read_status(&tonic::Status::unavailable("connection refused")), Answer::Unknown(_)));
}
