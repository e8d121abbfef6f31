//! The Node service on this machine.

use crate::support::{Driver, MIB, NODE, assert_code, block, can_grow, can_mount, filesystem, text};
use csi::proto::volume_capability::AccessMode;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability,
};
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use tonic::Code;

async fn stats(driver: &Driver, volume: &str) -> Result<Vec<csi::proto::VolumeUsage>, tonic::Status> {
    let request =
        NodeGetVolumeStatsRequest { volume_id: volume.to_owned(), volume_path: text(&driver.target()), ..Default::default() };
    driver.node().node_get_volume_stats(request).await.map(|answer| answer.into_inner().usage)
}

async fn expand(driver: &Driver, volume: &str, bytes: u64) -> Result<u64, tonic::Status> {
    let range = Some(CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 });
    let controller = ControllerExpandVolumeRequest { volume_id: volume.to_owned(), capacity_range: range, ..Default::default() };
    driver.controller().controller_expand_volume(controller).await?;
    let node = NodeExpandVolumeRequest {
        volume_id: volume.to_owned(),
        volume_path: text(&driver.target()),
        capacity_range: range,
        ..Default::default()
    };
    driver.node().node_expand_volume(node).await.map(|answer| answer.into_inner().capacity_bytes as u64)
}

#[tokio::test]
async fn a_node_says_its_name_and_place() {
    let driver = Driver::start().await;
    let info = driver.node().node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, NODE);
    let segments = info.accessible_topology.unwrap().segments;
    assert_eq!(segments["topology.basalt.storage/node"], NODE);
    assert_eq!(segments["topology.basalt.storage/zone"], "z1");
    assert_eq!(segments["topology.basalt.storage/driver"], "present");
    let answer = driver.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap();
    assert_eq!(answer.into_inner().capabilities.len(), 4);
}

#[tokio::test]
async fn a_filesystem_lives_through_stage_publish_expand_and_back() {
    if !can_mount() {
        return;
    }
    for (kind, bytes) in [("ext4", 64 * MIB), ("xfs", 320 * MIB)] {
        let driver = Driver::start().await;
        let volume = driver.create("claim", bytes).await;
        for _ in 0..2 {
            driver.stage(&volume, filesystem(kind)).await.unwrap();
        }
        for _ in 0..2 {
            driver.publish(&volume, filesystem(kind), false).await.unwrap();
        }
        assert_eq!(driver.mounts().len(), 2);
        fs::write(driver.target().join("file"), "kept").unwrap();
        let before = stats(&driver, &volume).await.unwrap();
        assert_eq!(before.len(), 2);
        if can_grow(kind) {
            assert_eq!(expand(&driver, &volume, bytes + 64 * MIB).await.unwrap(), bytes + 64 * MIB);
            let after = stats(&driver, &volume).await.unwrap();
            assert!(after[0].total > before[0].total + 32 * MIB as i64, "{before:?} {after:?}");
        } else {
            let status = expand(&driver, &volume, bytes + 64 * MIB).await.unwrap_err();
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{}", status.message());
        }
        driver.take_away(&volume).await;
        driver.take_away(&volume).await;
        driver.stage(&volume, filesystem(kind)).await.unwrap();
        driver.publish(&volume, filesystem(kind), true).await.unwrap();
        assert_eq!(fs::read_to_string(driver.target().join("file")).unwrap(), "kept");
        assert!(fs::write(driver.target().join("other"), "x").is_err(), "a read-only publish can be written");
        assert_code(driver.publish(&volume, filesystem(kind), false).await, Code::AlreadyExists);
        driver.take_away(&volume).await;
    }
}

