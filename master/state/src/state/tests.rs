use super::*;
use crate::{Liveness, LivenessConfig, NewVolume, Presence};
use api_types::master::{
    BadCopy, ChunkRecord, ChunkState, DeviceAddress, DeviceReport, Grant, NodeReport, Order, OrderResult, RootPointer, SealChunk,
    VolumeRecord, Work,
};
use api_types::unit::Alignment;
use api_types::{Epoch, LifetimeClass, RequestId};
use proptest::prelude::*;
use std::time::Duration;

mod random;
mod upkeep;

const GIB: u64 = 1 << 30;
const CHUNK: u32 = 64 << 20;

/// A state with a helper around it, and a wall clock that only tests move.
struct World {
    state: State,
    at_ms: u64,
    seed: u64,
}

impl World {
    fn new(nodes: u64) -> World {
        let mut world = World { state: State::new(), at_ms: 1000, seed: 0 };
        world.apply(Body::Bootstrap { cluster: ClusterId(7), pools: Vec::new() }).unwrap();
        for n in 1..=nodes {
            world.apply(Body::Register(report(n))).unwrap();
        }
        world
    }

    fn apply(&mut self, body: Body) -> Result<Reply, Error> {
        self.apply_as(0, body)
    }

    fn apply_as(&mut self, id: u128, body: Body) -> Result<Reply, Error> {
        self.seed += 1;
        self.state.apply(&Command { request_id: RequestId(id), at_ms: self.at_ms, seed: self.seed, body }).reply
    }

