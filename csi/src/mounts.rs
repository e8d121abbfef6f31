//! The kernel's table of mounts (/proc/self/mountinfo, proc_pid_mountinfo(5)). Asked instead of `stat`, because `stat` on
//! a dead device fails or waits, and the table doesn't.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A block device's number: major, minor.
pub type DeviceNumber = (u32, u32);

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Device that the filesystem is on.
    pub device: DeviceNumber,
    /// What of the filesystem is mounted: `/`, or a path in it for a bind mount.
    pub root: PathBuf,
    /// Where.
    pub target: PathBuf,
    /// Nobody can write through this mount.
    pub read_only: bool,
    /// `ext4`, `devtmpfs` …
    pub filesystem: String,
    /// What was mounted, such as `/dev/loop3`.
    pub source: PathBuf,
}

/// Reads the table. Lines that don't parse are left out: they can't be mounts of ours.
#[must_use]
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// The mount that is seen at `path`: of several on top of each other, the newest.
#[must_use]
pub fn at<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.target == path)
}

/// `36 35 98:0 /root /target rw,noatime shared:1 - ext4 /dev/loop0 rw`: a variable number of fields stands before the
/// dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let number = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = number.split_once(':')?;
    let root = unescape(fields.next()?);
    let target = unescape(fields.next()?);
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let filesystem = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescape(rest.next()?);
    let super_options = rest.next().unwrap_or_default();
    let is_read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|option| option == b"ro");
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        target,
        read_only: is_read_only(options) || is_read_only(super_options),
        filesystem,
        source,
    })
}

/// Space, tab, newline and backslash stand as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = |digit: u8| matches!(digit, b'0'..=b'7').then(|| u16::from(digit - b'0'));
        let escaped = match (first, tail) {
            (b'\\', [a, b, c, ..]) => {
                octal(*a).zip(octal(*b)).zip(octal(*c)).and_then(|((a, b), c)| u8::try_from(a * 64 + b * 8 + c).ok())
            }
            _ => None,
        };
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
31 22 7:3 / /var/lib/kubelet/staging\\040one rw,noatime shared:9 master:2 - ext4 /dev/loop3 rw,stripe=4
32 22 0:5 /loop4 /target/block rw,nosuid - devtmpfs udev rw,size=1k
33 22 7:5 / /ro rw - xfs /dev/loop5 ro
34 22 7:6 / /ro ro - xfs /dev/loop6 rw
not a line
35 22 x:y / /bad rw - ext4 /dev/x rw
";

    #[test]
    fn lines_with_any_number_of_optional_fields_parse() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 5);
        let staged = at(&mounts, Path::new("/var/lib/kubelet/staging one")).unwrap();
        assert_eq!((staged.device, staged.filesystem.as_str(), staged.read_only), ((7, 3), "ext4", false));
        assert_eq!(staged.source, Path::new("/dev/loop3"));
        assert_eq!(at(&mounts, Path::new("/target/block")).unwrap().root, Path::new("/loop4"));
    }

    #[test]
    fn the_newest_of_stacked_mounts_is_seen() {
        let mounts = parse(TABLE);
        assert_eq!(at(&mounts, Path::new("/ro")).unwrap().device, (7, 6));
        assert!(mounts.iter().filter(|mount| mount.target == Path::new("/ro")).all(|mount| mount.read_only));
        assert!(at(&mounts, Path::new("/bad")).is_none());
    }

    #[test]
    fn the_table_of_this_process_parses() {
        let mounts = parse(&std::fs::read("/proc/self/mountinfo").unwrap());
        assert!(at(&mounts, Path::new("/")).is_some() || !mounts.is_empty());
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\777b"), Path::new("a\\777b"));
        assert_eq!(unescape(b"a\\134b"), Path::new("a\\b"));
    }
}
