//! Facts about a volume, one at a time.

use super::fake::World;
use super::life::open;
use super::runs::runtime;
use crate::{BlockDevice, BlockError, Config, OpenError, Operation, Trace, Volume};
use api_types::master::QosLimits;
use bytes::Bytes;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

const MIB: u64 = 1 << 20;

/// Runs a test on a fresh volume of 64 MiB.
fn with_volume<F: Future<Output = ()>>(test: impl FnOnce(Rc<World>, Rc<Volume>) -> F) {
    let world = World::new(1, 64 * MIB, 200);
    runtime().block_on(LocalSet::new().run_until(async {
        let volume = open(&world, &Config::default()).await.expect("it opens");
        test(world.clone(), volume).await;
    }));
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 4096])
}

async fn first_byte(volume: &Volume, offset: u64) -> u8 {
    volume.read(offset, 4096).await.unwrap()[0][0]
}

#[test]
fn a_write_at_depth_one_is_one_unit() {
    with_volume(|_, volume| async move {
        for number in 0..50 {
            volume.write(number * 4096, block(1)).await.unwrap();
        }
        assert_eq!(volume.stats().units, 50);
    });
}

#[test]
fn writes_at_depth_share_units() {
    with_volume(|_, volume| async move {
        futures::future::join_all((0..200).map(|number| volume.write(number * 4096, block(1)))).await;
        let units = volume.stats().units;
        assert!(units < 60, "{units} units for 200 writes");
    });
}

