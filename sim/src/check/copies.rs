//! In the end every chunk is sealed and has all its copies, and they are the same, byte for byte, up to its length. A
//! chunk whose grant was never answered may stay behind, empty everywhere, until the next owner finds it.

use crate::node::Node;
use crate::world::World;
use api_types::chunk::{ChunkStore, Read, Request, Response};
use api_types::limits::READ_BYTES_MAX;
use api_types::master::{ChunkRecord, ChunkState};
use api_types::{Clock, DeviceId, QosClass, StreamId};
use bytes::Bytes;
use std::rc::Rc;
use std::time::Duration;

/// How long redundancy may take to come back once nothing fails any more.
const REPAIR_LIMIT: Duration = Duration::from_secs(120);

/// Waits for all repairs, then compares.
pub(crate) async fn check_copies(world: &Rc<World>, nodes: &[Rc<Node>], stream: StreamId) -> Result<(), String> {
    let end = world.time.now() + REPAIR_LIMIT;
    loop {
        let record = world.state.borrow().stream(stream).map_err(|error| error.to_string())?;
        let mut short = None;
        for chunk in record.chunks.iter().filter(|chunk| !chunk.copies.iter().all(|copy| copy.whole)) {
            if !is_stray(nodes, chunk).await {
                short = Some(chunk);
                break;
            }
        }
        let Some(short) = short else { break };
        if world.time.now() > end {
            return Err(format!("redundancy is not restored: {short:?}"));
        }
        world.time.sleep(Duration::from_secs(1)).await;
    }
    let record = world.state.borrow().stream(stream).map_err(|error| error.to_string())?;
    for chunk in &record.chunks {
        if !is_stray(nodes, chunk).await {
            compare(nodes, chunk).await?;
        }
    }
    Ok(())
}

/// Granted, and no device has a byte of it: its writer never heard of it.
async fn is_stray(nodes: &[Rc<Node>], chunk: &ChunkRecord) -> bool {
    if chunk.state != ChunkState::Granted {
        return false;
    }
    for copy in &chunk.copies {
        let node = nodes.iter().find(|node| node.device_id == copy.device);
        let Some((_, engine)) = node.and_then(|node| node.running()) else { return false };
        match engine.serve(Request::Stat(chunk.shape.chunk)).await {
            Err(api_types::chunk::Error::Unknown) => {}
            Ok(Response::Stat(info)) if info.length == 0 => {}
            _ => return false,
        }
    }
    true
}

async fn compare(nodes: &[Rc<Node>], chunk: &ChunkRecord) -> Result<(), String> {
    let ChunkState::Sealed { length } = chunk.state else { return Err(format!("not sealed in the end: {chunk:?}")) };
    let mut offset = 0;
    while offset < length {
        let step = READ_BYTES_MAX.min(length - offset);
        let mut first: Option<(DeviceId, Bytes)> = None;
        for copy in &chunk.copies {
            let read = Read { chunk: chunk.shape.chunk, offset, length: step, qos: QosClass::Scrub };
            let bytes = read_copy(nodes, copy.device, read).await?;
            match &first {
                None => first = Some((copy.device, bytes)),
                Some((_, same)) if *same == bytes => {}
                Some((other, _)) => {
                    return Err(format!("copies of {} differ at {offset}: {other} and {}", chunk.shape.chunk, copy.device));
                }
            }
        }
        offset += step;
    }
    Ok(())
}

async fn read_copy(nodes: &[Rc<Node>], device: DeviceId, read: Read) -> Result<Bytes, String> {
    let node = nodes.iter().find(|node| node.device_id == device).ok_or_else(|| format!("no node has {device}"))?;
    let (_, engine) = node.running().ok_or_else(|| format!("{} is down in the end", node.name))?;
    match engine.serve(Request::Read(read)).await {
        Ok(Response::Read(bytes)) => Ok(bytes),
        other => Err(format!("the whole copy of {} on {device} can't be read: {other:?}", read.chunk)),
    }
}
