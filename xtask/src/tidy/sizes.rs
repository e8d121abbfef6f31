//! Files and functions stay short. What is over the line stands in the ratchet, and may only shrink.

use super::Finding;
use super::rust::Rust;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// Lines of a file, tests not counted, from which on it must stand in the ratchet.
const FILE_LINES: usize = 500;
/// Lines of a file that no ratchet allows.
const FILE_LINES_MAX: usize = 800;
/// Lines of a function from which on it must stand in the ratchet.
const FUNCTION_LINES: usize = 70;

const PATH: &str = "xtask/ratchet.toml";

/// Something over the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    /// Path of the file, or path, `#` and name of the function.
    key: String,
    path: String,
    line: usize,
    lines: usize,
    is_file: bool,
}

pub(crate) fn over(rust: &Rust) -> Vec<Over> {
    let files = rust.files.iter().filter(|(_, lines)| *lines > FILE_LINES);
    let files = files.map(|(path, lines)| Over { key: path.clone(), path: path.clone(), line: 1, lines: *lines, is_file: true });
    let functions = rust.functions.iter().filter(|(_, _, _, lines)| *lines > FUNCTION_LINES);
    let functions = functions.map(|(path, line, name, lines)| Over {
        key: format!("{path}#{name}"),
        path: path.clone(),
        line: *line,
        lines: *lines,
        is_file: false,
    });
    files.chain(functions).collect()
}

pub(crate) fn check(over: &[Over], ratchet: &Ratchet) -> Vec<Finding> {
    let mut findings = Vec::new();
    for over in over {
        let limit = if over.is_file { FILE_LINES } else { FUNCTION_LINES };
        let what = if over.is_file { "file" } else { "function" };
        let finding = |text: String| Finding { path: over.path.clone(), line: over.line, what: text };
        let allowed = ratchet.0.get(&over.key).copied().unwrap_or(limit);
        if over.is_file && over.lines > FILE_LINES_MAX {
            findings.push(finding(format!("file of {} lines: {FILE_LINES_MAX} is the most, split it", over.lines)));
        } else if over.lines > allowed {
            findings.push(finding(format!("{what} of {} lines: {allowed} is the most here, split it", over.lines)));
        }
    }
    for (key, allowed) in &ratchet.0 {
        let lines = over.iter().filter(|over| over.key == *key).map(|over| over.lines).max().unwrap_or(0);
        if lines < *allowed {
            let what = format!("`{key}` has shrunk to {lines} lines or below the line: run `cargo xtask tidy --shrink`");
            findings.push(Finding { path: PATH.to_owned(), line: 1, what });
        }
    }
    findings
}

/// What is over the line already, and by how much.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ratchet(BTreeMap<String, usize>);

impl Ratchet {
    pub(crate) fn read(root: &Path) -> Result<Ratchet> {
        match fs::read_to_string(root.join(PATH)) {
            Ok(text) => Ratchet::parse(&text).with_context(|| PATH.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ratchet::default()),
            Err(error) => Err(error).context(PATH),
        }
    }

    /// Lines of `"key" = number`, a corner of TOML that needs no library.
    fn parse(text: &str) -> Result<Ratchet> {
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let entries = lines.map(|line| {
            let (key, lines) = line.split_once(" = ").with_context(|| format!("`{line}` is not `\"name\" = lines`"))?;
            Ok((key.trim_matches('"').to_owned(), lines.trim().parse()?))
        });
        entries.collect::<Result<_>>().map(Ratchet)
    }

    /// The present sizes of what stands in `old`, and with `accept` of everything.
    pub(crate) fn from_sizes(over: &[Over], old: &Ratchet, accept: bool) -> Ratchet {
        let mut sizes = BTreeMap::<String, usize>::new();
        for over in over {
            let size = sizes.entry(over.key.clone()).or_default();
            *size = (*size).max(over.lines);
        }
        if !accept {
            sizes.retain(|key, _| old.0.contains_key(key));
            for (key, size) in &mut sizes {
                *size = (*size).min(old.0.get(key).copied().unwrap_or(0));
            }
        }
        Ratchet(sizes)
    }

    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        let mut text = String::from(
            "# Files and functions over the line, in lines. They may shrink and not grow; `cargo xtask tidy --shrink` writes this.\n",
        );
        for (key, lines) in &self.0 {
            writeln!(text, "\"{key}\" = {lines}")?;
        }
        fs::write(root.join(PATH), text).context(PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> Over {
        Over { key: format!("a.rs#{name}"), path: "a.rs".to_owned(), line: 3, lines, is_file: false }
    }

    #[test]
    fn what_is_over_the_line_may_shrink_and_not_grow() {
        let ratchet = Ratchet::parse("# comment\n\"a.rs#long\" = 90\n").unwrap();
        assert!(check(&[function("long", 90)], &ratchet).is_empty());
        assert_eq!(check(&[function("long", 91)], &ratchet)[0].what, "function of 91 lines: 90 is the most here, split it");
        assert!(check(&[function("long", 80)], &ratchet)[0].what.contains("tidy --shrink"));
        assert!(check(&[], &ratchet)[0].what.contains("tidy --shrink"));
        assert_eq!(check(&[function("new", 71)], &Ratchet::default()).len(), 1);
        let shrunk = Ratchet::from_sizes(&[function("long", 80), function("new", 75)], &ratchet, false);
        assert_eq!(shrunk, Ratchet::parse("\"a.rs#long\" = 80").unwrap());
        assert_eq!(Ratchet::from_sizes(&[function("long", 99)], &ratchet, false).0["a.rs#long"], 90);
        assert_eq!(Ratchet::from_sizes(&[function("new", 75)], &ratchet, true).0["a.rs#new"], 75);
    }

    #[test]
    fn no_ratchet_allows_a_very_long_file() {
        let file = Over { key: "a.rs".to_owned(), path: "a.rs".to_owned(), line: 1, lines: 801, is_file: true };
        assert_eq!(check(&[file], &Ratchet::parse("\"a.rs\" = 801").unwrap()).len(), 1);
    }
}