#[test]
fn a_write_whose_caller_goes_away_is_done_all_the_same() {
    with_volume(|_, volume| async move {
        drop(volume.write(0, block(9)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(first_byte(&volume, 0).await, 9);
    });
}

#[test]
fn a_volume_grows_while_it_is_used_and_never_shrinks() {
    with_volume(|_, volume| async move {
        let end = volume.size_bytes();
        assert!(matches!(volume.write(end, block(1)).await, Err(BlockError::Invalid(_))));
        volume.set_size(end + 4096).unwrap();
        volume.write(end, block(3)).await.unwrap();
        assert_eq!(first_byte(&volume, end).await, 3);
        assert!(matches!(volume.set_size(end), Err(BlockError::Invalid(_))));
        assert!(matches!(volume.set_size(end + 5000), Err(BlockError::Invalid(_))));
        volume.set_size(1 << 50).unwrap();
        volume.write((1 << 50) - 4096, block(4)).await.unwrap();
        assert_eq!(first_byte(&volume, (1 << 50) - 4096).await, 4);
    });
}

#[test]
fn odd_requests_are_refused_and_empty_ones_are_no_error() {
    with_volume(|_, volume| async move {
        assert!(matches!(volume.read(1, 4096).await, Err(BlockError::Invalid(_))));
        assert!(matches!(volume.read(0, 100).await, Err(BlockError::Invalid(_))));
        assert!(matches!(volume.read(u64::MAX - 4095, 4096).await, Err(BlockError::Invalid(_))));
        assert!(matches!(volume.write(0, Bytes::from(vec![0; (MIB + 4096) as usize])).await, Err(BlockError::Invalid(_))));
        assert!(matches!(volume.discard(0, 100 * MIB).await, Err(BlockError::Invalid(_))));
        assert_eq!(volume.read(0, 0).await, Ok(Vec::new()));
        assert_eq!(volume.write(0, Bytes::new()).await, Ok(()));
        assert_eq!(volume.discard(0, 0).await, Ok(()));
        assert_eq!(volume.stats().errors, 5);
    });
}

#[test]
fn discarding_what_was_never_written_costs_nothing() {
    with_volume(|_, volume| async move {
        volume.discard(0, 64 * MIB).await.unwrap();
        assert_eq!(volume.stats().units, 0);
        volume.write(0, block(1)).await.unwrap();
        volume.write_zeroes(0, 64 * MIB).await.unwrap();
        assert_eq!((volume.stats().units, first_byte(&volume, 0).await), (2, 0));
    });
}

#[test]
fn limits_hold_and_can_be_lifted() {
    with_volume(|_, volume| async move {
        volume.set_qos(QosLimits { iops: 100, bytes_per_second: 0, burst_seconds: 1 });
        let start = tokio::time::Instant::now();
        futures::future::join_all((0..300).map(|number| volume.write(number * 4096, block(1)))).await;
        let took = start.elapsed();
        assert!((Duration::from_millis(1900)..Duration::from_millis(2300)).contains(&took), "{took:?}");
        volume.set_qos(QosLimits::default());
        let start = tokio::time::Instant::now();
        futures::future::join_all((0..300).map(|number| volume.write(number * 4096, block(1)))).await;
        assert!(start.elapsed() < Duration::from_millis(500));
    });
}

#[test]
fn the_stages_of_a_trace_add_up() {
    with_volume(|_, volume| async move {
        let traces: Rc<RefCell<Vec<Trace>>> = Rc::default();
        let sink = traces.clone();
        volume.set_trace(Some(Rc::new(move |trace| sink.borrow_mut().push(*trace))));
        volume.set_qos(QosLimits { iops: 10, bytes_per_second: 0, burst_seconds: 1 });
        let start = tokio::time::Instant::now();
        futures::future::join_all((0..12).map(|number| volume.write(number * 4096, block(1)))).await;
        let took = start.elapsed();
        let traces = traces.borrow();
        assert_eq!(traces.len(), 12);
        assert!(traces.iter().all(|trace| trace.operation == Operation::Write && trace.ok && trace.length == 4096));
        let last = traces.iter().map(|trace| trace.throttled + trace.queued + trace.stream).max().unwrap();
        assert!(last <= took && last + Duration::from_millis(5) > took, "{last:?} of {took:?}");
        assert!(traces.iter().any(|trace| trace.throttled >= Duration::from_millis(200)));
    });
}

#[test]
fn rot_is_an_error_and_never_wrong_data() {
    with_volume(|world, volume| async move {
        volume.write(0, block(7)).await.unwrap();
        volume.write(4096, block(8)).await.unwrap();
        world.rot(7);
        assert!(matches!(volume.read(0, 4096).await, Err(BlockError::Unavailable(_))));
        assert_eq!(first_byte(&volume, 4096).await, 8);
    });
}

#[test]
fn a_volume_that_lost_a_chunk_does_not_open() {
    let world = World::new(1, 64 * MIB, 200);
    runtime().block_on(LocalSet::new().run_until(async {
        let volume = open(&world, &Config::default()).await.expect("it opens");
        volume.write(0, block(7)).await.unwrap();
        volume.close().await.unwrap();
        world.lose_a_chunk();
        assert!(matches!(open(&world, &Config::default()).await, Err(OpenError::Damaged(_))));
    }));
}

#[test]
fn nothing_is_left_of_a_volume_that_was_dropped() {
    with_volume(|_, volume| async move {
        futures::future::join_all((0..100).map(|number| volume.write(number * 4096, block(1)))).await;
        let under_way = volume.write(0, block(2));
        let inner = Rc::downgrade(&volume.inner);
        drop(volume);
        assert_eq!(under_way.await, Err(BlockError::Closed));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(inner.upgrade().is_none(), "a task keeps the volume in memory");
    });
}

#[test]
fn an_idle_volume_sleeps() {
    with_volume(|_, volume| async move {
        volume.write(0, block(1)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(volume.stats().checkpoints, 1);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(volume.stats().checkpoints, 1, "nothing changed, nothing is written");
        assert_eq!(volume.stats().replay_bytes, 0);
    });
}

#[test]
fn a_fenced_volume_answers_at_once() {
    with_volume(|_, volume| async move {
        let under_way = volume.write(0, block(1));
        volume.fence();
        assert_eq!(under_way.await, Err(BlockError::Fenced));
        assert_eq!(volume.read(0, 4096).await, Err(BlockError::Fenced));
        assert_eq!(volume.flush().await, Err(BlockError::Fenced));
        assert_eq!(volume.discard(0, 4096).await, Err(BlockError::Fenced));
        assert_eq!(volume.close().await, Err(OpenError::Fenced));
    });
}
