//! Whatever is asked in whatever order, these hold.

use super::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Step {
    Volume(u8),
    DeleteVolume(u8),
    Open(u8, u64),
    Grant(u8, u8),
    Seal(u8, u8, u32),
    Delete(u8),
    Presence(u64, u8),
    Bad(u8, u8),
    Plan,
    End(u8, bool),
    Later,
    Maintenance(u64, bool),
    Evacuate(u64, bool),
    Remove(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..3u8).prop_map(Step::Volume),
        1 => (0..3u8).prop_map(Step::DeleteVolume),
        2 => (0..3u8, 1..6u64).prop_map(|(volume, node)| Step::Open(volume, node)),
        8 => (0..3u8, 0..3u8).prop_map(|(volume, stream)| Step::Grant(volume, stream)),
        8 => (any::<u8>(), 1..8u8, 0..16u32).prop_map(|(chunk, whole, length)| Step::Seal(chunk, whole, length)),
        2 => any::<u8>().prop_map(Step::Delete),
        3 => (1..6u64, 0..3u8).prop_map(|(node, presence)| Step::Presence(node, presence)),
        1 => (any::<u8>(), 0..3u8).prop_map(|(chunk, copy)| Step::Bad(chunk, copy)),
        4 => Just(Step::Plan),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(order, fails)| Step::End(order, fails)),
        1 => Just(Step::Later),
        1 => (1..6u64, any::<bool>()).prop_map(|(node, on)| Step::Maintenance(node, on)),
        2 => (1..6u64, any::<bool>()).prop_map(|(device, on)| Step::Evacuate(device, on)),
        1 => (1..6u64).prop_map(Step::Remove),
    ]
}

struct Seen {
    chunks: BTreeSet<ChunkId>,
    lengths: BTreeMap<ChunkId, u32>,
    gone: BTreeSet<ChunkId>,
}

fn pick<T: Clone>(list: &[T], n: u8) -> Option<T> {
    list.get(usize::from(n) % list.len().max(1)).cloned()
}

fn all_chunks(state: &State) -> Vec<ChunkRecord> {
    state.locate(state.chunks.keys().copied())
}

fn run(world: &mut World, step: Step, seen: &mut Seen) {
    let named = |world: &World, n: u8| world.state.volume_by_name(&format!("v{n}")).ok();
    let body = match step {
        Step::Volume(n) => {
            let new = NewVolume { name: format!("v{n}"), size_bytes: GIB, ..NewVolume::default() };
            Body::CreateVolume(new)
        }
        Step::DeleteVolume(n) => match named(world, n) {
            Some(volume) => Body::DeleteVolume { volume: volume.volume, force: true },
            None => return,
        },
        Step::Open(n, node) => match named(world, n) {
            Some(volume) => Body::OpenVolume { volume: volume.volume, node: name(node) },
            None => return,
        },
        Step::Grant(n, stream) => {
            let Some(volume) = named(world, n) else { return };
            let streams = [volume.streams.hot, volume.streams.cold, volume.streams.index];
            let stream = streams[usize::from(stream)];
            let granted = world.grant(stream, volume.epoch, LifetimeClass::Short).unwrap_or_default();
            for chunk in granted {
                assert!(seen.chunks.insert(chunk.shape.chunk), "an id was given twice");
                assert_eq!(chunk.shape.epoch, volume.epoch);
            }
            return;
        }
        Step::Seal(n, whole, length) => {
            let Some(chunk) = pick(&all_chunks(&world.state), n) else { return };
            let epoch = world.state.volume(VolumeId(chunk.shape.owner.0)).unwrap().epoch;
            let devices = chunk.copies.iter().enumerate().filter(|(nth, _)| whole >> nth & 1 == 1);
            let whole = devices.map(|(_, copy)| copy.device).collect();
            Body::Seal(SealChunk { chunk: chunk.shape.chunk, epoch, length: length << 20, whole })
        }
        Step::Delete(n) => {
            let Some(chunk) = pick(&all_chunks(&world.state), n) else { return };
            let epoch = world.state.volume(VolumeId(chunk.shape.owner.0)).unwrap().epoch;
            seen.gone.insert(chunk.shape.chunk);
            Body::DeleteChunks { stream: chunk.stream, epoch, chunks: vec![chunk.shape.chunk] }
        }
        Step::Presence(node, presence) => {
            world.presence(node, [Presence::Up, Presence::Suspect, Presence::Lost][usize::from(presence)]);
            return;
        }
        Step::Bad(n, copy) => {
            let Some(chunk) = pick(&all_chunks(&world.state), n) else { return };
            let device = pick(&chunk.copies, copy).unwrap().device;
            Body::ReportBadCopy(BadCopy { chunk: chunk.shape.chunk, device, reason: String::new() })
        }
        Step::Maintenance(node, on) => Body::SetMaintenance { node: name(node), on },
        Step::Evacuate(device, on) => Body::EvacuateDevice { device: DeviceId(device), on },
        Step::Remove(device) => Body::RemoveDevice(DeviceId(device)),
        Step::Plan => Body::PlanRepairs,
        Step::End(n, fails) => {
            if let Some(order) = pick(&world.orders(), n) {
                world.end(&order, fails.then_some("no"));
            }
            return;
        }
        Step::Later => {
            world.at_ms += 100_000;
            return;
        }
    };
    let _ = world.apply(body);
}

