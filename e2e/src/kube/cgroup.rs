//! A node's control groups: one in every hierarchy of this kernel, below that of whoever starts the lab.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The node's groups.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    name: String,
}

impl Groups {
    pub(crate) fn named(name: &str) -> Self {
        Groups { name: name.to_owned() }
    }

    /// Makes them and answers their folders.
    pub(crate) fn make(&self) -> Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        for parent in ours()? {
            let group = parent.join(&self.name);
            std::fs::create_dir_all(&group).with_context(|| format!("could not make the control group {}", group.display()))?;
            // A new group of this hierarchy may run nowhere until it is told where.
            for setting in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = std::fs::read(parent.join(setting)) {
                    std::fs::write(group.join(setting), value)?;
                }
            }
            made.push(group);
        }
        Ok(made)
    }

    /// Takes them away; whatever ran in them must have ended. Best effort: the kernel lets a group go a moment after its
    /// last process.
    pub(crate) fn remove(&self) -> Result<()> {
        for group in ours()?.into_iter().map(|parent| parent.join(&self.name)).filter(|group| group.exists()) {
            remove_tree(&group);
        }
        Ok(())
    }
}

fn remove_tree(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    std::fs::remove_dir(group).ok();
}

/// Folders of this process's groups (cgroups(7): `id:controllers:path` a line).
fn ours() -> Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/cgroup")?;
    let root = Path::new("/sys/fs/cgroup");
    let folder = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let hierarchy = match controllers {
            "" if root.join("unified").exists() => root.join("unified"),
            "" => root.to_owned(),
            named => root.join(named.strip_prefix("name=").unwrap_or(named)),
        };
        Some(hierarchy.join(path))
    };
    Ok(text.lines().filter_map(folder).filter(|folder| folder.exists()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_the_groups_that_were_found() {
        let me = std::process::id().to_string();
        let groups = ours().unwrap();
        assert!(!groups.is_empty());
        for group in groups {
            let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
            assert!(members.lines().any(|member| member == me), "{}", group.display());
        }
    }
}
