//! One run, from a seed to a verdict.

use crate::check::{check_copies, check_leaks};
use crate::clock::{Chance, SimClock};
use crate::disk;
use crate::faults::Scene;
use crate::network::Host;
use crate::node::Node;
use crate::world::{CLUSTER, World};
use crate::writer::{self, Task};
use api_types::master::Replication;
use api_types::{Clock, Rng};
use master_state::{Body, NewPool, NewVolume, Reply};
use nodeagent_device::Latency;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Broken invariants; empty when all is well.
    pub failures: Vec<String>,
    /// Everything that happened, in order, with its time in seconds.
    pub story: Vec<String>,
    /// Units acknowledged.
    pub acknowledged: usize,
    /// Simulated time that passed.
    pub took: Duration,
}

/// The longest a run may take, in simulated time.
const RUN_LIMIT: Duration = Duration::from_secs(1200);
/// How long the last writer may take once all is mended.
const END_LIMIT: Duration = Duration::from_secs(120);

/// Runs a cluster of four nodes, with `steps` faults.
#[must_use]
pub fn run(seed: u64, steps: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let failures = vec![format!("no runtime: {error}")];
            return Outcome { failures, story: Vec::new(), acknowledged: 0, took: Duration::ZERO };
        }
    };
    let clock = Rc::new(SimClock::default());
    let tasks = Rc::new(LocalSet::new());
    let world = World::new(Rc::clone(&clock), &tasks, Chance::new(seed));
    runtime.block_on(tasks.run_until(drive(&clock, &tasks, &world, steps, seed.is_multiple_of(3))));
    world.network.end();
    drop(tasks);
    let failures = world.checks.borrow_mut().take_failures();
    let acknowledged = world.checks.borrow().committed.acknowledged() + world.checks.borrow().blocks.acknowledged();
    Outcome { failures, story: world.take_story(), acknowledged, took: world.time.now() }
}

/// Lets time pass whenever nothing else can happen: tokio's own paused clock moves only then.
async fn drive(clock: &SimClock, tasks: &LocalSet, world: &Rc<World>, steps: u64, disk: bool) {
    let scenario = tasks.spawn_local(scenario(Rc::clone(world), steps, disk));
    while !scenario.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if world.time.now() > RUN_LIMIT || (!scenario.is_finished() && !clock.advance()) {
            world.checks.borrow_mut().fail(format!("the run does not end: it is {:?}", world.time.now()));
            return;
        }
    }
    if let Ok(Err(error)) | Err(error) = scenario.await.map_err(|error| error.to_string()) {
        world.tell(&format!("BROKEN {error}"));
        world.checks.borrow_mut().fail(error);
    }
}

async fn scenario(world: Rc<World>, steps: u64, disk: bool) -> Result<(), String> {
    let mut nodes = Vec::new();
    for number in 0..4 {
        let node = Node::create(&world, number).await?;
        let latency = Latency { min: Duration::from_micros(20), max: Duration::from_micros(200) };
        node.device.plan().set_latency(latency);
        world.network.add(Rc::clone(&node));
        nodes.push(node);
    }
    let min_copy = 2;
    let replication = Replication { max_copy: 3, min_copy };
    let pool = NewPool { replication, chunk_bytes: 1 << 20, ..NewPool::default() };
    world.apply(None, Body::Bootstrap { cluster: CLUSTER, pools: vec![pool] }).map_err(|error| error.to_string())?;
    for node in &nodes {
        node.start(&world);
    }
    world.time.sleep(Duration::from_secs(2)).await;
    let volume = NewVolume { name: "v".to_owned(), size_bytes: 1 << 30, ..NewVolume::default() };
    let reply = world.apply(None, Body::CreateVolume(volume)).map_err(|error| error.to_string())?;
    let Reply::Volume(volume) = reply else { return Err(format!("not a volume: {reply:?}")) };
    let task = Task { volume: volume.volume, host: Host(0), units: 40 + world.chance.below(200), close: false };
    let mut scene = Scene { world: Rc::clone(&world), nodes, sessions: Vec::new(), task, disk };
    scene.start_writer();
    scene.trouble(steps).await;
    scene.mend();
    // What was told to happen later still happens; the last word is the mending.
    world.time.sleep(Duration::from_secs(5)).await;
    scene.mend();
    let last = Task { units: 20, close: true, ..task };
    let last = if disk { disk::start(&world, last, true) } else { writer::start(&world, last) };
    let end = world.time.now() + END_LIMIT;
    while !last.ended.get() {
        if world.time.now() > end {
            return Err("the last writer does not end, though nothing fails any more".to_owned());
        }
        world.time.sleep(Duration::from_millis(50)).await;
    }
    for stream in [volume.streams.hot, volume.streams.cold, volume.streams.index] {
        check_copies(&world, &scene.nodes, stream).await?;
    }
    check_leaks(&world, &scene.nodes).await
}
