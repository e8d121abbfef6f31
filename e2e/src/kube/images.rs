//! The images that tests use, made of programs of this machine.

use super::image::Image;
use super::lab::Lab;
use super::node::PAUSE_IMAGE;
use anyhow::{Context, Result};
use std::path::Path;

/// Basalt, with the programs that it calls.
pub const BASALT: &str = "registry.local/basalt:e2e";
/// The CSI sidecars, all in one.
pub const SIDECARS: &str = "registry.local/csi-sidecars:e2e";
/// What pods of tests run: a shell, fio, and programs for filesystems.
pub const TOOLBOX: &str = "registry.local/toolbox:e2e";

/// Makes all of them. A file that would hold the same is left as it is, so that a node doesn't load it again.
pub fn make_all(lab: &Lab) -> Result<()> {
    std::fs::create_dir_all(lab.images())?;
    write(lab, "pause", PAUSE_IMAGE, &pause()?)?;
    write(lab, "toolbox", TOOLBOX, &toolbox()?)?;
    write(lab, "sidecars", SIDECARS, &sidecars(lab)?)?;
    write(lab, "basalt", BASALT, &basalt(lab)?)
}

fn write(lab: &Lab, file: &str, name: &str, image: &Image) -> Result<()> {
    let path = lab.images().join(format!("{file}.tar"));
    let new = path.with_extension("new");
    image.write(name, &new)?;
    let same = path.exists() && crate::run_program("cmp", &["-s", &new.to_string_lossy(), &path.to_string_lossy()]).is_ok();
    if same { Ok(std::fs::remove_file(new)?) } else { Ok(std::fs::rename(new, path)?) }
}

fn pause() -> Result<Image> {
    let mut image = Image::new(&["/bin/busybox", "sleep", "2000000000"]);
    image.add_program(Path::new("/bin/busybox"), "/bin/busybox")?;
    Ok(image)
}

fn toolbox() -> Result<Image> {
    let mut image = Image::new(&["/bin/sh"]);
    for tool in ["fio", "sha256sum", "dd"] {
        image.add_tool(tool)?;
    }
    image.add_busybox()?;
    Ok(image)
}

fn sidecars(lab: &Lab) -> Result<Image> {
    let mut image = Image::new(&[]);
    for name in ["csi-provisioner", "csi-attacher", "csi-resizer"] {
        image.add_program(&lab.programs().built(name), &format!("/usr/bin/{name}"))?;
    }
    Ok(image)
}

/// `basalt`, and what its CSI driver calls.
fn basalt(lab: &Lab) -> Result<Image> {
    let mut image = Image::new(&["/usr/bin/basalt"]);
    let binary = crate::binary()?;
    // Without what a debugger needs: it is most of a debug build, and every node loads it.
    let stripped = lab.images().join("basalt.stripped");
    crate::run_program("strip", &["-o", &stripped.to_string_lossy(), &binary.to_string_lossy()])
        .with_context(|| format!("could not strip {}", binary.display()))?;
    image.add_program(&stripped, "/usr/bin/basalt")?;
    for tool in [
        "mkfs.ext4",
        "e2fsck",
        "resize2fs",
        "tune2fs",
        "mkfs.xfs",
        "xfs_repair",
        "xfs_growfs",
        "mount",
        "umount",
        "blkid",
        "losetup",
        "nsenter",
    ] {
        image.add_tool(tool)?;
    }
    image.add_busybox()?;
    Ok(image)
}