    fn volume(&mut self, name: &str) -> VolumeRecord {
        let new = NewVolume { name: name.into(), size_bytes: GIB, ..NewVolume::default() };
        match self.apply(Body::CreateVolume(new)).unwrap() {
            Reply::Volume(volume) => volume,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, volume: VolumeId, node: u64) -> Epoch {
        match self.apply(Body::OpenVolume { volume, node: name(node) }).unwrap() {
            Reply::Lease(lease) => lease.volume.epoch,
            other => panic!("{other:?}"),
        }
    }

    fn grant(&mut self, stream: StreamId, epoch: Epoch, class: LifetimeClass) -> Result<Vec<ChunkRecord>, Error> {
        let grant = Grant { stream, epoch, count: 1, capacity: CHUNK, class, avoid: Vec::new() };
        self.apply(Body::Grant(grant)).map(|reply| match reply {
            Reply::Chunks(chunks) => chunks,
            other => panic!("{other:?}"),
        })
    }

    /// A chunk of a new volume, sealed, whole on all its devices but the last `short`.
    fn sealed(&mut self, short: usize) -> ChunkRecord {
        let volume = self.volume(&format!("v{}", self.seed));
        let epoch = self.open(volume.volume, 1);
        let chunk = self.grant(volume.streams.hot, epoch, LifetimeClass::Short).unwrap().remove(0);
        let whole = chunk.copies[..3 - short].iter().map(|copy| copy.device).collect();
        self.apply(Body::Seal(SealChunk { chunk: chunk.shape.chunk, epoch, length: 1 << 20, whole })).unwrap();
        self.chunk(chunk.shape.chunk)
    }

    fn chunk(&self, id: ChunkId) -> ChunkRecord {
        self.state.locate([id]).remove(0)
    }

    fn presence(&mut self, node: u64, presence: Presence) {
        let body = Body::SetPresence { nodes: vec![(name(node), presence)], devices: vec![(DeviceId(node), presence)] };
        self.apply(body).unwrap();
    }

    fn orders(&self) -> Vec<Order> {
        self.state.nodes().iter().flat_map(|node| self.state.orders_for(&node.node)).collect()
    }

    fn repairs(&self) -> Vec<Order> {
        self.orders().into_iter().filter(|order| matches!(order.work, Work::Repair { .. })).collect()
    }

    fn end(&mut self, order: &Order, error: Option<&str>) {
        let done = vec![OrderResult { id: order.id, error: error.map(str::to_owned) }];
        self.apply(Body::Observe { node: name(order.device.0), devices: Vec::new(), done }).unwrap();
    }
}

fn name(n: u64) -> NodeName {
    NodeName(format!("node-{n}"))
}

fn report(n: u64) -> NodeReport {
    let address = DeviceAddress { device: DeviceId(n), node: name(n), endpoint: format!("h:{n}"), media: "memory".into() };
    let device = DeviceReport {
        address,
        capacity_bytes: 4 * GIB,
        free_bytes: 4 * GIB,
        alignment: if n == 1 { Alignment::B4096 } else { Alignment::B512 },
        healthy: true,
    };
    NodeReport {
        node: name(n),
        cluster: ClusterId(7),
        labels: BTreeMap::from([("zone".to_owned(), format!("z{}", n % 2))]),
        devices: vec![device],
        volumes: Vec::new(),
        done: Vec::new(),
    }
}

#[test]
fn a_retry_gets_the_first_answer() {
    let mut world = World::new(4);
    let volume = world.volume("v").volume;
    let open = Body::OpenVolume { volume, node: name(1) };
    let first = world.apply_as(9, open.clone()).unwrap();
    assert_eq!(world.apply_as(9, open.clone()).unwrap(), first);
    assert_eq!(world.state.volume(volume).unwrap().epoch, Epoch(1));
    world.apply_as(10, open).unwrap();
    assert_eq!(world.state.volume(volume).unwrap().epoch, Epoch(2));
}

#[test]
fn the_same_volume_again_is_the_same_and_another_is_a_conflict() {
    let mut world = World::new(4);
    let volume = world.volume("v");
    assert_eq!(world.volume("v"), volume);
    let larger = NewVolume { name: "v".into(), size_bytes: 2 * GIB, ..NewVolume::default() };
    assert!(matches!(world.apply(Body::CreateVolume(larger)), Err(Error::Conflict(_))));
    assert_eq!(world.state.lookup("/volumes/v/hot"), Ok(Entry::File(volume.streams.hot)));
}

#[test]
fn an_old_epoch_can_do_nothing() {
    let mut world = World::new(4);
    let volume = world.volume("v");
    let old = world.open(volume.volume, 1);
    let index = world.grant(volume.streams.index, old, LifetimeClass::Medium).unwrap().remove(0);
    let chunk = index.shape.chunk;
    let new = world.open(volume.volume, 2);
    let root = RootPointer { chunk, offset: 0, length: 4096 };
    let seal = SealChunk { chunk, epoch: old, length: 0, whole: Vec::new() };
    let bodies = [
        Body::SetRoot { volume: volume.volume, epoch: old, root },
        Body::Seal(seal),
        Body::DeleteChunks { stream: volume.streams.index, epoch: old, chunks: vec![chunk] },
        Body::CloseVolume { volume: volume.volume, epoch: old },
    ];
    for body in bodies {
        assert_eq!(world.apply(body), Err(Error::Fenced { epoch: new }));
    }
    assert_eq!(world.grant(volume.streams.hot, old, LifetimeClass::Short), Err(Error::Fenced { epoch: new }));
    assert!(matches!(world.grant(volume.streams.hot, new.next(), LifetimeClass::Short), Err(Error::Invalid(_))));
}

#[test]
fn an_older_checkpoint_never_wins() {
    let mut world = World::new(4);
    let volume = world.volume("v");
    let epoch = world.open(volume.volume, 1);
    let first = world.grant(volume.streams.index, epoch, LifetimeClass::Medium).unwrap().remove(0).shape.chunk;
    let second = world.grant(volume.streams.index, epoch, LifetimeClass::Medium).unwrap().remove(0).shape.chunk;
    let set = |chunk, offset| Body::SetRoot { volume: volume.volume, epoch, root: RootPointer { chunk, offset, length: 1 } };
    world.apply(set(first, 4096)).unwrap();
    assert!(matches!(world.apply(set(first, 0)), Err(Error::Conflict(_))));
    world.apply(set(second, 0)).unwrap();
    world.apply(set(second, 0)).unwrap();
    assert!(matches!(world.apply(set(first, 8192)), Err(Error::Conflict(_))));
    let delete = |chunk| Body::DeleteChunks { stream: volume.streams.index, epoch, chunks: vec![chunk] };
    assert!(matches!(world.apply(delete(second)), Err(Error::Conflict(_))), "it holds the root");
    world.apply(delete(first)).unwrap();
}

#[test]
fn copies_are_apart_and_aligned_for_all() {
    let mut world = World::new(4);
    for _ in 0..20 {
        let chunk = world.sealed(0);
        let mut devices: Vec<_> = chunk.copies.iter().map(|copy| copy.device).collect();
        devices.dedup();
        assert_eq!(devices.len(), 3);
        let coarse = devices.contains(&DeviceId(1));
        assert_eq!(chunk.shape.alignment, if coarse { Alignment::B4096 } else { Alignment::B512 });
    }
}

#[test]
fn a_short_copy_on_a_living_device_is_completed_in_place() {
    let mut world = World::new(4);
    let chunk = world.sealed(1);
    let short = chunk.copies[2].device;
    assert!(world.state.repairs_wanted(world.at_ms));
    world.apply(Body::PlanRepairs).unwrap();
    let orders = world.repairs();
    assert_eq!(orders.len(), 1);
    assert_eq!(orders[0].device, short);
    assert!(!world.state.repairs_wanted(world.at_ms), "one order is enough");
    world.end(&orders[0], None);
    assert!(world.chunk(chunk.shape.chunk).copies.iter().all(|copy| copy.whole));
    assert_eq!(world.state.chunk_counts().under_replicated, 0);
}

#[test]
fn a_silent_device_is_suspect_long_before_it_is_rebuilt() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let node = chunk.copies[0].device.0;
    let mut liveness = Liveness::new(LivenessConfig::default(), Duration::ZERO);
    for n in 1..=4 {
        liveness.beat(&report(n), Duration::ZERO);
    }
    let mut at = |world: &mut World, seconds: u64| {
        let now = Duration::from_secs(seconds);
        (1..=4).filter(|n| *n != node).for_each(|n| liveness.beat(&report(n), now));
        if let Some(body) = liveness.transitions(&world.state, now) {
            world.apply(body).unwrap();
        }
        world.state.device(DeviceId(node)).unwrap().state.presence
    };
    assert_eq!(at(&mut world, 4), Presence::Up);
    assert_eq!(at(&mut world, 10), Presence::Suspect);
    assert!(!world.state.repairs_wanted(world.at_ms));
    assert_eq!(at(&mut world, 61), Presence::Lost);
    assert!(world.state.repairs_wanted(world.at_ms));
}

