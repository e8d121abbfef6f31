//! Flipped bits and torn writes: found, named, and survived where there is a second copy.

use crate::world::{append, delete, fresh, info, open, read, run, seal, shape, try_open, unit};
use api_types::chunk::{Error, Sealed};
use api_types::{ChunkId, QosClass};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use nodeagent_device::{Device, Faulty, Info, Latency, Memory, OpKind, Power, Write};
use nodeagent_engine::{Engine, OpenError};
use nodeagent_reactor::RealRng;
use std::io;
use std::rc::Rc;

const SUPERBLOCKS: [u64; 2] = [0, 1 << 20];

async fn with_a_chunk() -> (Memory, Rc<dyn Device>, Engine) {
    let (memory, device, engine) = fresh(64).await;
    append(&engine, shape(5), 0, &unit(shape(5), 0, 4096, 1)).await.unwrap();
    (memory, device, engine)
}

fn flip(memory: &Memory, at: u64) {
    let byte = memory.peek(at, 1)[0];
    memory.poke(at, &[byte ^ 0x20]);
}

#[test]
fn one_damaged_superblock_is_mended_from_the_other() {
    run(async {
        for at in SUPERBLOCKS {
            let (memory, device, engine) = with_a_chunk().await;
            drop(engine);
            flip(&memory, at + 40);
            let engine = open(&device).await;
            let damaged = &engine.mount_report().damaged;
            assert!(damaged[0].contains(&format!("superblock at byte {at}")), "{damaged:?}");
            assert!(info(&engine, 5).is_some());
            drop(engine);
            assert!(open(&device).await.mount_report().damaged.is_empty());
        }
    });
}

#[test]
fn two_damaged_superblocks_are_an_error_that_says_so() {
    run(async {
        let (memory, device, engine) = with_a_chunk().await;
        drop(engine);
        SUPERBLOCKS.iter().for_each(|at| flip(&memory, at + 40));
        assert!(matches!(try_open(&device).await, Err(OpenError::Damaged { .. })));
    });
}

