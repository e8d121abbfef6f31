//! Reading and recovering with copies that are away, silent, damaged or somewhere else.

mod world;

use api_types::{DeviceId, QosClass};
use bytes::Bytes;
use client_stream::{Client, Error, Position};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use world::{Health, REPLICATION, STREAM, World, run};

const DATA: &[u8] = b"what was written once";

/// One unit, committed, in a chunk that is closed.
async fn written(world: &Rc<World>, client: &Client) -> Position {
    let writer = world.writer(client);
    let position = writer.append(vec![Bytes::from_static(DATA)], Bytes::new()).await.expect("all is well");
    writer.close().await.expect("all is well");
    position
}

async fn read(client: &Client, position: Position) -> Result<Bytes, Error> {
    let verify = |bytes: &[u8]| bytes == DATA;
    client.read(position.chunk, position.offset, DATA.len() as u32, QosClass::Foreground, &verify).await
}

#[test]
fn a_copy_that_does_not_verify_is_reported_and_another_is_read() {
    run(async |world| {
        let client = world.client();
        let position = written(&world, &client).await;
        world.set(1, Health::Rotten);
        world.set(2, Health::Rotten);
        for _ in 0..40 {
            assert_eq!(read(&client, position).await.unwrap(), DATA);
        }
        let reported: BTreeSet<DeviceId> = world.reports.borrow().iter().copied().collect();
        assert_eq!(reported, BTreeSet::from([DeviceId(1), DeviceId(2)]));
    });
}

#[test]
fn when_no_copy_verifies_the_read_says_so_and_guesses_nothing() {
    run(async |world| {
        let client = world.client();
        let position = written(&world, &client).await;
        for device in 1..=3 {
            world.set(device, Health::Rotten);
        }
        assert!(matches!(read(&client, position).await, Err(Error::Corrupt(_))));
    });
}

#[test]
fn a_silent_copy_is_passed_by_a_second_read_within_the_budget() {
    run(async |world| {
        let client = world.client();
        let position = written(&world, &client).await;
        world.set(1, Health::Silent);
        let before = world.reads.get();
        for number in 0..200 {
            let started = Instant::now();
            read(&client, position).await.unwrap();
            // What is saved up is enough for the first ten, whichever copies they choose.
            assert!(number >= 10 || started.elapsed() < Duration::from_millis(60), "read {number}: {:?}", started.elapsed());
        }
        let extra = world.reads.get() - before - 200;
        // Ten saved up, five in a hundred, and those that waited for the silent copy's time to pass.
        assert!((1..=30).contains(&extra), "{extra} reads too many");
    });
}

#[test]
fn a_chunk_that_was_deleted_is_not_found_though_its_place_is_remembered() {
    run(async |world| {
        let client = world.client();
        let position = written(&world, &client).await;
        read(&client, position).await.unwrap();
        let other = world.client();
        other.delete_chunks(STREAM, world.next_epoch(), vec![position.chunk]).await.unwrap();
        assert!(matches!(read(&client, position).await, Err(Error::NotFound(_))));
    });
}

#[test]
fn copies_that_moved_are_looked_up_again() {
    run(async |world| {
        let client = world.client();
        let position = written(&world, &client).await;
        read(&client, position).await.unwrap();
        world.move_all();
        assert_eq!(read(&client, position).await.unwrap(), DATA);
        assert!(world.reports.borrow().is_empty(), "a copy that isn't there isn't a damaged one");
    });
}

#[test]
fn recovery_waits_for_enough_answers_and_names_those_that_are_missing() {
    run(async |world| {
        let (old, new) = (world.client(), world.client());
        let writer = world.writer(&old);
        let position = writer.append(vec![Bytes::from_static(DATA)], Bytes::new()).await.unwrap();
        world.set(2, Health::Away);
        world.set(3, Health::Silent);
        let epoch = world.next_epoch();
        let Err(Error::Unavailable(text)) = new.recover(STREAM, epoch, REPLICATION).await else { panic!("closed by one answer") };
        assert!(text.contains("d-2") && text.contains("d-3") && !text.contains("d-1"), "{text}");
        world.set(2, Health::Well);
        let chunks = new.recover(STREAM, epoch, REPLICATION).await.unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk.shape.chunk).collect::<Vec<_>>(), [position.chunk]);
        assert_eq!(read(&new, position).await.unwrap(), DATA);
        assert_eq!(writer.append(vec![Bytes::from_static(DATA)], Bytes::new()).await, Err(Error::Fenced));
    });
}

#[test]
fn a_commit_on_two_copies_is_found_without_one_of_them() {
    run(async |world| {
        let (old, new) = (world.client(), world.client());
        world.set(3, Health::Silent);
        let writer = world.writer(&old);
        let position = writer.append(vec![Bytes::from_static(DATA)], Bytes::from_static(b"trailer")).await.unwrap();
        drop(writer);
        world.set(3, Health::Well);
        world.set(1, Health::Away);
        let chunks = new.recover(STREAM, world.next_epoch(), REPLICATION).await.unwrap();
        let whole: Vec<DeviceId> = chunks[0].copies.iter().filter(|copy| copy.whole).map(|copy| copy.device).collect();
        assert_eq!(whole, [DeviceId(2)]);
        let mut scan = new.scan(position.chunk, 0, position.end, true, QosClass::Repair);
        let unit = scan.next().await.unwrap().unwrap();
        assert_eq!((unit.data.unwrap(), unit.trailer), (Bytes::from_static(DATA), Bytes::from_static(b"trailer")));
        assert_eq!(scan.next().await.unwrap(), None);
    });
}

#[test]
fn spares_that_no_store_has_are_closed_too_and_their_writer_is_fenced() {
    run(async |world| {
        let (old, new) = (world.client(), world.client());
        let writer = world.writer(&old);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(world.chunks.borrow().len(), 2);
        let chunks = new.recover(STREAM, world.next_epoch(), REPLICATION).await.unwrap();
        assert_eq!((chunks.len(), world.chunks.borrow().len()), (0, 0));
        assert_eq!(writer.append(vec![Bytes::from_static(DATA)], Bytes::new()).await, Err(Error::Fenced));
        assert_eq!(writer.stopped(), Some(Error::Fenced));
    });
}

#[test]
fn a_copy_that_was_struck_off_does_not_make_fewer_answers_enough() {
    run(async |world| {
        let (old, new) = (world.client(), world.client());
        world.set(3, Health::Silent);
        let writer = world.writer(&old);
        let position = writer.append(vec![Bytes::from_static(DATA)], Bytes::new()).await.unwrap();
        drop(writer);
        // Of the two copies of the commit one is struck off and one is away; the third never had the unit.
        world.set(3, Health::Well);
        world.set(2, Health::Away);
        for chunk in world.chunks.borrow_mut().values_mut() {
            chunk.copies.retain(|copy| copy.device != DeviceId(1));
        }
        let epoch = world.next_epoch();
        assert!(matches!(new.recover(STREAM, epoch, REPLICATION).await, Err(Error::Unavailable(_))));
        world.set(2, Health::Well);
        new.recover(STREAM, epoch, REPLICATION).await.unwrap();
        assert_eq!(read(&new, position).await.unwrap(), DATA);
    });
}