#[test]
fn a_lost_copy_is_made_again_and_the_old_one_goes_when_it_comes_back() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let lost = chunk.copies[0].device;
    world.presence(lost.0, Presence::Lost);
    world.apply(Body::PlanRepairs).unwrap();
    let orders = world.repairs();
    assert_eq!(orders.len(), 1);
    let target = orders[0].device;
    assert!(chunk.copies.iter().all(|copy| copy.device != target), "on the fourth device");
    world.end(&orders[0], None);
    let devices: Vec<_> = world.chunk(chunk.shape.chunk).copies.iter().map(|copy| copy.device).collect();
    assert!(!devices.contains(&lost) && devices.contains(&target));
    world.presence(lost.0, Presence::Up);
    let deletes: Vec<_> = world.orders().into_iter().filter(|order| order.device == lost).collect();
    assert_eq!(deletes.len(), 1, "the device deletes what it holds too much");
    world.end(&deletes[0], None);
    assert!(world.orders().is_empty());
}

#[test]
fn a_device_that_comes_back_in_time_ends_its_replacement() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let lost = chunk.copies[0].device;
    world.presence(lost.0, Presence::Lost);
    world.apply(Body::PlanRepairs).unwrap();
    let target = world.repairs()[0].device;
    world.presence(lost.0, Presence::Up);
    assert!(world.repairs().is_empty());
    let devices: Vec<_> = world.chunk(chunk.shape.chunk).copies.iter().map(|copy| copy.device).collect();
    assert!(devices.contains(&lost) && !devices.contains(&target));
}

#[test]
fn the_most_endangered_chunk_is_first_and_a_device_has_few_repairs_at_once() {
    let mut world = World::new(4);
    for _ in 0..8 {
        world.sealed(1);
    }
    let worst = world.sealed(2).shape.chunk;
    world.apply(Body::PlanRepairs).unwrap();
    let repaired = |order: &Order| match order.work {
        Work::Repair { shape, .. } => shape.chunk,
        Work::Delete(chunk) => chunk,
    };
    let orders = world.repairs();
    assert_eq!(orders.iter().filter(|order| repaired(order) == worst).count(), 2);
    for n in 1..=4 {
        assert!(orders.iter().filter(|order| order.device == DeviceId(n)).count() <= 2);
    }
}

#[test]
fn a_failed_repair_pauses_and_then_goes_elsewhere() {
    let mut world = World::new(4);
    let chunk = world.sealed(1);
    let short = chunk.copies[2].device;
    for _ in 0..3 {
        world.apply(Body::PlanRepairs).unwrap();
        let order = world.repairs().remove(0);
        assert_eq!(order.device, short);
        world.end(&order, Some("no"));
        assert!(!world.state.repairs_wanted(world.at_ms), "not at once");
        world.at_ms += 10_000;
    }
    world.apply(Body::PlanRepairs).unwrap();
    assert_ne!(world.repairs()[0].device, short);
}

#[test]
fn a_bad_copy_is_made_again_but_never_the_last_one_condemned() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    for copy in &chunk.copies {
        let bad = BadCopy { chunk: chunk.shape.chunk, device: copy.device, reason: "crc".into() };
        world.apply(Body::ReportBadCopy(bad)).unwrap();
    }
    assert_eq!(world.chunk(chunk.shape.chunk).copies.iter().filter(|copy| copy.whole).count(), 1);
}

