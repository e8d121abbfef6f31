//! How a volume may be used, checked once where a request comes in.

use crate::error::Error;
use crate::parameters::Filesystem;
use crate::proto;
use proto::volume_capability::AccessType;
use proto::volume_capability::access_mode::Mode;

/// The most bytes of mount flags, all together (a limit of the specification).
const MOUNT_FLAGS_BYTES_MAX: usize = 4096;

/// A volume capability that this driver can serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capability {
    /// As what.
    pub access: Access,
    /// Nobody writes.
    pub read_only: bool,
    /// One pod alone has it (ReadWriteOncePod): a second place on the same node is refused.
    pub single_pod: bool,
}

/// As what a volume is seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// A bare block device.
    Block,
    /// A mounted filesystem.
    Mount {
        /// Which; `None`: what the StorageClass says, else the default.
        filesystem: Option<Filesystem>,
        /// Flags of mount(8).
        flags: Vec<String>,
    },
}

impl Capability {
    /// Checks one capability; `field` names it in errors.
    pub fn parse(field: &str, capability: Option<&proto::VolumeCapability>) -> Result<Self, Error> {
        let capability = capability.ok_or_else(|| Error::missing(field))?;
        let mode = capability.access_mode.as_ref().ok_or_else(|| Error::missing(&format!("{field}.access_mode")))?;
        let read_only = match mode.mode() {
            Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter => false,
            Mode::SingleNodeReaderOnly => true,
            Mode::Unknown => return Err(Error::Invalid(format!("{field}.access_mode {} is not known", mode.mode))),
            other => {
                return Err(Error::Invalid(format!(
                    "{field}.access_mode {} needs several nodes at once: a volume is used by one node (ReadWriteOnce, ReadWriteOncePod)",
                    other.as_str_name()
                )));
            }
        };
        let access = match capability.access_type.as_ref() {
            None => return Err(Error::missing(&format!("{field}.access_type"))),
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) => parse_mount(field, mount)?,
        };
        Ok(Capability { access, read_only, single_pod: mode.mode() == Mode::SingleNodeSingleWriter })
    }

    /// Checks a list that must not be empty.
    pub fn parse_all(capabilities: &[proto::VolumeCapability]) -> Result<Vec<Self>, Error> {
        if capabilities.is_empty() {
            return Err(Error::missing("volume_capabilities"));
        }
        capabilities.iter().map(|capability| Self::parse("volume_capability", Some(capability))).collect()
    }
}

fn parse_mount(field: &str, mount: &proto::volume_capability::MountVolume) -> Result<Access, Error> {
    if !mount.volume_mount_group.is_empty() {
        return Err(Error::Invalid(format!("{field}.volume_mount_group is not supported: use the pod's fsGroup")));
    }
    if mount.mount_flags.iter().map(String::len).sum::<usize>() > MOUNT_FLAGS_BYTES_MAX {
        return Err(Error::Invalid(format!("{field}.mount_flags are above {MOUNT_FLAGS_BYTES_MAX} bytes")));
    }
    // A comma or a zero byte would smuggle a second option past the reader of the first.
    if mount.mount_flags.iter().any(|flag| flag.contains('\0') || flag.is_empty()) {
        return Err(Error::Invalid(format!("{field}.mount_flags hold an empty flag or a zero byte")));
    }
    let filesystem = match mount.fs_type.as_str() {
        "" => None,
        name => Some(Filesystem::parse(&format!("{field}.fs_type"), name)?),
    };
    Ok(Access::Mount { filesystem, flags: mount.mount_flags.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn mount(mode: Mode, fs: &str) -> proto::VolumeCapability {
        let mount = MountVolume { fs_type: fs.into(), mount_flags: vec!["noatime".into()], volume_mount_group: String::new() };
        proto::VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    #[test]
    fn one_node_may_write_and_several_may_not() {
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
            assert!(!Capability::parse("c", Some(&mount(mode, "xfs"))).unwrap().read_only);
        }
        assert!(Capability::parse("c", Some(&mount(Mode::SingleNodeReaderOnly, ""))).unwrap().read_only);
        for mode in [Mode::Unknown, Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter] {
            assert!(matches!(Capability::parse("c", Some(&mount(mode, ""))), Err(Error::Invalid(_))), "{mode:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = |capability: Option<&proto::VolumeCapability>| Capability::parse("c", capability).unwrap_err().to_string();
        assert!(text(None).starts_with("c is missing"));
        let mut capability = mount(Mode::SingleNodeWriter, "");
        capability.access_type = None;
        assert!(text(Some(&capability)).starts_with("c.access_type is missing"));
        capability.access_mode = None;
        capability.access_type = Some(AccessType::Block(BlockVolume {}));
        assert!(text(Some(&capability)).starts_with("c.access_mode is missing"));
        assert!(Capability::parse_all(&[]).unwrap_err().to_string().starts_with("volume_capabilities is missing"));
    }

    #[test]
    fn a_filesystem_that_cannot_be_made_is_refused() {
        let error = Capability::parse("c", Some(&mount(Mode::SingleNodeWriter, "btrfs"))).unwrap_err();
        assert_eq!(error.to_string(), "c.fs_type `btrfs` can't be made: choose ext4 or xfs");
    }
}