#[tokio::test]
async fn a_volume_expanded_while_it_was_not_mounted_has_its_size_after_the_next_stage() {
    if !can_mount() {
        return;
    }
    for (kind, bytes) in [("ext4", 64 * MIB), ("xfs", 320 * MIB)] {
        if !can_grow(kind) {
            continue;
        }
        let driver = Driver::start().await;
        let volume = driver.create("claim", bytes).await;
        driver.stage(&volume, filesystem(kind)).await.unwrap();
        driver.unstage(&volume).await.unwrap();
        let range = Some(CapacityRange { required_bytes: (bytes + 64 * MIB) as i64, limit_bytes: 0 });
        let request = ControllerExpandVolumeRequest { volume_id: volume.clone(), capacity_range: range, ..Default::default() };
        driver.controller().controller_expand_volume(request).await.unwrap();
        driver.stage(&volume, filesystem(kind)).await.unwrap();
        driver.publish(&volume, filesystem(kind), false).await.unwrap();
        // 64 MiB more, less what xfs keeps for its log (64 MiB) from the first 320.
        let least = if kind == "xfs" { bytes - 16 * MIB } else { bytes };
        assert!(stats(&driver, &volume).await.unwrap()[0].total > least as i64);
        driver.take_away(&volume).await;
    }
}

#[tokio::test]
async fn a_block_device_is_that_of_today() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    driver.stage(&volume, block()).await.unwrap();
    driver.publish(&volume, block(), false).await.unwrap();
    driver.publish(&volume, block(), false).await.unwrap();
    assert!(driver.target().metadata().unwrap().file_type().is_block_device());
    let usage = stats(&driver, &volume).await.unwrap();
    assert_eq!(usage[0].total as u64, 64 * MIB);
    assert_eq!(expand(&driver, &volume, 128 * MIB).await.unwrap(), 128 * MIB);
    // The node was restarted; another loop device took the old one's place.
    driver.agent.forget();
    let other = driver.create("other", 64 * MIB).await;
    driver.stage(&other, block()).await.unwrap();
    driver.publish(&volume, block(), false).await.unwrap();
    let today = fs::metadata(driver.agent.device(&volume).unwrap()).unwrap().rdev();
    assert_eq!(driver.target().metadata().unwrap().rdev(), today);
    driver.unstage(&other).await.unwrap();
    driver.take_away(&volume).await;
}

#[tokio::test]
async fn a_volume_of_a_single_pod_has_one_place() {
    if !can_mount() {
        return;
    }
    let single = |mut capability: VolumeCapability| {
        capability.access_mode = Some(AccessMode { mode: Mode::SingleNodeSingleWriter.into() });
        capability
    };
    for capability in [single(filesystem("ext4")), single(block())] {
        let driver = Driver::start().await;
        let volume = driver.create("claim", 64 * MIB).await;
        driver.stage(&volume, capability.clone()).await.unwrap();
        driver.publish(&volume, capability.clone(), false).await.unwrap();
        driver.publish(&volume, capability.clone(), false).await.unwrap();
        let other = NodePublishVolumeRequest {
            volume_id: volume.clone(),
            staging_target_path: text(&driver.staging()),
            target_path: text(&driver.target().with_file_name("other")),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        assert_code(driver.node().node_publish_volume(other.clone()).await, Code::FailedPrecondition);
        driver.unpublish(&volume).await.unwrap();
        driver.node().node_publish_volume(other.clone()).await.unwrap();
        let gone = NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path: other.target_path };
        driver.node().node_unpublish_volume(gone).await.unwrap();
        driver.take_away(&volume).await;
    }
}

#[tokio::test]
async fn data_is_never_formatted_over() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    let device = fs::File::options().write(true).create(true).truncate(false).open(driver.agent.file(&volume)).unwrap();
    for (offset, bytes, word) in [(65_536u64, &b"somebody's"[..], "without a known signature"), (0, b"LUKS\xba\xbe", "LUKS")] {
        device.write_all_at(bytes, offset).unwrap();
        let status = driver.stage(&volume, filesystem("ext4")).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(word), "{}", status.message());
        // What can't be staged isn't held.
        assert_eq!(driver.agent.attached(), 0);
        let mut there = vec![0; bytes.len()];
        fs::File::open(driver.agent.file(&volume)).unwrap().read_exact_at(&mut there, offset).unwrap();
        assert_eq!(there, bytes);
    }
    // As a block device it is of use.
    driver.stage(&volume, block()).await.unwrap();
    driver.unstage(&volume).await.unwrap();
    driver.assert_clean();
}

