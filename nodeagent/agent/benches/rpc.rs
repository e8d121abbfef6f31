//! What one 4 KiB append costs on its way: our frames against tonic, unary and one long stream. Client and server are
//! two threads of this process, the store answers at once, so that what is measured is the way and nothing else.
//!
//! `cargo xtask bench rpc -- [seconds per measurement]`

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark fails by panicking and reads the clock")]

mod rpc {
    pub(crate) mod frames;
    pub(crate) mod grpc;
}

use std::fmt::Write;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of one append.
const UNIT_BYTES: usize = 4096;
/// Each case runs so often, taking turns, and the median is shown.
const ROUNDS: usize = 3;

/// One way to carry an append: `append` waits for its answer.
trait Way {
    async fn append(&self);
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    ops_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us_per_op: f64,
}

fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Keeps `depth` appends under way for a while.
async fn measure<W: Way>(way: &W, depth: usize, time: Duration) -> Figures {
    for _ in 0..200 {
        way.append().await;
    }
    let (began, cpu) = (Instant::now(), cpu_time());
    let workers = (0..depth).map(|_| async {
        let mut times = Vec::with_capacity(1 << 16);
        while began.elapsed() < time {
            let start = Instant::now();
            way.append().await;
            times.push(start.elapsed());
        }
        times
    });
    let mut times: Vec<Duration> = futures::future::join_all(workers).await.concat();
    let (elapsed, cpu) = (began.elapsed(), cpu_time() - cpu);
    times.sort_unstable();
    let count = times.len() as f64;
    let at = |share: f64| times[((count * share) as usize).min(times.len() - 1)].as_secs_f64() * 1e6;
    Figures {
        ops_per_second: count / elapsed.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / count,
    }
}

/// Runs a future on a core of its own, as the agent does.
fn on_a_core<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

fn run_case(name: &str, depth: usize, time: Duration) -> Figures {
    on_a_core(async {
        match name {
            "frames" => measure(&rpc::frames::start(), depth, time).await,
            "tonic unary" => measure(&rpc::grpc::unary().await, depth, time).await,
            _ => measure(&*Rc::new(rpc::grpc::stream().await), depth, time).await,
        }
    })
}

fn main() {
    let seconds = std::env::args().filter_map(|argument| argument.parse::<f64>().ok()).next().unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let cases: Vec<(&str, usize)> =
        ["frames", "tonic unary", "tonic stream"].into_iter().flat_map(|name| [(name, 1), (name, 32)]).collect();
    let mut rounds = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (place, (name, depth)) in cases.iter().enumerate() {
            rounds[place].push(run_case(name, *depth, time));
        }
    }
    let mut table =
        String::from("| way, 4 KiB appends | depth | ops/s | p50 us | p99 us | CPU us per op |\n|---|---|---|---|---|---|\n");
    for ((name, depth), mut figures) in cases.into_iter().zip(rounds) {
        figures.sort_by(|one, other| one.ops_per_second.total_cmp(&other.ops_per_second));
        let Figures { ops_per_second, p50_us, p99_us, cpu_us_per_op } = figures[figures.len() / 2];
        writeln!(table, "| {name} | {depth} | {ops_per_second:.0} | {p50_us:.0} | {p99_us:.0} | {cpu_us_per_op:.1} |").unwrap();
    }
    println!("{table}");
}
