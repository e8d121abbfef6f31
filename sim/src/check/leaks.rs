//! In the end no device holds a chunk that the masters don't know there, and the devices' accounts add up: what isn't
//! free is in a chunk, or kept ready for the next one.

use crate::node::Node;
use crate::world::World;
use api_types::limits::EXTENT_BYTES;
use api_types::master::ChunkState;
use api_types::{ChunkId, Clock};
use std::rc::Rc;
use std::time::Duration;

/// How long deletions may take once nothing fails any more.
const DELETE_LIMIT: Duration = Duration::from_secs(120);
/// More chunks than any run leaves on a device.
const CHUNKS_MAX: usize = 100_000;

/// Waits for all orders to be carried out, then looks at every device.
pub(crate) async fn check_leaks(world: &Rc<World>, nodes: &[Rc<Node>]) -> Result<(), String> {
    let end = world.time.now() + DELETE_LIMIT;
    while let Some(node) = nodes.iter().find(|node| !world.state.borrow().orders_for(&node.name).is_empty()) {
        if world.time.now() > end {
            let orders = world.state.borrow().orders_for(&node.name);
            return Err(format!("{} does not do what it was ordered: {orders:?}", node.name));
        }
        world.time.sleep(Duration::from_secs(1)).await;
    }
    nodes.iter().try_for_each(|node| check_device(world, node))
}

fn check_device(world: &World, node: &Node) -> Result<(), String> {
    let (_, engine) = node.running().ok_or_else(|| format!("{} is down in the end", node.name))?;
    let infos = engine.infos(ChunkId(0), CHUNKS_MAX);
    for info in &infos {
        let known = world.state.borrow().locate([info.shape.chunk]);
        let recorded = known.iter().find_map(|record| match record.state {
            ChunkState::Sealed { length } => Some(length),
            ChunkState::Granted => None,
        });
        let here = known.iter().any(|record| record.copies.iter().any(|copy| copy.device == node.device_id));
        if !here {
            return Err(format!("{} holds a chunk that the masters don't know there: {info:?}", node.device_id));
        }
        world.checks.borrow().seals.check(node.device_id, info, recorded)?;
    }
    let stats = engine.stats().store;
    let held: u64 = infos.iter().map(|info| u64::from(info.length).next_multiple_of(u64::from(EXTENT_BYTES))).sum();
    if stats.free_bytes + held > stats.capacity_bytes {
        return Err(format!(
            "{}: {} free and {held} in chunks are more than {}",
            node.name, stats.free_bytes, stats.capacity_bytes
        ));
    }
    Ok(())
}
