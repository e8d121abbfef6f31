//! Replays simulated runs: `cargo run -p sim -- --seed 7 --story` tells the story of one, `--seeds 1..1000` looks for
//! seeds that break an invariant.

use clap::Parser;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;
use std::process::ExitCode;

/// Lines of the story that are shown of a seed that failed; `--story` shows all.
const TAIL_LINES: usize = 60;

/// Runs a simulated cluster.
#[derive(Debug, Parser)]
struct Args {
    /// The seed to run.
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// The seeds to run, one after the other: `1..1000`, the last one not included.
    #[arg(long, value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// Faults in each run.
    #[arg(long, default_value_t = sim::STEPS)]
    steps: u64,
    /// Print everything that happened, not only what is needed to see why a seed failed.
    #[arg(long)]
    story: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("`{text}` is not a range of seeds: write it as 1..1000");
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let range = first.parse().map_err(|_| wrong())?..end.parse().map_err(|_| wrong())?;
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

/// What is said of one run.
fn tell(outcome: &sim::Outcome, seed: u64, steps: u64, whole: bool) -> String {
    let mut text = String::new();
    let failed = !outcome.failures.is_empty();
    let shown = if whole { outcome.story.len() } else { TAIL_LINES };
    if whole || failed {
        let skipped = outcome.story.len().saturating_sub(shown);
        if skipped > 0 {
            let _ = writeln!(text, "({skipped} lines before these: --story shows them)");
        }
        for line in &outcome.story[skipped..] {
            let _ = writeln!(text, "{line}");
        }
    }
    for failure in &outcome.failures {
        let _ = writeln!(text, "seed {seed}: {failure}");
    }
    if failed {
        let _ = writeln!(text, "replay: {}", sim::replay(seed, steps));
    }
    text
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seeds = args.seeds.unwrap_or_else(|| args.seed..args.seed.saturating_add(1));
    let (mut run, mut failed, mut acknowledged) = (0u64, 0u64, 0usize);
    let mut out = std::io::stdout().lock();
    for seed in seeds {
        let outcome = sim::run(seed, args.steps);
        run += 1;
        failed += u64::from(!outcome.failures.is_empty());
        acknowledged += outcome.acknowledged;
        // Whoever reads the story may have seen enough.
        if out.write_all(tell(&outcome, seed, args.steps, args.story).as_bytes()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let sum = writeln!(out, "{run} seeds, {acknowledged} units acknowledged, {failed} seeds failed");
    if failed == 0 && sum.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::{Args, Parser, TAIL_LINES, parse_seeds, tell};
    use std::time::Duration;

    fn outcome(lines: usize, failures: Vec<String>) -> sim::Outcome {
        let story = (0..lines).map(|line| format!("line {line}")).collect();
        sim::Outcome { failures, story, acknowledged: 1, took: Duration::ZERO }
    }

    #[test]
    fn a_range_of_seeds_is_read_and_others_are_refused() {
        assert_eq!(parse_seeds("3..9"), Ok(3..9));
        for wrong in ["", "3", "..", "3..", "9..3", "3..3", "a..b", "-1..2"] {
            assert!(parse_seeds(wrong).unwrap_err().contains("1..1000"), "{wrong}");
        }
        assert!(Args::try_parse_from(["sim", "--seed", "1", "--seeds", "1..2"]).is_err());
    }

    #[test]
    fn a_run_that_is_well_says_nothing_unless_asked() {
        assert_eq!(tell(&outcome(3, Vec::new()), 7, 12, false), "");
        assert_eq!(tell(&outcome(2, Vec::new()), 7, 12, true), "line 0\nline 1\n");
    }

    #[test]
    fn a_failed_run_names_seed_failure_story_and_the_way_to_replay_it() {
        let text = tell(&outcome(TAIL_LINES + 5, vec!["lost".to_owned()]), 7, 12, false);
        assert!(text.contains("5 lines before") && !text.contains("line 4\n") && text.contains("line 5\n"));
        assert!(text.ends_with("seed 7: lost\nreplay: cargo run -p sim -- --seed 7 --steps 12 --story\n"), "{text}");
    }
}
