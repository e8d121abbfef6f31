//! Replays simulated runs: `cargo run -p sim -- --seed 7` tells the story of one.

use clap::Parser;

/// Runs a simulated cluster.
#[derive(Debug, Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, one after the other. With more than one, only failures are told.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Faults in each run.
    #[arg(long, default_value_t = 20)]
    steps: u64,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let mut failed = 0;
    for seed in args.seed..args.seed.saturating_add(args.count) {
        let outcome = sim::run(seed, args.steps);
        if args.count == 1 {
            for line in &outcome.story {
                println!("{line}");
            }
            println!("seed {seed}: {} units acknowledged in {:?}", outcome.acknowledged, outcome.took);
        }
        for failure in &outcome.failures {
            println!("seed {seed}: {failure}");
        }
        if !outcome.failures.is_empty() {
            failed += 1;
            println!("replay: cargo run -p sim -- --seed {seed} --steps {}", args.steps);
        }
    }
    println!("{} seeds, {failed} failed", args.count);
    if failed == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
