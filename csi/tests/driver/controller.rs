//! Identity and Controller.

use crate::support::{Driver, MIB, NODE, assert_code, create_request, filesystem};
use csi::proto::volume_capability::AccessMode;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetCapacityRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest, ListVolumesRequest, ProbeRequest,
    ValidateVolumeCapabilitiesRequest, VolumeContentSource,
};
use std::collections::HashMap;
use tonic::Code;

async fn publish(driver: &Driver, volume: &str, node: &str) -> Result<(), tonic::Status> {
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        volume_capability: Some(filesystem("")),
        ..Default::default()
    };
    driver.controller().controller_publish_volume(request).await.map(drop)
}

async fn unpublish(driver: &Driver, volume: &str, node: &str) -> Result<(), tonic::Status> {
    let request = ControllerUnpublishVolumeRequest { volume_id: volume.into(), node_id: node.into(), ..Default::default() };
    driver.controller().controller_unpublish_volume(request).await.map(drop)
}

async fn delete(driver: &Driver, volume: &str) -> Result<(), tonic::Status> {
    let request = DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
    driver.controller().delete_volume(request).await.map(drop)
}

#[tokio::test]
async fn the_driver_says_who_it_is_and_whether_masters_lead() {
    let driver = Driver::start().await;
    let info = driver.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "csi.basalt.storage");
    let capabilities = driver.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(capabilities.capabilities.len(), 3);
    assert_eq!(driver.identity().probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    driver.masters.hang(true);
    assert_eq!(driver.identity().probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(false));
}

#[tokio::test]
async fn snapshots_are_not_announced() {
    use csi::proto::controller_service_capability::{Type, rpc};
    let driver = Driver::start().await;
    let answer = driver.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
    let kinds: Vec<_> = answer
        .into_inner()
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type.unwrap() {
            Type::Rpc(rpc) => rpc.r#type(),
        })
        .collect();
    assert!(kinds.contains(&rpc::Type::CreateDeleteVolume) && kinds.contains(&rpc::Type::ExpandVolume));
    assert!(!kinds.contains(&rpc::Type::CreateDeleteSnapshot) && !kinds.contains(&rpc::Type::CloneVolume));
}

#[tokio::test]
async fn the_same_claim_twice_is_one_volume_and_another_one_of_that_name_is_refused() {
    let driver = Driver::start().await;
    let first = driver.create("claim", 100 * MIB).await;
    assert_eq!(driver.create("claim", 100 * MIB).await, first);
    assert_eq!(driver.masters.count(), 1);
    assert_code(driver.controller().create_volume(create_request("claim", 200 * MIB)).await, Code::AlreadyExists);
    let parameters = HashMap::from([("iops".to_owned(), "5".to_owned())]);
    let other = CreateVolumeRequest { parameters, ..create_request("claim", 100 * MIB) };
    assert_code(driver.controller().create_volume(other).await, Code::AlreadyExists);
    // A smaller wish is met by what is there.
    let range = Some(CapacityRange { required_bytes: 50, limit_bytes: (200 * MIB) as i64 });
    let wider = CreateVolumeRequest { capacity_range: range, ..create_request("claim", 0) };
    assert_eq!(driver.controller().create_volume(wider).await.unwrap().into_inner().volume.unwrap().volume_id, first);
}

#[tokio::test]
async fn a_claim_that_is_tried_again_while_the_first_try_hangs_is_aborted_and_then_one_volume() {
    let driver = Driver::start().await;
    driver.masters.hang(true);
    let mut client = driver.controller();
    let first = tokio::spawn(async move { client.create_volume(create_request("claim", 100 * MIB)).await });
    let mut client = driver.controller();
    let aborted = loop {
        // The first may not have arrived yet: then this one is under way, and the next is refused.
        let second = client.create_volume(create_request("claim", 100 * MIB));
        match tokio::time::timeout(std::time::Duration::from_millis(200), second).await {
            Ok(Err(status)) => break status,
            Ok(Ok(_)) => panic!("created while the masters hang"),
            Err(_) => {}
        }
    };
    assert_eq!(aborted.code(), Code::Aborted);
    driver.masters.hang(false);
    first.await.unwrap().ok();
    loop {
        match driver.controller().create_volume(create_request("claim", 100 * MIB)).await {
            Ok(_) => break,
            Err(status) => assert_eq!(status.code(), Code::Aborted),
        }
    }
    assert_eq!(driver.masters.count(), 1);
}

