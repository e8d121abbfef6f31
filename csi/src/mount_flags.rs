//! Flags of mount(8), as a StorageClass has them, in the shape of mount(2).

use nix::mount::MsFlags;

/// Flags that are bits to the kernel: name, bit, set or cleared.
const BITS: [(&str, MsFlags, bool); 18] = [
    ("ro", MsFlags::MS_RDONLY, true),
    ("rw", MsFlags::MS_RDONLY, false),
    ("nosuid", MsFlags::MS_NOSUID, true),
    ("suid", MsFlags::MS_NOSUID, false),
    ("nodev", MsFlags::MS_NODEV, true),
    ("dev", MsFlags::MS_NODEV, false),
    ("noexec", MsFlags::MS_NOEXEC, true),
    ("exec", MsFlags::MS_NOEXEC, false),
    ("sync", MsFlags::MS_SYNCHRONOUS, true),
    ("async", MsFlags::MS_SYNCHRONOUS, false),
    ("dirsync", MsFlags::MS_DIRSYNC, true),
    ("noatime", MsFlags::MS_NOATIME, true),
    ("atime", MsFlags::MS_NOATIME, false),
    ("nodiratime", MsFlags::MS_NODIRATIME, true),
    ("relatime", MsFlags::MS_RELATIME, true),
    ("strictatime", MsFlags::MS_STRICTATIME, true),
    ("lazytime", MsFlags::MS_LAZYTIME, true),
    ("nolazytime", MsFlags::MS_LAZYTIME, false),
];

/// Bits for the kernel, and the rest as data for the filesystem. One entry may hold several flags with commas between.
pub(crate) fn split(flags: &[String]) -> (MsFlags, String) {
    let mut bits = MsFlags::empty();
    let mut data = Vec::new();
    for flag in flags.iter().flat_map(|entry| entry.split(',')).map(str::trim) {
        match BITS.iter().find(|(name, _, _)| *name == flag) {
            Some((_, bit, value)) => bits.set(*bit, *value),
            None if flag.is_empty() || flag == "defaults" => {}
            None => data.push(flag),
        }
    }
    (bits, data.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_data_come_apart() {
        let flags = ["noatime,discard", "data=ordered", "defaults", "ro"].map(str::to_owned);
        let (bits, data) = split(&flags);
        assert_eq!(bits, MsFlags::MS_NOATIME | MsFlags::MS_RDONLY);
        assert_eq!(data, "discard,data=ordered");
    }

    #[test]
    fn the_last_of_two_that_contradict_wins() {
        let flags = ["ro", "rw", "nosuid", "suid"].map(str::to_owned);
        assert_eq!(split(&flags), (MsFlags::empty(), String::new()));
    }
}
