//! Many lives from many seeds.

use super::fake::{Dice, Faults, World};
use super::life::{End, Life, Model, open};
use crate::BlockDevice;
use crate::Config;
use api_types::Rng;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn config(dice: &Dice) -> Config {
    Config {
        in_flight_units_max: 1 + dice.below(6) as usize,
        queued_bytes_max: (1 + dice.below(8)) << 20,
        leaf_bytes_max: 4096 * (2 + dice.below(20)),
        checkpoint_log_bytes: (1 + dice.below(6)) << 20,
        checkpoint_every: Duration::from_millis(500 + dice.below(20_000)),
        no_space_patience: Duration::from_secs(4),
        reclaim_units_max: 1 + dice.below(4) as usize,
        ..Config::default()
    }
}

/// Frees and fills what a full pool held; then writes must pass again.
async fn recover_from_full(life: &mut Life) {
    let volume = open(&life.world, &life.config).await.expect("it opens");
    for (first, length) in life.areas.clone() {
        volume.discard(first * 4096, length * 4096).await.expect("a discard needs no space");
        life.model.forget(first, length);
    }
    life.check_all(&volume).await;
    life.may_fail = false;
    life.overwrite(&volume, 64, 80).await;
    life.check_all(&volume).await;
    volume.close().await.expect("it closes");
}

/// A run of several lives; `capacity` of the pool in chunks of 1 MiB.
fn run(seed: u64, faults: Faults, capacity: usize) {
    // Said when the run fails, and only then.
    let _named = Named(seed);
    let dice = Dice::new(seed);
    let size_bytes = 3u64 << 30;
    let world = World::new(seed, size_bytes, capacity);
    world.faults.set(faults);
    let areas = vec![(0, 700), (262_000, 300), (500_000 + dice.below(100_000), 200)];
    let may_fail = faults.append_fails > 0 || capacity < 16;
    let mut life = Life { world, config: config(&dice), dice, areas, model: Model::default(), may_fail };
    let runtime = runtime();
    for _ in 0..2 + life.dice.below(4) {
        let end = [End::Crash, End::Crash, End::Close, End::Takeover][life.dice.below(4) as usize];
        let steps = 1 + life.dice.below(30);
        // The set is dropped with all its tasks: that is the crash.
        runtime.block_on(LocalSet::new().run_until(life.live(steps, end)));
    }
    life.world.faults.set(Faults::default());
    if capacity < 16 {
        runtime.block_on(LocalSet::new().run_until(recover_from_full(&mut life)));
    }
    runtime.block_on(LocalSet::new().run_until(async {
        let volume = open(&life.world, &life.config).await.expect("it opens");
        life.check_all(&volume).await;
        volume.close().await.expect("it closes");
        let again = open(&life.world, &life.config).await.expect("it opens");
        assert_eq!(again.stats().replayed_bytes, 0, "a clean close leaves nothing to replay");
        life.check_all(&again).await;
    }));
}

/// Names the seed of a run that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with BASALT_VOLUME_SEED={} BASALT_VOLUME_RUNS=1", self.0);
        }
    }
}

fn runs(default: u64) -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = setting("BASALT_VOLUME_SEED").unwrap_or(1);
    first..first + setting("BASALT_VOLUME_RUNS").unwrap_or(default)
}

#[test]
fn any_history_with_crashes_and_takeovers_reads_back_as_the_model() {
    for seed in runs(150) {
        run(seed, Faults { append_fails: 0, chunk_left: 20, answer_lost: 5 }, 64);
    }
}

#[test]
fn appends_that_fail_and_are_found_again_never_break_the_order() {
    for seed in runs(100) {
        run(seed, Faults { append_fails: 15, chunk_left: 10, answer_lost: 3 }, 64);
    }
}

#[test]
fn a_pool_that_runs_full_refuses_writes_and_loses_nothing() {
    for seed in runs(80) {
        run(seed, Faults { append_fails: 0, chunk_left: 50, answer_lost: 10 }, 10 + (seed % 6) as usize);
    }
}

#[test]
fn a_volume_overwritten_many_times_its_size_keeps_a_steady_space() {
    const BLOCKS: u64 = 8192;
    let world = World::new(7, BLOCKS * 4096, 2 * BLOCKS as usize / 256);
    let config = Config { checkpoint_log_bytes: 8 << 20, ..Config::default() };
    runtime().block_on(LocalSet::new().run_until(async {
        let volume = open(&world, &config).await.expect("it opens");
        let dice = Dice::new(3);
        let write = |block: u64, count: u64| volume.write(block * 4096, vec![1; (count * 4096) as usize].into());
        for block in (0..BLOCKS).step_by(32) {
            write(block, 32).await.expect("there is space");
        }
        let mut most = 0;
        for _ in 0..5 * BLOCKS / 32 {
            let batch = (0..32).map(|_| write(dice.below(BLOCKS), 1));
            for answer in futures::future::join_all(batch).await {
                answer.expect("overwriting goes on for ever");
            }
            most = most.max(world.chunk_count());
        }
        let stats = volume.stats();
        let shown = format!("{most} chunks at most, write amplification {:.2}, {stats:?}", stats.write_amplification());
        println!("{shown}");
        assert!(stats.garbage_share() < 0.45, "{shown}");
        assert!(stats.write_amplification() < 4.0, "{shown}");
        assert!(most <= 2 * BLOCKS as usize / 256, "{shown}");
        volume.close().await.expect("it closes");
    }));
}

#[test]
fn one_seed_twice_is_one_history() {
    let history = |seed| {
        let world = World::new(seed, 1 << 30, 64);
        world.faults.set(Faults { append_fails: 20, chunk_left: 20, answer_lost: 5 });
        let dice = Dice::new(seed);
        let mut life =
            Life { world, config: config(&dice), dice, areas: vec![(0, 700)], model: Model::default(), may_fail: true };
        let runtime = runtime();
        for end in [End::Crash, End::Takeover, End::Close] {
            runtime.block_on(LocalSet::new().run_until(life.live(25, end)));
        }
        (life.dice.next_u64(), life.world.dice.next_u64(), life.world.digest())
    };
    for seed in 1..10 {
        assert_eq!(history(seed), history(seed), "seed {seed}");
    }
}

/// Not a test of anything: shows what the volume itself costs, without network and devices.
#[test]
#[ignore = "prints figures for people"]
fn what_a_request_costs() {
    use api_types::Clock;
    let world = World::new(7, 64 << 20, 100_000);
    world.instant.set(true);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let config = Config { garbage_share_max: 0.99, ..Config::default() };
        let volume = open(&world, &config).await.expect("it opens");
        let (dice, clock) = (Dice::new(3), super::fake::TestClock::new());
        let data = bytes::Bytes::from(vec![1; 4096]);
        for depth in [1, 32] {
            let start = clock.now();
            for _ in 0..50_000 / depth {
                let batch = (0..depth).map(|_| volume.write(dice.below(16_384) * 4096, data.clone()));
                futures::future::join_all(batch).await;
            }
            println!("write, depth {depth}: {:.2} us each", (clock.now() - start).as_secs_f64() * 20.0);
            let start = clock.now();
            for _ in 0..50_000 / depth {
                let batch = (0..depth).map(|_| volume.read(dice.below(16_384) * 4096, 4096));
                futures::future::join_all(batch).await;
            }
            println!("read, depth {depth}: {:.2} us each", (clock.now() - start).as_secs_f64() * 20.0);
        }
    }));
}
