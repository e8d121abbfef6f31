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
    findings.extend(metric_names(rust));
    findings
}

fn crate_header(file: &SourceFile) -> Option<Finding> {
    let text = file.text.as_deref().unwrap_or("");
    let header: Vec<_> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    (header.is_empty() || header.concat().len() < 40)
        .then(|| file.finding(1, "a crate begins with `//!`: what it is, what it never does"))
}

/// Literals that look like a metric of ours and aren't in the table.
fn metric_names(rust: &Rust) -> Vec<Finding> {
    let in_table: BTreeSet<_> = rust.literals.iter().filter(|(path, _, _)| path == TABLE).map(|(_, _, text)| text).collect();
    let stray = rust.literals.iter().filter(|(path, _, text)| {
        !path.starts_with("api/telemetry/") && !path.starts_with("xtask/") && looks_like_metric(text) && !in_table.contains(text)
    });
    let finding = |(path, line, text): &(String, usize, String)| Finding {
        path: path.clone(),
        line: *line,
        what: format!("metric `{text}` is not in {TABLE}"),
    };
    stray.map(finding).collect()
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
