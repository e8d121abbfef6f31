//! Each rule of [`api_types::Rule`], broken on purpose, is noticed by some checker within a stated number of seeds. One
//! that isn't means that a checker or a fault is missing. `SIM_RULE=SealLongest` tries only that one.

#![cfg(debug_assertions)]

use api_types::Rule;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that are tried at most for a rule. The last seed needed is printed with `--nocapture`; see `docs/protocol.md`.
const SEEDS_MAX: u64 = 400;

/// What the first seed that notices says; `None` when none does.
fn noticed(rule: Rule) -> Option<(u64, String)> {
    (1..=SEEDS_MAX).find_map(|seed| {
        let outcome = catch_unwind(AssertUnwindSafe(|| rule.broken_while(|| sim::run(seed, sim::STEPS))));
        match outcome {
            Ok(outcome) => outcome.failures.into_iter().next().map(|failure| (seed, failure)),
            // An assertion of the code itself is a checker as well.
            Err(_) => Some((seed, "an assertion failed".to_owned())),
        }
    })
}

#[test]
fn a_rule_that_is_broken_is_noticed() {
    let only = std::env::var("SIM_RULE").ok();
    let mut unnoticed = Vec::new();
    for rule in Rule::ALL.into_iter().filter(|rule| only.as_ref().is_none_or(|only| *only == format!("{rule:?}"))) {
        match noticed(rule) {
            Some((seed, failure)) => println!("{rule:?} broken: seed {seed} says: {failure}"),
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "broken, and no checker notices within {SEEDS_MAX} seeds: {unnoticed:?}");
}