#[test]
fn deletions_reach_a_device_that_was_away() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let away = chunk.copies[0].device;
    world.presence(away.0, Presence::Suspect);
    let volume = world.state.volumes()[0].volume;
    assert!(matches!(world.apply(Body::DeleteVolume { volume, force: false }), Err(Error::Conflict(_))), "attached");
    world.apply(Body::DeleteVolume { volume, force: true }).unwrap();
    world.apply(Body::DeleteVolume { volume, force: true }).unwrap();
    assert_eq!(world.orders().len(), 3);
    world.apply(Body::Register(report(away.0))).unwrap();
    for order in world.orders() {
        world.end(&order, None);
    }
    assert!(world.orders().is_empty());
    assert_eq!(world.state.device(away).unwrap().available_bytes, 4 * GIB);
}

#[test]
fn a_full_pool_still_serves_reclaim_and_then_checkpoints() {
    let mut world = World::new(3);
    let volume = world.volume("v");
    let epoch = world.open(volume.volume, 1);
    let mut fill = |stream, class| {
        let mut count = 0;
        loop {
            match world.grant(stream, epoch, class) {
                Ok(_) => count += 1,
                Err(Error::NoSpace(_)) => return count,
                Err(other) => panic!("{other}"),
            }
        }
    };
    assert_eq!(fill(volume.streams.hot, LifetimeClass::Short), 60);
    assert_eq!(fill(volume.streams.cold, LifetimeClass::Long), 2);
    assert_eq!(fill(volume.streams.index, LifetimeClass::Medium), 2);
}

#[test]
fn a_copied_disk_is_refused_and_a_moved_one_is_taken() {
    let mut world = World::new(3);
    let mut copied = report(2);
    copied.node = name(3);
    copied.devices[0].address.node = name(3);
    assert!(matches!(world.apply(Body::Register(copied.clone())), Err(Error::Conflict(_))));
    world.presence(2, Presence::Suspect);
    world.apply(Body::Register(copied)).unwrap();
    assert_eq!(world.state.device(DeviceId(2)).unwrap().address.node, name(3));
    let mut foreign = report(1);
    foreign.cluster = ClusterId(8);
    assert!(matches!(world.apply(Body::Register(foreign)), Err(Error::Invalid(_))));
}

#[test]
fn an_idle_beat_is_no_news_and_a_filling_device_is() {
    let world = World::new(3);
    let mut beat = report(1);
    assert_eq!(world.state.news(&beat), Ok(None));
    beat.devices[0].free_bytes -= 4 * GIB / 64 - 1;
    assert_eq!(world.state.news(&beat), Ok(None));
    beat.devices[0].free_bytes -= 1;
    assert!(matches!(world.state.news(&beat), Ok(Some(Body::Observe { .. }))));
    assert!(matches!(world.state.news(&report(9)), Err(Error::NotFound { .. })));
}

#[test]
fn a_late_unpublish_changes_nothing_and_a_lost_node_is_fenced() {
    let mut world = World::new(3);
    let volume = world.volume("v").volume;
    world.apply(Body::Publish { volume, node: name(1) }).unwrap();
    assert!(matches!(world.apply(Body::Publish { volume, node: name(2) }), Err(Error::Conflict(_))));
    let epoch = world.open(volume, 1);
    world.apply(Body::Unpublish { volume, node: Some(name(2)) }).unwrap();
    assert_eq!(world.state.published(volume), Some(name(1)));
    world.presence(1, Presence::Lost);
    world.apply(Body::Unpublish { volume, node: Some(name(1)) }).unwrap();
    let record = world.state.volume(volume).unwrap();
    assert_eq!((record.published, record.attached, record.epoch), (None, None, epoch.next()));
    world.apply(Body::DeleteVolume { volume, force: false }).unwrap();
    assert_eq!(world.state.epochs_of(&[(volume, epoch)]), [(volume, Epoch(u64::MAX))]);
}

#[test]
fn a_node_with_the_only_whole_copy_is_not_forgotten() {
    let mut world = World::new(3);
    let chunk = world.sealed(2);
    let only = chunk.copies[0].device.0;
    assert!(matches!(world.apply(Body::ForgetNode(name(only))), Err(Error::Conflict(_))), "it is up");
    world.presence(only, Presence::Lost);
    assert!(matches!(world.apply(Body::ForgetNode(name(only))), Err(Error::Conflict(_))), "it holds data");
    let other = chunk.copies[1].device.0;
    world.presence(other, Presence::Lost);
    world.apply(Body::ForgetNode(name(other))).unwrap();
    assert_eq!(world.chunk(chunk.shape.chunk).copies.len(), 2);
}