fn check(world: &World, seen: &mut Seen) {
    let state = &world.state;
    for chunk in all_chunks(state) {
        let id = chunk.shape.chunk;
        assert!(!seen.gone.contains(&id), "a deleted chunk is back");
        let nodes: BTreeSet<_> = chunk.copies.iter().map(|copy| copy.device).collect();
        assert_eq!(nodes.len(), chunk.copies.len(), "two copies in one failure domain");
        if let ChunkState::Sealed { length } = chunk.state {
            assert_eq!(*seen.lengths.entry(id).or_insert(length), length, "a sealed length changed");
            assert!(chunk.copies.iter().any(|copy| copy.whole), "the last whole copy was given up");
        }
        assert!(chunk.shape.epoch <= state.volume(VolumeId(chunk.shape.owner.0)).unwrap().epoch);
    }
    let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for chunk in state.chunks.values() {
        for copy in &chunk.record.copies {
            *used.entry(copy.device).or_default() += chunk.bytes();
            assert!(state.devices[&copy.device].chunks.contains(&chunk.record.shape.chunk));
        }
    }
    for (id, device) in &state.devices {
        let doomed: u64 = device.deletes.values().map(|doomed| doomed.bytes).sum();
        assert_eq!(device.used_bytes, used.get(id).copied().unwrap_or(0) + doomed, "space is counted wrong on {id}");
        assert!(device.repairs.len() <= 2, "too many repairs on {id}");
        for chunk in device.repairs.values() {
            assert!(state.chunks[chunk].copy_on(*id).is_some_and(|copy| !copy.whole), "a repair of nothing on {id}");
        }
        let open = device.chunks.iter().filter(|chunk| state.chunks[*chunk].record.state == ChunkState::Granted).count();
        assert_eq!(device.open as usize, open);
    }
    for id in &state.upkeep.moving {
        assert!(state.chunks[id].danger.is_none(), "chunk {id} is short and only moves");
    }
    let open = state.chunks.values().filter(|chunk| chunk.record.state == ChunkState::Granted).count();
    assert_eq!(state.chunk_counts().open, open as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_must_hold_holds(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new(5);
        let mut seen = Seen { chunks: BTreeSet::new(), lengths: BTreeMap::new(), gone: BTreeSet::new() };
        for step in steps {
            run(&mut world, step, &mut seen);
            check(&world, &mut seen);
        }
        let bytes = world.state.encode().unwrap();
        prop_assert_eq!(State::decode(&bytes).unwrap(), world.state);
    }
}
