//! Bringing chunks back from other copies.

use crate::world::{MIB, append, delete, fresh, info, open, read, run, seal, shape, unit};
use api_types::chunk::{ChunkStore, Error, Request};
use api_types::unit::ChunkShape;
use bytes::{Bytes, BytesMut};

/// The bytes of a whole chunk.
fn chunk(shape: ChunkShape, at_least: u32) -> Bytes {
    let mut bytes = BytesMut::new();
    while (bytes.len() as u32) < at_least {
        let unit = unit(shape, bytes.len() as u32, 70_000, 3);
        bytes.extend_from_slice(&unit);
    }
    bytes.freeze()
}

#[test]
fn a_restored_chunk_is_whole_sealed_and_survives_reopening() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        let bytes = chunk(shape, 5 * MIB);
        let length = bytes.len() as u32;
        let mut restore = engine.restore(shape, length).await.unwrap();
        for at in (0..length).step_by(MIB as usize) {
            restore.write(at, bytes.slice(at as usize..(at + MIB).min(length) as usize)).await.unwrap();
        }
        let found = restore.finish().await.unwrap();
        assert_eq!((found.length, found.sealed), (length, true));
        assert!(matches!(engine.restore(shape, length).await, Err(Error::Conflict)));
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(info(&engine, 5), Some(found));
        assert_eq!(read(&engine, 5, 3 * MIB, MIB).await.unwrap(), bytes.slice(3 * MIB as usize..4 * MIB as usize));
    });
}

#[test]
fn a_short_copy_stays_until_the_whole_one_is_there() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        let bytes = chunk(shape, 2 * MIB);
        let length = bytes.len() as u32;
        let first = unit(shape, 0, 70_000, 3);
        append(&engine, shape, 0, &first).await.unwrap();
        assert!(matches!(engine.restore(shape, length).await, Err(Error::Busy)), "it is open");
        seal(&engine, 5, 1, None).await.unwrap();
        let free = engine.stats().store.free_bytes;
        let mut restore = engine.restore(shape, length).await.unwrap();
        assert!(matches!(engine.restore(shape, length).await, Err(Error::Busy)), "one is under way");
        restore.write(0, bytes.slice(..MIB as usize)).await.unwrap();
        assert_eq!(read(&engine, 5, 0, first.len() as u32).await.unwrap(), first);
        drop(restore);
        engine.serve(Request::Probe).await.unwrap();
        seal(&engine, 99, 1, None).await.unwrap();
        assert_eq!(engine.stats().store.free_bytes, free, "given up, its space is free again");

        let mut restore = engine.restore(shape, length).await.unwrap();
        restore.write(0, bytes.clone()).await.unwrap();
        restore.finish().await.unwrap();
        assert_eq!(info(&engine, 5).unwrap().length, length);
        let held = engine.stats().store.free_bytes;
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(info(&engine, 5).unwrap().length, length);
        assert_eq!(engine.stats().store.free_bytes, held);
    });
}

#[test]
fn an_unfinished_restore_is_gone_after_reopening() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let free = engine.stats().store.free_bytes;
        let shape = shape(5);
        let bytes = chunk(shape, 2 * MIB);
        let mut restore = engine.restore(shape, bytes.len() as u32).await.unwrap();
        restore.write(0, bytes.slice(..MIB as usize)).await.unwrap();
        drop(engine);
        assert!(restore.write(MIB, bytes.slice(MIB as usize..)).await.is_err(), "the store is gone");
        drop(restore);
        let engine = open(&device).await;
        assert_eq!(info(&engine, 5), None);
        assert_eq!(engine.stats().store.free_bytes, free);
    });
}

#[test]
fn bytes_that_do_not_verify_are_refused_with_their_place() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let shape = shape(5);
        let mut bytes = chunk(shape, MIB).to_vec();
        let bad = unit(shape, 0, 70_000, 3).len();
        bytes[bad + 100] ^= 1;
        let mut restore = engine.restore(shape, bytes.len() as u32).await.unwrap();
        let answer = restore.write(0, bytes.into()).await;
        assert_eq!(answer, Err(Error::Corrupt { offset: bad as u32 }));
        assert!(restore.finish().await.is_err());
        assert_eq!(info(&engine, 5), None);
    });
}

#[test]
fn a_chunk_deleted_while_it_is_restored_stays_deleted() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let shape = shape(5);
        let bytes = chunk(shape, MIB);
        let mut restore = engine.restore(shape, bytes.len() as u32).await.unwrap();
        restore.write(0, bytes).await.unwrap();
        delete(&engine, 5).await.unwrap();
        assert_eq!(restore.finish().await, Err(Error::Unknown));
        assert_eq!(info(&engine, 5), None);
    });
}

#[test]
fn repair_has_space_when_appends_have_none() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let mut id = 100;
        loop {
            let shape = shape(id);
            if append(&engine, shape, 0, &unit(shape, 0, 4096, 1)).await.is_err() {
                break;
            }
            id += 1;
        }
        let shape = shape(5);
        let bytes = chunk(shape, MIB / 2);
        let mut restore = engine.restore(shape, bytes.len() as u32).await.unwrap();
        restore.write(0, bytes).await.unwrap();
        restore.finish().await.unwrap();
        assert!(matches!(engine.restore(crate::world::shape(6), 16 * MIB).await, Err(Error::Full)));
    });
}