#[tokio::test]
async fn another_filesystem_than_the_one_there_is_refused() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 320 * MIB).await;
    driver.stage(&volume, filesystem("")).await.unwrap();
    assert_code(driver.stage(&volume, filesystem("xfs")).await, Code::AlreadyExists);
    driver.unstage(&volume).await.unwrap();
    let status = driver.stage(&volume, filesystem("xfs")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("holds ext4"), "{}", status.message());
    driver.stage(&volume, filesystem("")).await.unwrap();
    driver.take_away(&volume).await;
}

#[tokio::test]
async fn a_publish_whose_stage_was_lost_stages_again() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    driver.stage(&volume, filesystem("ext4")).await.unwrap();
    fs::write(driver.staging().join("file"), "kept").unwrap();
    // The node was restarted: mounts and devices are gone, folders are there.
    nix::mount::umount(&driver.staging()).unwrap();
    driver.agent.forget();
    driver.publish(&volume, filesystem("ext4"), false).await.unwrap();
    assert_eq!(fs::read_to_string(driver.target().join("file")).unwrap(), "kept");
    driver.take_away(&volume).await;
}

#[tokio::test]
async fn a_dead_device_is_unmounted_and_the_truth_is_told() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 320 * MIB).await;
    driver.stage(&volume, filesystem("xfs")).await.unwrap();
    driver.publish(&volume, filesystem("xfs"), false).await.unwrap();
    fs::write(driver.target().join("file"), "x").unwrap();
    // Nothing is behind the device any more; the next write of the log shuts the filesystem down.
    fs::File::options().write(true).open(driver.agent.file(&volume)).unwrap().set_len(0).unwrap();
    let synced = fs::File::open(driver.target().join("file")).and_then(|file| file.sync_all());
    assert!(synced.is_err() && fs::metadata(driver.target().join("none")).is_err(), "the device still lives");
    driver.unpublish(&volume).await.unwrap();
    driver.unstage(&volume).await.unwrap();
    driver.assert_clean();
}

#[tokio::test]
async fn an_unmount_that_fails_is_never_called_done() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    driver.stage(&volume, filesystem("ext4")).await.unwrap();
    let open = fs::File::create(driver.staging().join("file")).unwrap();
    let status = driver.unstage(&volume).await.unwrap_err();
    assert!(status.message().contains("something still uses it"), "{}", status.message());
    assert_eq!((driver.mounts().len(), driver.agent.attached()), (1, 1));
    drop(open);
    driver.take_away(&volume).await;
}

#[tokio::test]
async fn what_is_unknown_can_be_taken_away_and_not_be_used() {
    let driver = Driver::start().await;
    for unknown in ["v-99", "nonsense"] {
        driver.unpublish(unknown).await.unwrap();
        driver.unstage(unknown).await.unwrap();
        assert_code(driver.stage(unknown, filesystem("")).await, Code::NotFound);
        assert_code(driver.publish(unknown, filesystem(""), false).await, Code::NotFound);
        assert_code(stats(&driver, unknown).await, Code::NotFound);
    }
    driver.assert_clean();
}

#[tokio::test]
async fn a_request_that_is_wrong_names_its_field() {
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    let good = || NodeStageVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: text(&driver.staging()),
        volume_capability: Some(filesystem("ext4")),
        ..Default::default()
    };
    let cases = [
        (NodeStageVolumeRequest { volume_id: String::new(), ..good() }, "volume_id"),
        (NodeStageVolumeRequest { staging_target_path: String::new(), ..good() }, "staging_target_path"),
        (NodeStageVolumeRequest { staging_target_path: "relative".into(), ..good() }, "staging_target_path"),
        (NodeStageVolumeRequest { staging_target_path: "/a/../b".into(), ..good() }, "staging_target_path"),
        (NodeStageVolumeRequest { volume_capability: None, ..good() }, "volume_capability"),
        (NodeStageVolumeRequest { volume_capability: Some(filesystem("zfs")), ..good() }, "fs_type"),
    ];
    for (request, field) in cases {
        let status = driver.node().node_stage_volume(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(field), "{field}: {}", status.message());
    }
    let publish = NodePublishVolumeRequest {
        volume_id: volume.clone(),
        target_path: text(&driver.target()),
        volume_capability: Some(filesystem("ext4")),
        ..Default::default()
    };
    assert_code(driver.node().node_publish_volume(publish).await, Code::FailedPrecondition);
    driver.assert_clean();
}