#[tokio::test]
async fn a_claim_that_can_not_be_met_says_why() {
    let driver = Driver::start().await;
    let good = || create_request("claim", 100 * MIB);
    let parameters = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
    let shared = csi::proto::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
        ..filesystem("")
    };
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    let cases = [
        (CreateVolumeRequest { name: String::new(), ..good() }, Code::InvalidArgument, "name"),
        (CreateVolumeRequest { name: "x".repeat(129), ..good() }, Code::InvalidArgument, "name"),
        (CreateVolumeRequest { volume_capabilities: vec![], ..good() }, Code::InvalidArgument, "volume_capabilities"),
        (CreateVolumeRequest { volume_capabilities: vec![shared], ..good() }, Code::InvalidArgument, "ReadWriteOnce"),
        (CreateVolumeRequest { parameters: parameters("colour", "red"), ..good() }, Code::InvalidArgument, "known are pool"),
        (CreateVolumeRequest { parameters: parameters("pool", "none"), ..good() }, Code::InvalidArgument, "pool none"),
        (
            CreateVolumeRequest { volume_content_source: Some(VolumeContentSource::default()), ..good() },
            Code::InvalidArgument,
            "source",
        ),
        (CreateVolumeRequest { mutable_parameters: parameters("iops", "1"), ..good() }, Code::InvalidArgument, "mutable"),
        (CreateVolumeRequest { capacity_range: range(2, 1), ..good() }, Code::OutOfRange, "limit_bytes"),
        (CreateVolumeRequest { capacity_range: range(1 << 55, 0), ..good() }, Code::OutOfRange, "no possible size"),
        (CreateVolumeRequest { capacity_range: range(2 << 40, 0), ..good() }, Code::ResourceExhausted, "full"),
    ];
    for (request, code, part) in cases {
        let status = driver.controller().create_volume(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{}", status.message());
        assert!(status.message().contains(part), "{part}: {}", status.message());
        assert!(status.details().is_empty());
    }
    assert_eq!(driver.masters.count(), 0);
}

#[tokio::test]
async fn a_volume_is_deleted_once_nobody_uses_it_and_again_without_error() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 100 * MIB).await;
    publish(&driver, &volume, NODE).await.unwrap();
    assert_code(delete(&driver, &volume).await, Code::FailedPrecondition);
    unpublish(&driver, &volume, NODE).await.unwrap();
    delete(&driver, &volume).await.unwrap();
    delete(&driver, &volume).await.unwrap();
    delete(&driver, "not-a-handle").await.unwrap();
    assert_code(delete(&driver, "").await, Code::InvalidArgument);
    assert_eq!(driver.masters.count(), 0);
}

#[tokio::test]
async fn a_late_unpublish_from_the_old_node_leaves_the_new_attachment() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 100 * MIB).await;
    publish(&driver, &volume, NODE).await.unwrap();
    publish(&driver, &volume, NODE).await.unwrap();
    assert_code(publish(&driver, &volume, "node-b").await, Code::FailedPrecondition);
    unpublish(&driver, &volume, NODE).await.unwrap();
    publish(&driver, &volume, "node-b").await.unwrap();
    unpublish(&driver, &volume, NODE).await.unwrap();
    assert_eq!(driver.masters.published(&volume).as_deref(), Some("node-b"));
    unpublish(&driver, &volume, "").await.unwrap();
    assert_eq!(driver.masters.published(&volume), None);
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_and_can_be_unpublished() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 100 * MIB).await;
    assert_code(publish(&driver, "v-99", NODE).await, Code::NotFound);
    assert_code(publish(&driver, "nonsense", NODE).await, Code::NotFound);
    assert_code(publish(&driver, &volume, "node-z").await, Code::NotFound);
    assert_code(publish(&driver, &volume, "").await, Code::InvalidArgument);
    for unknown in ["v-99", "nonsense"] {
        unpublish(&driver, unknown, NODE).await.unwrap();
        let get = ControllerGetVolumeRequest { volume_id: unknown.into() };
        assert_code(driver.controller().controller_get_volume(get).await, Code::NotFound);
    }
}

