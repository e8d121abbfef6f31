//! Lives and deaths: random work on a device that loses, tears and reorders what wasn't made durable.
//!
//! Seeds: 300 in a normal run, `BASALT_CRASH_SEEDS=5000` for more, `BASALT_CRASH_SEED=17` for one alone.

mod model;
mod workers;

use crate::world::{PausedClock, make, options};
use api_types::{Clock, Rng};
use model::Model;
use nodeagent_device::{Device, Faulty, Latency, Memory, OpKind};
use nodeagent_engine::Engine;
use nodeagent_reactor::RealRng;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const LIVES: u64 = 3;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn nothing_acknowledged_is_ever_lost_with_even_seeds() {
    run_seeds(0);
}

#[test]
fn nothing_acknowledged_is_ever_lost_with_odd_seeds() {
    run_seeds(1);
}

fn run_seeds(first: u64) {
    if let Some(seed) = env("BASALT_CRASH_SEED") {
        return one(seed);
    }
    for seed in (first..env("BASALT_CRASH_SEEDS").unwrap_or(300)).step_by(2) {
        let result = std::panic::catch_unwind(|| one(seed));
        assert!(result.is_ok(), "seed {seed} failed: run it alone with BASALT_CRASH_SEED={seed}");
    }
}

#[test]
fn one_seed_twice_is_one_run() {
    for seed in [3, 1003] {
        assert_eq!(trace(seed), trace(seed));
    }
}

fn one(seed: u64) {
    let _ = trace(seed);
}

/// Runs one seed; returns what was left after each life.
fn trace(seed: u64) -> Vec<String> {
    crate::world::run(async move {
        let rng: Rc<dyn Rng> = Rc::new(RealRng::seeded(seed));
        let clock = PausedClock::start();
        let block = if rng.below(2) == 0 { 512 } else { 4096 };
        let memory = Memory::new((48 + rng.below(60)) << 20, block);
        let faulty = Faulty::new(memory, Rc::clone(&clock), Rc::clone(&rng));
        let device: Rc<dyn Device> = Rc::new(faulty.clone());
        make(&device).await;
        let model = Rc::new(RefCell::new(Model::new()));
        let mut left = Vec::new();
        for life in 0..LIVES {
            faulty.plan().clear();
            let engine = reopen(&device, &clock, seed).await;
            check(&model, &engine).await;
            left.push(format!("life {life}: {:?} {:?}", engine.stats(), engine.mount_report()));
            misbehave(&faulty, &rng);
            let slot = Rc::new(RefCell::new(Some(engine)));
            let workers = workers::start(&slot, &model, &rng, block);
            clock.sleep(Duration::from_micros(rng.below(100_000))).await;
            if rng.below(8) == 0 {
                // Stops in order, while workers are still at it.
                let engine = slot.borrow().clone();
                let closing = engine.as_ref().map(Engine::close);
                if let Some(closing) = closing {
                    let _ = closing.await;
                }
            }
            faulty.crash();
            slot.take();
            for worker in workers {
                worker.await.unwrap();
            }
        }
        faulty.plan().clear();
        let engine = reopen(&device, &clock, seed).await;
        check(&model, &engine).await;
        left.push(format!("{:?}", engine.infos(api_types::ChunkId(0), 1000)));
        left
    })
}

async fn reopen(device: &Rc<dyn Device>, clock: &Rc<dyn Clock>, seed: u64) -> Engine {
    match Engine::open(Rc::clone(device), Rc::clone(clock), options()).await {
        Ok(engine) => engine,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// No worker lives while this runs.
async fn check(model: &Rc<RefCell<Model>>, engine: &Engine) {
    let mut taken = model.take();
    taken.check(engine).await;
    model.replace(taken);
}

/// What goes wrong in this life.
fn misbehave(faulty: &Faulty<Memory>, rng: &Rc<dyn Rng>) {
    let max = Duration::from_micros(1 + rng.below(3000));
    faulty.plan().set_latency(Latency { min: max / 20, max });
    if rng.below(4) == 0 {
        faulty.plan().set_errors(OpKind::Write, 300 + u32::try_from(rng.below(3000)).unwrap());
    }
}
