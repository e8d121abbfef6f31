//! The volume on the real stream client, real chunk stores and the real state of the masters, all on one thread and in
//! virtual time: nodes go away and come back, the volume crashes, the pool runs full.

mod world;

use api_types::Rng;
use api_types::master::Error as MasterError;
use bytes::Bytes;
use client_volume::{BlockDevice, BlockError, OpenError, Volume};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use world::{Dice, World};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// What was answered, block by block.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u64, u8>,
    next: u8,
}

impl Model {
    /// Writes some random runs of blocks at once, none over another, and remembers them.
    async fn write_some(&mut self, volume: &Volume, dice: &Dice, blocks: u64) -> Result<(), BlockError> {
        let mut writes = Vec::new();
        let stripe = blocks / 8;
        for lane in 0..8 {
            let count = 1 + dice.below(if dice.below(4) == 0 { 64 } else { 4 }).min(stripe - 1);
            let first = lane * stripe + dice.below(stripe - count);
            self.next = self.next.wrapping_add(1).max(1);
            let byte = if dice.below(10) == 0 { 0 } else { self.next };
            let answer = if byte == 0 {
                volume.discard(first * BLOCK, count * BLOCK)
            } else {
                volume.write(first * BLOCK, Bytes::from(vec![byte; (count * BLOCK) as usize]))
            };
            writes.push(async move { (first, count, byte, answer.await) });
        }
        let mut result = Ok(());
        for (first, count, byte, answer) in futures::future::join_all(writes).await {
            match answer {
                Ok(()) => self.blocks.extend((first..first + count).map(|block| (block, byte))),
                // Nothing is known of these any more.
                Err(error) => {
                    self.blocks.retain(|block, _| !(first..first + count).contains(block));
                    result = Err(error);
                }
            }
        }
        result
    }

    async fn check(&self, volume: &Volume) {
        for (block, byte) in &self.blocks {
            let data = volume.read(block * BLOCK, BLOCK as u32).await.expect("it reads").concat();
            assert!(data.iter().all(|found| found == byte), "block {block} holds {} and not {byte}", data[0]);
        }
    }
}

#[test]
fn answered_writes_survive_crashes_takeovers_and_nodes_that_go_away() {
    for seed in 1..6 {
        World::run(seed, 128 * MIB, 4, async |world| {
            let dice = Dice::new(seed);
            let volume_id = world.create_volume("v", 16 * MIB);
            let mut model = Model::default();
            for life in 0..5 {
                let volume = world.open(volume_id).await.expect("it opens");
                model.check(&volume).await;
                for step in 0..15 {
                    if step == 5 {
                        world.set_down(Some(dice.below(4) as usize));
                    }
                    if step == 10 {
                        world.set_down(None);
                    }
                    model.write_some(&volume, &dice, 16 * MIB / BLOCK).await.expect("one node of four may be away");
                }
                match life % 3 {
                    0 => volume.close().await.expect("it closes"),
                    1 => drop(volume),
                    _ => {
                        let next = world.open(volume_id).await.expect("it opens");
                        assert_eq!(volume.write(0, Bytes::from(vec![9; 4096])).await, Err(BlockError::Fenced));
                        model.check(&next).await;
                    }
                }
            }
            let volume = world.open(volume_id).await.expect("it opens");
            model.check(&volume).await;
        });
    }
}

#[test]
fn a_volume_is_overwritten_for_ever_on_twice_its_space() {
    // Four devices with three copies of everything: 64 MiB each make about 80 MiB of user data.
    World::run(3, 64 * MIB, 4, async |world| {
        let dice = Dice::new(3);
        let blocks = 24 * MIB / BLOCK;
        let volume = world.open(world.create_volume("v", blocks * BLOCK)).await.expect("it opens");
        let mut model = Model::default();
        for _ in 0..600 {
            model.write_some(&volume, &dice, blocks).await.expect("space never runs out");
        }
        model.check(&volume).await;
        let stats = volume.stats();
        println!("write amplification {:.2}, {stats:?}", stats.write_amplification());
        assert!(stats.deleted_chunks > 20, "{stats:?}");
        volume.close().await.expect("it closes");
    });
}

#[test]
fn a_full_pool_says_so_reads_on_and_recovers_when_space_is_freed() {
    World::run(5, 48 * MIB, 3, async |world| {
        let volume = world.open(world.create_volume("v", 1024 * MIB)).await.expect("it opens");
        let mut written = 0;
        let error = loop {
            let data = Bytes::from(vec![7; 256 << 10]);
            match volume.write(written, data).await {
                Ok(()) => written += 256 << 10,
                Err(error) => break error,
            }
        };
        assert_eq!(error, BlockError::NoSpace);
        assert!(written > 16 * MIB, "only {written} bytes went in");
        assert!(volume.read(written - 4096, 4096).await.expect("reads go on").concat().iter().all(|byte| *byte == 7));
        volume.discard(0, written).await.expect("a discard needs no space");
        assert!(volume.read(0, 4096).await.expect("it reads").concat().iter().all(|byte| *byte == 0));
        for _ in 0..100 {
            volume.write(0, Bytes::from(vec![8; 256 << 10])).await.expect("there is space again");
        }
        volume.close().await.expect("it closes");
    });
}

#[test]
fn with_two_of_three_nodes_away_it_stays_closed_and_says_why() {
    World::run(7, 64 * MIB, 3, async |world| {
        let id = world.create_volume("v", 16 * MIB);
        let volume = world.open(id).await.expect("it opens");
        volume.write(0, Bytes::from(vec![1; 4096])).await.expect("it writes");
        drop(volume);
        world.set_all_down_but(0);
        let Err(OpenError::Unavailable(_)) = world.open(id).await.map(|_| ()) else { panic!("it must not guess") };
        world.set_down(None);
        let volume = world.open(id).await.expect("it opens");
        assert_eq!(volume.read(0, 4096).await.expect("it reads").concat(), vec![1; 4096]);
    });
}

#[test]
fn a_volume_that_is_gone_does_not_open() {
    World::run(9, 64 * MIB, 3, async |world| {
        let Err(error) = world.lease(api_types::VolumeId(12345)).await else { panic!("there is no such volume") };
        assert!(matches!(error, MasterError::NotFound { .. }));
    });
}

#[test]
fn a_clean_open_of_a_large_map_is_quick() {
    World::run(11, 256 * MIB, 3, async |world| {
        let id = world.create_volume("v", 1 << 40);
        let volume = world.open(id).await.expect("it opens");
        for place in 0..600u64 {
            volume.write(place * (1 << 30), Bytes::from(vec![1; 4096])).await.expect("it writes");
        }
        volume.close().await.expect("it closes");
        let start = tokio::time::Instant::now();
        let volume = world.open(id).await.expect("it opens");
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(volume.stats().replayed_bytes, 0);
        assert_eq!(volume.read(599 << 30, 4096).await.expect("it reads").concat(), vec![1; 4096]);
        let _keep: Rc<Volume> = volume;
    });
}
