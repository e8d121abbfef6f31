//! Calls that are broken off at each step, and their retries, on the same driver and on one that was started anew.

use crate::support::{Driver, MIB, Moment, can_mount, filesystem};
use std::fs;

const STAGE_STEPS: [(&str, Moment); 6] = [
    ("inspect", Moment::Before),
    ("make", Moment::Before),
    ("make", Moment::After),
    ("target", Moment::Before),
    ("mount", Moment::Before),
    ("mount", Moment::After),
];

#[tokio::test]
async fn a_stage_broken_off_at_any_step_is_finished_by_its_retry() {
    if !can_mount() {
        return;
    }
    for (step, moment) in STAGE_STEPS {
        let mut driver = Driver::start().await;
        let volume = driver.create("claim", 64 * MIB).await;
        driver.host.break_next(step, moment);
        driver.stage(&volume, filesystem("ext4")).await.unwrap_err();
        assert!(driver.host.has_broken(), "{step} {moment:?} was never reached");
        driver.restart().await;
        driver.stage(&volume, filesystem("ext4")).await.unwrap_or_else(|status| panic!("{step} {moment:?}: {status}"));
        assert_eq!(driver.mounts().len(), 1, "{step} {moment:?}");
        driver.take_away(&volume).await;
    }
}

#[tokio::test]
async fn a_stage_broken_off_at_any_step_can_be_taken_away_without_a_retry() {
    if !can_mount() {
        return;
    }
    for (step, moment) in STAGE_STEPS {
        let mut driver = Driver::start().await;
        let volume = driver.create("claim", 64 * MIB).await;
        driver.host.break_next(step, moment);
        driver.stage(&volume, filesystem("ext4")).await.unwrap_err();
        driver.restart().await;
        driver.take_away(&volume).await;
    }
}

#[tokio::test]
async fn a_later_stage_broken_off_loses_no_data() {
    if !can_mount() {
        return;
    }
    let driver = Driver::start().await;
    let volume = driver.create("claim", 64 * MIB).await;
    driver.stage(&volume, filesystem("ext4")).await.unwrap();
    fs::write(driver.staging().join("file"), "kept").unwrap();
    for (step, moment) in [("check", Moment::Before), ("mount", Moment::Before), ("mount", Moment::After)] {
        driver.unstage(&volume).await.unwrap();
        driver.host.break_next(step, moment);
        driver.stage(&volume, filesystem("ext4")).await.unwrap_err();
        driver.stage(&volume, filesystem("ext4")).await.unwrap();
        assert_eq!(fs::read_to_string(driver.staging().join("file")).unwrap(), "kept", "{step} {moment:?}");
    }
    driver.take_away(&volume).await;
}

#[tokio::test]
async fn a_publish_and_its_undoing_broken_off_are_finished_by_their_retries() {
    if !can_mount() {
        return;
    }
    for (step, moment) in [("bind", Moment::Before), ("bind", Moment::After), ("target", Moment::Before)] {
        let driver = Driver::start().await;
        let volume = driver.create("claim", 64 * MIB).await;
        driver.stage(&volume, filesystem("ext4")).await.unwrap();
        driver.host.break_next(step, moment);
        driver.publish(&volume, filesystem("ext4"), false).await.unwrap_err();
        driver.publish(&volume, filesystem("ext4"), false).await.unwrap();
        assert_eq!(driver.mounts().len(), 2, "{step} {moment:?}");
        for moment in [Moment::Before, Moment::After] {
            driver.host.break_next("unmount", moment);
            driver.unpublish(&volume).await.unwrap_err();
            driver.unpublish(&volume).await.unwrap();
            driver.publish(&volume, filesystem("ext4"), false).await.unwrap();
        }
        driver.unpublish(&volume).await.unwrap();
        driver.host.break_next("unmount", Moment::After);
        driver.unstage(&volume).await.unwrap_err();
        driver.take_away(&volume).await;
    }
}
