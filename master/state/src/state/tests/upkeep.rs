//! Maintenance, evacuation, removal, and whether an agent may stop.

use super::*;

fn maintenance(world: &mut World, node: u64, on: bool) {
    world.apply(Body::SetMaintenance { node: name(node), on }).unwrap();
}

fn evacuate(world: &mut World, device: u64, on: bool) {
    world.apply(Body::EvacuateDevice { device: DeviceId(device), on }).unwrap();
}

fn devices(chunk: &ChunkRecord) -> Vec<u64> {
    chunk.copies.iter().map(|copy| copy.device.0).collect()
}

#[test]
fn an_evacuated_device_gives_its_copies_away_and_then_goes_for_good() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let (id, from) = (chunk.shape.chunk, chunk.copies[0].device.0);
    let removed = world.apply(Body::RemoveDevice(DeviceId(from))).unwrap_err();
    assert!(removed.to_string().contains("evacuate it first"), "{removed}");
    evacuate(&mut world, from, true);
    let counts = world.state.chunk_counts();
    assert_eq!((counts.moving, counts.under_replicated), (1, 0), "redundancy isn't lower for it");
    assert!(world.state.repairs_wanted(world.at_ms));
    world.apply(Body::PlanRepairs).unwrap();
    let order = world.repairs().remove(0);
    assert_eq!(world.repairs().len(), 1);
    assert!(world.apply(Body::RemoveDevice(DeviceId(from))).is_err(), "it still holds the copy");
    world.end(&order, None);
    assert!(!devices(&world.chunk(id)).contains(&from));
    assert_eq!(world.chunk(id).copies.iter().filter(|copy| copy.whole).count(), 3);
    assert_eq!(world.state.chunk_counts().moving, 0);
    world.apply(Body::RemoveDevice(DeviceId(from))).unwrap();
    world.apply(Body::RemoveDevice(DeviceId(from))).unwrap();
    world.apply(Body::Register(report(from))).unwrap();
    assert_eq!(world.state.device(DeviceId(from)), None, "its agent can't bring it back");
    assert_eq!(world.state.news(&report(from)), Ok(None));
}

#[test]
fn an_evacuation_waits_for_the_last_writer_and_can_be_called_off() {
    let mut world = World::new(4);
    let volume = world.volume("v");
    let epoch = world.open(volume.volume, 1);
    let chunk = world.grant(volume.streams.hot, epoch, LifetimeClass::Short).unwrap().remove(0);
    let from = chunk.copies[0].device.0;
    evacuate(&mut world, from, true);
    let refused = world.apply(Body::RemoveDevice(DeviceId(from))).unwrap_err();
    assert!(refused.to_string().contains("1 of them open (volumes v)"), "{refused}");
    let next = world.grant(volume.streams.hot, epoch, LifetimeClass::Short).unwrap().remove(0);
    assert!(!devices(&next).contains(&from), "it gets no new chunks");
    let whole = chunk.copies.iter().map(|copy| copy.device).collect();
    world.apply(Body::Seal(SealChunk { chunk: chunk.shape.chunk, epoch, length: 1 << 20, whole })).unwrap();
    assert_eq!(world.state.chunk_counts().moving, 1);
    evacuate(&mut world, from, false);
    assert_eq!(world.state.chunk_counts().moving, 0);
    assert!(!world.state.repairs_wanted(world.at_ms));
}

#[test]
fn a_copy_moved_while_another_device_was_silent_goes_when_that_one_is_back() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let (from, other) = (chunk.copies[0].device.0, chunk.copies[1].device.0);
    evacuate(&mut world, from, true);
    world.apply(Body::PlanRepairs).unwrap();
    let order = world.repairs().remove(0);
    world.presence(other, Presence::Suspect);
    world.end(&order, None);
    assert!(devices(&world.chunk(chunk.shape.chunk)).contains(&from), "too few others are up");
    world.presence(other, Presence::Up);
    assert!(!devices(&world.chunk(chunk.shape.chunk)).contains(&from));
}

#[test]
fn nothing_is_rebuilt_for_a_node_in_maintenance() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let out = chunk.copies[0].device.0;
    maintenance(&mut world, out, true);
    world.presence(out, Presence::Lost);
    assert_eq!(world.state.chunk_counts().under_replicated, 0);
    assert!(!world.state.repairs_wanted(world.at_ms));
    world.apply(Body::Register(report(out))).unwrap();
    for _ in 0..3 {
        assert!(!devices(&world.sealed(0)).contains(&out), "it gets no new chunks, also after a restart");
    }
    world.presence(out, Presence::Lost);
    maintenance(&mut world, out, false);
    assert_eq!(world.state.chunk_counts().under_replicated, 1);
    assert!(world.state.repairs_wanted(world.at_ms));
    assert!(matches!(world.apply(Body::SetMaintenance { node: name(9), on: true }), Err(Error::NotFound { .. })));
}

#[test]
fn an_agent_may_stop_while_all_else_is_well() {
    let mut world = World::new(4);
    let chunk = world.sealed(0);
    let (node, other) = (chunk.copies[0].device.0, chunk.copies[1].device.0);
    assert_eq!(world.state.stop_check(&name(node)).unwrap().blockers, Vec::<String>::new());
    assert_eq!(world.state.stop_check(&name(1)).unwrap().attached.len(), 1);
    world.presence(other, Presence::Suspect);
    let blockers = world.state.stop_check(&name(node)).unwrap().blockers;
    assert!(blockers[0].contains("1 chunks would have too few copies"), "{blockers:?}");
    for n in (1..=4).filter(|n| *n != node && *n != other) {
        maintenance(&mut world, n, true);
    }
    let blockers = world.state.stop_check(&name(node)).unwrap().blockers;
    assert!(blockers[1].contains("pool `default` would find 0 failure domains"), "{blockers:?}");
    assert!(matches!(world.state.stop_check(&name(9)), Err(Error::NotFound { .. })));
}

#[test]
fn a_state_from_before_the_upkeep_is_read() {
    let mut world = World::new(3);
    world.sealed(0);
    let mut bytes = world.state.encode().unwrap();
    bytes[0] = 1;
    bytes.truncate(bytes.len() - NO_UPKEEP.len());
    assert_eq!(State::decode(&bytes).unwrap(), world.state);
}
