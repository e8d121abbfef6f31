//! Rules that no compiler checks. Each is a file; each says what is wrong, where, and what to do.

mod graph;
mod links;
mod names;
mod rust;
mod sizes;
mod text;

use crate::Outcome;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{fmt, fs};

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A file of the repository.
struct SourceFile {
    /// From the root, with `/`.
    path: String,
    /// `None` when it isn't text.
    text: Option<String>,
}

impl SourceFile {
    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Checks everything, prints what is wrong, and says whether nothing is. With `shrink` the ratchet is written anew, with
/// `accept` also where it grows.
pub(crate) fn run(root: &Path, shrink: bool, accept: bool) -> Outcome {
    let files = files(root)?;
    let rust = rust::parse(&files);
    let mut findings: BTreeSet<Finding> = rust.findings.iter().cloned().collect();
    findings.extend(graph::check(root)?);
    findings.extend(names::check(&files, &rust));
    findings.extend(text::check(&files));
    findings.extend(links::check(&files));
    let ratchet = sizes::Ratchet::read(root)?;
    let over = sizes::over(&rust);
    if shrink {
        sizes::Ratchet::from_sizes(&over, &ratchet, accept).write(root)?;
        findings.extend(sizes::check(&over, &sizes::Ratchet::read(root)?));
    } else {
        findings.extend(sizes::check(&over, &ratchet));
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(findings.is_empty())
}

/// Everything that is in the repository or would be with `git add`.
fn files(root: &Path) -> Result<Vec<SourceFile>> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("running git: tidy needs it to know what belongs to the repository")?;
    anyhow::ensure!(listed.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout)?;
    let mut files = Vec::new();
    for path in names.split('\0').filter(|path| !path.is_empty()) {
        // Gone, but not from the index as yet.
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        files.push(SourceFile { path: path.to_owned(), text });
    }
    Ok(files)
}

#[cfg(test)]
fn source(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: Some(text.to_owned()) }
}
