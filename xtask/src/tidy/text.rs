//! Rules for every text file: line ends, notes to ourselves, paths of one machine.

use super::{Finding, SourceFile};

/// Folders of some machine, which no source, document or script may take for granted.
const MACHINE_FOLDERS: [&str; 4] = ["/root", "/work", "/tmp", "/home"];
/// Notes that must say what is to be done.
const NOTES: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];
/// Words a note must have to say anything.
const NOTE_WORDS: usize = 4;

/// What these rules are written in.
const RULES: &str = "xtask/src/tidy/text.rs";

pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.path != "Cargo.lock" && file.path != "LICENSE").flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let Some(text) = &file.text else {
        return vec![file.finding(1, "not text: the repository holds none")];
    };
    let mut findings = Vec::new();
    if text.contains('\r') {
        findings.push(file.finding(1, "line ends are LF"));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(file.finding(text.lines().count(), "the last line ends with LF"));
    }
    if file.path == RULES {
        return findings;
    }
    for (place, line) in text.lines().enumerate() {
        if let Some(note) = NOTES.iter().find(|note| says_nothing(line, note)) {
            findings.push(file.finding(place + 1, format!("`{note}` without saying what and why")));
        }
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
            findings.push(file.finding(place + 1, format!("`{folder}` is a path of one machine")));
        }
    }
    findings
}

fn says_nothing(line: &str, note: &str) -> bool {
    line.match_indices(note).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + note.len()..]);
        let is_word = !before.ends_with(|character: char| character.is_alphanumeric() || character == '_')
            && !after.starts_with(|character: char| character.is_alphanumeric() || character == '_');
        is_word && after.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count() < NOTE_WORDS
    })
}

/// The line names this folder from the root of the filesystem, and something in it.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + folder.len()..]);
        let starts = !before.ends_with(|character: char| character.is_alphanumeric() || "/._-})>$~*:".contains(character));
        starts && after.starts_with('/')
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        check(&[source("docs/a.md", text)]).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn line_ends_are_checked() {
        assert_eq!(whats("a\r\n"), ["line ends are LF"]);
        assert_eq!(whats("a"), ["the last line ends with LF"]);
        assert!(whats("").is_empty());
    }

    #[test]
    fn a_note_must_say_something() {
        assert_eq!(whats("// TODO\n").len(), 1);
        assert_eq!(whats("// TODO: fix\n").len(), 1);
        assert!(whats("// TODO: take the lease into account once agents renew it\n").is_empty());
        assert!(whats("MASTODON and TODOS\n").is_empty());
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(whats("see /root/x\n").len(), 1);
        assert_eq!(whats("open(\"/tmp/x\")\n").len(), 1);
        assert!(whats("{dir}/tmp/x, framework/work/x, ~/work/x, /rootless, https://host/home/x, $HOME/work/a\n").is_empty());
    }
}
