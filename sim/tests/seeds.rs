//! Many seeds, and one of them twice. `SIM_SEEDS=5000` runs more of them, `SIM_FIRST=1000` begins elsewhere.

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Lines of the story that are shown of a seed that failed.
const TAIL_LINES: usize = 20;

#[test]
fn no_seed_breaks_an_invariant() {
    let (first, count) = (number("SIM_FIRST", 1), number("SIM_SEEDS", 500));
    let mut broken = Vec::new();
    for seed in first..first + count {
        let outcome = sim::run(seed, sim::STEPS);
        if let Some(failure) = outcome.failures.first() {
            let tail = outcome.story[outcome.story.len().saturating_sub(TAIL_LINES)..].join("\n    ");
            broken.push(format!("seed {seed}: {failure}\n  {}\n    {tail}", sim::replay(seed, sim::STEPS)));
        }
    }
    assert!(broken.is_empty(), "{} of {count} seeds failed:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn one_seed_twice_is_one_story() {
    for seed in [1, 77] {
        let first = sim::run(seed, sim::STEPS);
        let second = sim::run(seed, sim::STEPS);
        assert!(first.acknowledged > 0);
        assert_eq!(first, second, "seed {seed} told two stories");
    }
}
