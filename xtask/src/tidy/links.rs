//! Links between documents lead somewhere.

use super::{Finding, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let texts: BTreeMap<&str, Option<&str>> = files.iter().map(|file| (file.path.as_str(), file.text.as_deref())).collect();
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|file| check_document(file, &texts)).collect()
}

fn check_document(file: &SourceFile, files: &BTreeMap<&str, Option<&str>>) -> Vec<Finding> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    for (line, target) in links(file.text.as_deref().unwrap_or("")) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
        let resolved = if path.is_empty() { Some(file.path.clone()) } else { resolve(folder, path) };
        let Some(resolved) = resolved else {
            findings.push(file.finding(line, format!("link to `{target}` leaves the repository")));
            continue;
        };
        let is_folder = files.keys().any(|known| known.starts_with(&format!("{resolved}/")));
        match (files.get(resolved.as_str()), anchor) {
            (None, _) if !is_folder => findings.push(file.finding(line, format!("link to `{target}`: there is no such file"))),
            (Some(Some(text)), Some(anchor)) if !anchors(text).contains(anchor) => {
                findings.push(file.finding(line, format!("link to `{target}`: there is no such heading")));
            }
            _ => {}
        }
    }
    findings
}

/// Targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (place, line) in text.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let is_code = line[..at].matches('`').count() % 2 == 1;
            if let Some((target, _)) = line[at + 2..].split_once(')')
                && !is_code
            {
                found.push((place + 1, target.split_whitespace().next().unwrap_or("")));
            }
        }
    }
    found
}

/// The path of a link, from the root.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// What headings are called in links.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let keep = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    headings.map(|heading| heading.to_lowercase().chars().filter(keep).collect::<String>().trim().replace(' ', "-")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn links_to_files_folders_and_headings_are_followed() {
        let text = "[a](../README.md) [b](protocol.md#the-frames-v1) [c](../docs) [d](https://x.example/y) `[e](nowhere)`\n";
        let files =
            [source("README.md", "# Hello\n"), source("docs/protocol.md", "## The frames, v1\n"), source("docs/a.md", text)];
        assert!(check(&files).is_empty());
    }

    #[test]
    fn links_to_nowhere_are_found() {
        let text = "[a](gone.md)\n[b](#nothing)\n[c](../../x)\n```\n[d](code.md)\n```\n";
        let lines: Vec<_> = check(&[source("docs/a.md", text)]).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }
}
