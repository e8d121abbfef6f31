//! Copies a real tree onto the new volume and compares it after a remount, so that the first thing a user sees of the
//! volume is that it keeps what it was given.

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const COPY_BYTES: usize = 1 << 20;

/// Files of a tree, relative to its root, with the checksum of each.
pub(crate) type Sums = BTreeMap<PathBuf, u32>;

/// Regular files below `root` in name order, until they come to `wanted_bytes`; and how many bytes they have.
pub(crate) fn choose(root: &Path, wanted_bytes: u64) -> (Vec<PathBuf>, u64) {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in walkdir::WalkDir::new(root).sort_by_file_name().same_file_system(true).into_iter().flatten() {
        if bytes >= wanted_bytes {
            break;
        }
        if entry.file_type().is_file()
            && let Ok(meta) = entry.metadata()
            && let Ok(relative) = entry.path().strip_prefix(root)
        {
            bytes += meta.len();
            files.push(relative.to_owned());
        }
    }
    (files, bytes)
}

/// A tree of at least `wanted_bytes` that any Debian machine with Rust has.
pub(crate) fn find_tree(wanted_bytes: u64) -> Result<PathBuf> {
    let mut candidates = vec![PathBuf::from("/usr/lib"), PathBuf::from("/usr")];
    if let Some(home) = std::env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")))
    {
        candidates.push(home);
    }
    candidates
        .into_iter()
        .find(|tree| choose(tree, wanted_bytes).1 >= wanted_bytes)
        .context("found no tree of that size in /usr/lib, /usr or the Rust toolchain: name one with --tree")
}

/// Copies `files` from `source` into `target`, and returns the checksum of what was read.
pub(crate) fn copy(source: &Path, files: &[PathBuf], target: &Path, progress: &ProgressBar) -> Result<Sums> {
    let mut sums = Sums::new();
    let mut buffer = vec![0; COPY_BYTES];
    for file in files {
        let to = target.join(file);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
        }
        // A file of the live system that went away or can't be read meanwhile is left out, not an error of ours.
        let Ok(mut from) = File::open(source.join(file)) else { continue };
        let mut out = File::create(&to).with_context(|| format!("could not create {}", to.display()))?;
        let mut crc = 0;
        loop {
            let count = from.read(&mut buffer).with_context(|| format!("could not read {}", source.join(file).display()))?;
            if count == 0 {
                break;
            }
            crc = api_types::checksum::crc32c_append(crc, &buffer[..count]);
            out.write_all(&buffer[..count]).with_context(|| format!("could not write {}", to.display()))?;
            progress.inc(count as u64);
        }
        sums.insert(file.clone(), crc);
    }
    Ok(sums)
}

/// Reads every file below `target` again and compares.
pub(crate) fn compare(target: &Path, sums: &Sums, progress: &ProgressBar) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut bad = Vec::new();
    for (file, expected) in sums {
        let path = target.join(file);
        let mut from = File::open(&path).with_context(|| format!("could not open {} again", path.display()))?;
        let mut crc = 0;
        loop {
            let count = from.read(&mut buffer).with_context(|| format!("could not read {} again", path.display()))?;
            if count == 0 {
                break;
            }
            crc = api_types::checksum::crc32c_append(crc, &buffer[..count]);
            progress.inc(count as u64);
        }
        if crc != *expected {
            bad.push(file.display().to_string());
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    bail!("{} of {} files differ after the remount, the first is {}", bad.len(), sums.len(), bad[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found() {
        let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(source.path().join("sub")).unwrap();
        fs::write(source.path().join("sub/a"), b"hello").unwrap();
        fs::write(source.path().join("b"), b"world").unwrap();
        let (files, bytes) = choose(source.path(), u64::MAX);
        assert_eq!((files.len(), bytes), (2, 10));
        let bar = ProgressBar::hidden();
        let sums = copy(source.path(), &files, target.path(), &bar).unwrap();
        compare(target.path(), &sums, &bar).unwrap();
        fs::write(target.path().join("sub/a"), b"hellp").unwrap();
        let error = compare(target.path(), &sums, &bar).unwrap_err();
        assert!(error.to_string().contains("1 of 2 files differ"), "{error}");
    }
}