#[test]
fn a_filesystem_made_over_a_store_is_not_mended_away() {
    run(async {
        let (memory, device, engine) = with_a_chunk().await;
        drop(engine);
        memory.poke(0, &[0; 4096]);
        memory.poke(1080, &[0x53, 0xef]);
        let Err(OpenError::Damaged { what, .. }) = try_open(&device).await else { panic!() };
        assert!(what.contains("ext4"), "{what}");
    });
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_other_one_used() {
    run(async {
        for region in 0..2 {
            let (memory, device, engine) = with_a_chunk().await;
            seal(&engine, 5, 3, None).await.unwrap();
            seal(&engine, 77, 4, None).await.unwrap();
            let at = engine.superblock().layout.checkpoint_offsets[region];
            drop(engine);
            flip(&memory, at + 20);
            let engine = open(&device).await;
            let damaged = &engine.mount_report().damaged;
            assert!(damaged[0].contains(&format!("checkpoint region {region}")), "{damaged:?}");
            assert_eq!(info(&engine, 5).unwrap().length, 8192);
            assert!(matches!(seal(&engine, 5, 3, None).await, Err(Error::Fenced { .. })));
        }
    });
}

#[test]
fn two_damaged_checkpoints_are_an_error_that_names_both() {
    run(async {
        let (memory, device, engine) = with_a_chunk().await;
        let offsets = engine.superblock().layout.checkpoint_offsets;
        drop(engine);
        offsets.iter().for_each(|at| flip(&memory, at + 4100));
        offsets.iter().for_each(|at| flip(&memory, at + 20));
        let Err(OpenError::Damaged { what, .. }) = try_open(&device).await else { panic!() };
        assert!(what.contains("region 0") && what.contains("region 1"), "{what}");
    });
}

#[test]
fn a_torn_end_of_the_journal_is_left_out_and_damage_before_it_is_an_error() {
    run(async {
        let (memory, device, engine) = with_a_chunk().await;
        for epoch in 2..6 {
            seal(&engine, 80, epoch, None).await.unwrap();
        }
        let ring = engine.superblock().layout;
        drop(engine);
        let blocks: Vec<u64> = (0..ring.journal_bytes / 4096)
            .map(|block| ring.journal_offset + block * 4096)
            .filter(|at| memory.peek(*at, 4) == b"BSLJ")
            .collect();
        assert!(blocks.len() >= 5);

        let torn = memory.fork();
        torn.poke(blocks[blocks.len() - 1] + 512, &[7; 512]);
        let torn: Rc<dyn Device> = Rc::new(torn);
        let engine = open(&torn).await;
        assert_eq!(seal(&engine, 80, 4, None).await, Ok(Sealed::Absent), "the last seal was never answered");

        flip(&memory, blocks[blocks.len() - 3] + 50);
        let Err(OpenError::Damaged { what, .. }) = try_open(&device).await else { panic!() };
        assert!(what.contains("journal block"), "{what}");
    });
}

#[test]
fn the_journal_wraps_many_times_and_every_opening_finds_the_same() {
    run(async {
        let (_, device, mut engine) = fresh(64).await;
        for round in 0..900u64 {
            let id = 100 + round;
            append(&engine, shape(id), 0, &unit(shape(id), 0, 100, 1)).await.unwrap();
            seal(&engine, id, 1, Some(4096)).await.unwrap();
            if round >= 5 {
                delete(&engine, id - 5).await.unwrap();
            }
            if round % 250 == 249 {
                assert!(engine.stats().checkpoints >= 2, "{:?}", engine.stats());
                drop(engine);
                engine = open(&device).await;
                let ids: Vec<u64> = engine.infos(ChunkId(0), 100).iter().map(|info| info.shape.chunk.0).collect();
                assert_eq!(ids, (id - 4..=id).collect::<Vec<_>>());
                assert!(engine.mount_report().records < 2000);
            }
        }
    });
}

#[test]
fn what_a_mount_must_search_does_not_grow_with_what_was_written() {
    run(async {
        let (_, device, engine) = fresh(300).await;
        let shape = api_types::unit::ChunkShape { capacity: 256 << 20, ..shape(5) };
        let mut at = 0;
        while at < 200 << 20 {
            at = append(&engine, shape, at, &unit(shape, at, 512 << 10, 1)).await.unwrap();
        }
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(info(&engine, 5).unwrap().length, at);
        assert!(engine.mount_report().scanned_bytes < 48 << 20, "{:?}", engine.mount_report());
    });
}

#[test]
fn a_failed_write_ends_the_chunk_and_the_end_is_kept() {
    run(async {
        let memory = Memory::new(64 << 20, 4096);
        let faulty = Faulty::new(memory, crate::world::PausedClock::start(), Rc::new(RealRng::seeded(5)));
        let device: Rc<dyn Device> = Rc::new(faulty.clone());
        crate::world::make(&device).await;
        let engine = open(&device).await;
        let shape = shape(5);
        append(&engine, shape, 0, &unit(shape, 0, 4096, 1)).await.unwrap();
        faulty.plan().set_errors(OpKind::Write, 1_000_000);
        let millisecond = std::time::Duration::from_millis(1);
        faulty.plan().set_latency(Latency { min: millisecond, max: millisecond });
        let second = unit(shape, 8192, 4096, 1);
        let call = tokio::task::spawn_local({
            let engine = engine.clone();
            async move { append(&engine, shape, 8192, &second).await }
        });
        tokio::task::yield_now().await;
        faulty.plan().clear();
        assert_eq!(call.await.unwrap(), Err(Error::Sealed { length: 8192 }));
        assert_eq!(engine.stats().device_errors, 1);
        drop(engine);
        faulty.crash();
        assert_eq!(info(&open(&device).await, 5).unwrap().length, 8192);
    });
}

#[test]
fn an_unreadable_place_is_an_io_error_of_that_read_alone() {
    run(async {
        let memory = Memory::new(64 << 20, 4096);
        let faulty = Faulty::new(memory, crate::world::PausedClock::start(), Rc::new(RealRng::seeded(5)));
        let device: Rc<dyn Device> = Rc::new(faulty.clone());
        crate::world::make(&device).await;
        let engine = open(&device).await;
        append(&engine, shape(5), 0, &unit(shape(5), 0, 4096, 1)).await.unwrap();
        faulty.plan().set_errors(OpKind::Read, 1_000_000);
        assert!(matches!(read(&engine, 5, 0, 4096).await, Err(Error::Io(_))));
        faulty.plan().clear();
        assert!(read(&engine, 5, 0, 4096).await.is_ok());
    });
}

#[test]
fn a_hung_device_is_told_within_the_limit() {
    run(async {
        let memory = Memory::new(64 << 20, 4096);
        let faulty = Faulty::new(memory, crate::world::PausedClock::start(), Rc::new(RealRng::seeded(5)));
        let device: Rc<dyn Device> = Rc::new(faulty.clone());
        crate::world::make(&device).await;
        let engine = open(&device).await;
        append(&engine, shape(5), 0, &unit(shape(5), 0, 4096, 1)).await.unwrap();
        faulty.plan().set_power(Power::Hung);
        let begun = tokio::time::Instant::now();
        assert_eq!(append(&engine, shape(5), 8192, &unit(shape(5), 8192, 1, 1)).await, Err(Error::Deadline));
        assert_eq!(seal(&engine, 5, 1, None).await, Err(Error::Deadline));
        assert!(begun.elapsed().as_secs() < 30);
        faulty.plan().clear();
        assert_eq!(append(&engine, shape(5), 16384, &unit(shape(5), 16384, 1, 1)).await, Err(Error::Sealed { length: 12288 }));
    });
}

#[test]
fn a_torn_first_unit_never_completes_a_deleted_one() {
    run(async {
        let memory = Memory::new(64 << 20, 4096);
        let device: Rc<dyn Device> = Rc::new(WithoutTrim::new(memory.clone()));
        crate::world::make(&device).await;
        let engine = open(&device).await;
        for id in 1..60 {
            // Zeros, four blocks of them: the next first unit may well begin the same way.
            append(&engine, shape(id), 0, &unit(shape(id), 0, 16384, 0)).await.unwrap();
            delete(&engine, id).await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let layout = engine.superblock().layout;
        drop(engine);
        let heads = (0..u64::from(layout.extents)).map(|extent| layout.extents_offset + (extent << 20));
        let reserved: Vec<u64> = heads.filter(|at| memory.peek(*at, 4) == b"BSLR").collect();
        assert!(reserved.len() >= 8);
        reserved.iter().for_each(|at| memory.poke(*at, &[0; 4096]));
        assert!(open(&device).await.infos(ChunkId(0), 100).is_empty());
    });
}

#[test]
fn everything_of_a_store_ends_with_its_last_handle() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let clone = engine.clone();
        append(&engine, shape(5), 0, &unit(shape(5), 0, 4096, 1)).await.unwrap();
        drop(engine);
        append(&clone, shape(5), 8192, &unit(shape(5), 8192, 4096, 1)).await.unwrap();
        drop(clone);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Rc::strong_count(&device), 1);
    });
}

/// A disk that keeps what nobody needs.
struct WithoutTrim {
    memory: Memory,
    info: Info,
}

impl WithoutTrim {
    fn new(memory: Memory) -> Self {
        let info = Info { trims: false, ..memory.info().clone() };
        WithoutTrim { memory, info }
    }
}

impl Device for WithoutTrim {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read(&self, offset: u64, length: u32, qos: QosClass) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        self.memory.read(offset, length, qos)
    }

    fn write(&self, write: Write) -> LocalBoxFuture<'static, io::Result<()>> {
        self.memory.write(write)
    }

    fn flush(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        self.memory.flush()
    }

    fn trim(&self, _: u64, _: u64) -> LocalBoxFuture<'static, io::Result<()>> {
        panic!("this disk can't trim")
    }

    fn queued(&self) -> u32 {
        0
    }
}