#[tokio::test]
async fn pages_of_the_list_hold_every_volume_once() {
    let driver = Driver::start().await;
    let mut expected = Vec::new();
    for number in 0..7 {
        expected.push(driver.create(&format!("claim-{number}"), 100 * MIB).await);
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let request = ListVolumesRequest { max_entries: 3, starting_token: token };
        let page = driver.controller().list_volumes(request).await.unwrap().into_inner();
        assert!(page.entries.len() <= 3);
        seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let bad = ListVolumesRequest { max_entries: 0, starting_token: "nonsense".into() };
    assert_code(driver.controller().list_volumes(bad).await, Code::Aborted);
    let negative = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_code(driver.controller().list_volumes(negative).await, Code::InvalidArgument);
}

#[tokio::test]
async fn capacity_is_that_of_the_pool_wherever_one_asks_from() {
    let driver = Driver::start().await;
    let answer = driver.controller().get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner();
    assert_eq!((answer.available_capacity, answer.maximum_volume_size), (1 << 40, Some(1 << 40)));
    let parameters = HashMap::from([("pool".to_owned(), "none".to_owned())]);
    let other = GetCapacityRequest { parameters, ..Default::default() };
    assert_eq!(driver.controller().get_capacity(other).await.unwrap().into_inner().available_capacity, 0);
}

#[tokio::test]
async fn capabilities_are_confirmed_or_refused_in_words() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 100 * MIB).await;
    let request = |volume: &str, capabilities| ValidateVolumeCapabilitiesRequest {
        volume_id: volume.into(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    let mut client = driver.controller();
    let good = client.validate_volume_capabilities(request(&volume, vec![filesystem("xfs")])).await.unwrap().into_inner();
    assert_eq!(good.confirmed.unwrap().volume_capabilities.len(), 1);
    let bad = client.validate_volume_capabilities(request(&volume, vec![filesystem("zfs")])).await.unwrap().into_inner();
    assert!(bad.confirmed.is_none() && bad.message.contains("choose ext4 or xfs"), "{}", bad.message);
    assert_code(client.validate_volume_capabilities(request("v-99", vec![filesystem("")])).await, Code::NotFound);
    assert_code(client.validate_volume_capabilities(request(&volume, vec![])).await, Code::InvalidArgument);
    assert_code(client.validate_volume_capabilities(request("", vec![filesystem("")])).await, Code::InvalidArgument);
}

#[tokio::test]
async fn volumes_grow_and_do_not_shrink() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 100 * MIB).await;
    let request = |required: u64, limit: u64| ControllerExpandVolumeRequest {
        volume_id: volume.clone(),
        capacity_range: Some(CapacityRange { required_bytes: required as i64, limit_bytes: limit as i64 }),
        ..Default::default()
    };
    let mut client = driver.controller();
    for _ in 0..2 {
        let grown = client.controller_expand_volume(request(200 * MIB, 0)).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes as u64, grown.node_expansion_required), (200 * MIB, true));
    }
    assert_code(client.controller_expand_volume(request(50 * MIB, 60 * MIB)).await, Code::OutOfRange);
    let none = ControllerExpandVolumeRequest { volume_id: volume.clone(), ..Default::default() };
    assert_code(client.controller_expand_volume(none).await, Code::InvalidArgument);
    let gone = ControllerExpandVolumeRequest { volume_id: "v-99".into(), ..request(1, 0) };
    assert_code(client.controller_expand_volume(gone).await, Code::NotFound);
    let got = client.controller_get_volume(ControllerGetVolumeRequest { volume_id: volume.clone() }).await.unwrap().into_inner();
    assert_eq!(got.volume.unwrap().capacity_bytes as u64, 200 * MIB);
}
