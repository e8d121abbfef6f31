//! Names of files and metrics, and the first line of each crate.

use super::rust::Rust;
use super::{Finding, SourceFile};
use std::collections::BTreeSet;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "misc", "stuff"];

/// The one registry of metrics.
const TABLE: &str = "api/telemetry/src/table.rs";

pub(crate) fn check(files: &[SourceFile], rust: &Rust) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let stem = |part: &str| part.split('.').next().unwrap_or(part).to_owned();
        if let Some(part) = file.path.split('/').find(|part| EMPTY_NAMES.contains(&stem(part).as_str())) {
            findings.push(file.finding(1, format!("`{part}` says nothing: name it after what is inside")));
        }
        if ["src/lib.rs", "src/main.rs"].iter().any(|root| file.path.ends_with(root)) {
            findings.extend(crate_header(file));
        }
    }
    findings.extend(metric_names(files, rust));
    findings.extend(unused_metrics(files));
    findings
}

fn crate_header(file: &SourceFile) -> Option<Finding> {
    let text = file.text.as_deref().unwrap_or("");
    let header: Vec<_> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    (header.is_empty() || header.concat().len() < 40)
        .then(|| file.finding(1, "a crate begins with `//!`: what it is, what it never does"))
}

/// Literals that look like a metric of ours and aren't in the table.
fn metric_names(files: &[SourceFile], rust: &Rust) -> Vec<Finding> {
    // From its text: the entries are arguments of a macro, which no parser looks into.
    let table = files.iter().find(|file| file.path == TABLE).and_then(|file| file.text.as_deref()).unwrap_or_default();
    let in_table: BTreeSet<&str> = table.split('"').collect();
    let stray = rust.literals.iter().filter(|(path, _, text)| {
        !path.starts_with("api/telemetry/")
            && !path.starts_with("xtask/")
            && looks_like_metric(text)
            && !in_table.contains(text.as_str())
    });
    let finding = |(path, line, text): &(String, usize, String)| Finding {
        path: path.clone(),
        line: *line,
        what: format!("metric `{text}` is not in {TABLE}"),
    };
    stray.map(finding).collect()
}

/// Metrics of the table that nothing sets: a panel of theirs would stay empty.
fn unused_metrics(files: &[SourceFile]) -> Vec<Finding> {
    let text = |file: &SourceFile| file.text.clone().unwrap_or_default();
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').map(str::to_owned).collect()
    };
    let Some(table) = files.iter().find(|file| file.path == TABLE) else { return Vec::new() };
    let rooms = files.iter().filter(|file| file.path.ends_with(".rs") && file.path != TABLE);
    let used: BTreeSet<String> = rooms.flat_map(|file| words(&text(file))).collect();
    let mut findings = Vec::new();
    for (index, line) in text(table).lines().enumerate() {
        let Some((name, rest)) = line.trim().split_once(": ") else { continue };
        let is_metric = rest.starts_with("Gauge,") || rest.starts_with("Counter,");
        if is_metric && !used.contains(name) {
            findings.push(table.finding(index + 1, format!("nothing sets the metric `{name}`")));
        }
    }
    findings
}

fn looks_like_metric(text: &str) -> bool {
    text.starts_with("basalt_")
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        && ["_total", "_bytes", "_seconds"].iter().any(|end| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::super::{rust, source};
    use super::*;

    #[test]
    fn names_that_say_nothing_are_found_at_any_depth() {
        let files = [source("a/src/utils/mod.rs", ""), source("a/src/common.rs", ""), source("a/src/commonly.rs", "")];
        let paths: Vec<_> = check(&files, &Rust::default()).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["a/src/utils/mod.rs", "a/src/common.rs"]);
    }

    #[test]
    fn a_crate_says_what_it_is() {
        let said = "//! Streams of chunks: ordered, replicated, sealed once.\n";
        assert!(check(&[source("a/src/lib.rs", said)], &Rust::default()).is_empty());
        assert_eq!(check(&[source("a/src/lib.rs", "//! placeholder\n")], &Rust::default()).len(), 1);
    }

    #[test]
    fn a_metric_that_nothing_sets_is_found() {
        let table = "    USED: Gauge, Gauge, One, \"basalt_used\", [], \"\";\n    IDLE_TOTAL: Counter, Counter, One, \"basalt_idle_total\", [], \"\";\n";
        let files = [source(TABLE, table), source("cli/src/a.rs", "fn a() { table::USED.with(&[]); }")];
        let findings = unused_metrics(&files);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("IDLE_TOTAL"));
        assert_eq!(findings[0].line, 2);
    }

    #[test]
    fn a_metric_outside_the_table_is_found() {
        let files = [
            source(TABLE, "const A: &str = \"basalt_known_total\";"),
            source("cli/src/a.rs", "fn a() { b(\"basalt_known_total\"); b(\"basalt_unknown_total\"); b(\"basalt_dev\"); }"),
        ];
        let findings = check(&files, &rust::parse(&files));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("basalt_unknown_total"));
    }
}
