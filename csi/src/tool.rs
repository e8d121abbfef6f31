//! External programs: mkfs, fsck and the growers, with a bound on their time and words for what went wrong.

use crate::error::Error;
use crate::parameters::Filesystem;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The most of a tool's words that go into an error.
const WORDS_BYTES_MAX: usize = 600;

/// How a tool ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None`: ended by a signal.
    pub(crate) code: Option<i32>,
    /// What it said, the last part of it.
    pub(crate) words: String,
}

/// Runs a tool for `limit` at most; it is killed when that is over. `guard` becomes its standard input: an open file
/// whose lock lives for as long as the tool does, even when this process dies first.
pub(crate) async fn run(program: &str, args: &[&str], limit: Duration, guard: Option<File>) -> Result<Ended, Error> {
    let mut command = Command::new(program);
    command.args(args).stdin(guard.map_or_else(Stdio::null, Stdio::from)).kill_on_drop(true).env("LC_ALL", "C");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::Host(format!("{program} is missing on this node: install {}", package(program))),
        _ => Error::Host(format!("could not start {program}: {error}")),
    })?;
    match tokio::time::timeout(limit, child.wait_with_output()).await {
        Err(_) => Err(Error::TimedOut { what: program.to_owned(), seconds: limit.as_secs() }),
        Ok(Err(error)) => Err(Error::Host(format!("could not wait for {program}: {error}"))),
        Ok(Ok(output)) => {
            let mut words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if words.is_empty() {
                words = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            }
            let cut = words.char_indices().map(|(at, _)| at).find(|at| words.len() - at <= WORDS_BYTES_MAX).unwrap_or(0);
            Ok(Ended { code: output.status.code(), words: words.split_off(cut) })
        }
    }
}

/// Runs a tool that must exit with zero.
pub(crate) async fn must(program: &str, args: &[&str], limit: Duration, guard: Option<File>) -> Result<String, Error> {
    let ended = run(program, args, limit, guard).await?;
    match ended.code {
        Some(0) => Ok(ended.words),
        Some(code) => Err(Error::Host(format!("{program} failed with code {code}: {}", ended.words))),
        None => Err(Error::Host(format!("{program} was ended by a signal"))),
    }
}

fn package(program: &str) -> &'static str {
    match program {
        "mkfs.xfs" | "xfs_growfs" => "xfsprogs",
        "mkfs.ext4" | "e2fsck" | "resize2fs" => "e2fsprogs",
        _ => "it",
    }
}

/// Features that every ext4 since Linux 3.18 knows, spelled out from nothing: what newer tools switch on by default
/// (orphan_file, metadata_csum_seed) can't be mounted by older kernels, and the volume may move to one.
const EXT4_FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// The tool that makes a filesystem, with its flags. `xfs_version` is that of the installed xfsprogs.
pub(crate) fn make_arguments(kind: Filesystem, xfs_version: (u32, u32)) -> (&'static str, Vec<String>) {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match kind {
        // -F once: no question about a whole device, but still refused while somebody has it open. No blocks for root
        // only: a volume is one application's.
        Filesystem::Ext4 => ("mkfs.ext4", words(&format!("-q -F -m 0 -I 256 -O {EXT4_FEATURES} -E lazy_itable_init=1"))),
        Filesystem::Xfs => {
            let mut metadata = "crc=1,finobt=1,reflink=1,rmapbt=0".to_owned();
            let mut inodes = "sparse=1".to_owned();
            let mut names = String::new();
            // Switched on by default in newer tools, unknown to kernels before 5.10, 5.19 and 6.10. An option that the
            // tool itself doesn't know yet would make it fail.
            if xfs_version >= (5, 10) {
                metadata.push_str(",bigtime=0,inobtcount=0");
            }
            if xfs_version >= (5, 19) {
                inodes.push_str(",nrext64=0");
            }
            if xfs_version >= (6, 10) {
                inodes.push_str(",exchange=0");
                names.push_str("-n parent=0");
            }
            // -f: a half-made XFS is made anew; what else a device holds was looked at before.
            ("mkfs.xfs", words(&format!("-q -f -m {metadata} -i {inodes} {names}")))
        }
    }
}

/// `mkfs.xfs version 6.1.0` as (6, 1). What can't be read counts as old.
pub(crate) fn xfs_version(text: &str) -> (u32, u32) {
    let mut numbers = text.rsplit(' ').next().unwrap_or_default().split('.').map(|part| part.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Checks an ext4 before it is mounted, and mends what can be mended without a person. A clean one takes milliseconds.
/// XFS replays its journal when it is mounted and has no check of its own.
pub(crate) async fn check(device: &Path, kind: Filesystem, limit: Duration, guard: Option<File>) -> Result<(), Error> {
    if kind == Filesystem::Xfs {
        return Ok(());
    }
    let name = device.to_string_lossy();
    let ended = run("e2fsck", &["-p", &name], limit, guard).await?;
    match ended.code {
        Some(0) => Ok(()),
        // 1: mended. 2: mended, restart if it was mounted, which it isn't.
        Some(code @ 1..=3) => {
            tracing::warn!(device = %name, code, words = %ended.words, "e2fsck mended the filesystem");
            Ok(())
        }
        Some(code) => Err(Error::Host(format!(
            "e2fsck found damage on {name} that needs a person (code {code}): {}; run e2fsck on it by hand",
            ended.words
        ))),
        None => Err(Error::Host("e2fsck was ended by a signal".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_xfsprogs_read() {
        assert_eq!(xfs_version("mkfs.xfs version 6.1.0"), (6, 1));
        assert_eq!(xfs_version("mkfs.xfs version 5.10.0-rc1\n"), (5, 10));
        assert_eq!(xfs_version("nonsense"), (0, 0));
    }

    #[test]
    fn only_options_that_the_tool_knows_are_given() {
        let flags = |version| make_arguments(Filesystem::Xfs, version).1.join(" ");
        assert!(!flags((4, 19)).contains("bigtime"));
        assert!(flags((5, 10)).contains("bigtime=0") && !flags((5, 10)).contains("nrext64"));
        assert!(flags((6, 1)).contains("nrext64=0") && !flags((6, 1)).contains("parent"));
        assert!(flags((6, 12)).contains("parent=0"));
    }

    #[tokio::test]
    async fn a_missing_tool_is_named_with_its_package() {
        let error = must("mkfs.nosuch", &[], Duration::from_secs(1), None).await.unwrap_err();
        assert_eq!(error.to_string(), "mkfs.nosuch is missing on this node: install it");
    }

    #[tokio::test]
    async fn a_tool_that_hangs_is_killed() {
        let error = must("sleep", &["1000"], Duration::from_millis(20), None).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }));
    }

    #[tokio::test]
    async fn the_words_of_a_failing_tool_are_kept() {
        let error = must("sh", &["-c", "echo no such thing >&2; exit 3"], Duration::from_secs(10), None).await.unwrap_err();
        assert_eq!(error.to_string(), "sh failed with code 3: no such thing");
    }
}
