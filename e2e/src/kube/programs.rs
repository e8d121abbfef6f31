//! Where the programs of the lab are: built from the Go modules of `e2e/kube`, or unpacked from Debian packages.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// The folder that `cargo xtask e2e` fills.
#[derive(Debug, Clone)]
pub struct Programs {
    root: PathBuf,
}

impl Programs {
    /// In `BASALT_E2E_CACHE`, else in the user's cache folder.
    pub fn find() -> Result<Self> {
        let root = match (std::env::var_os("BASALT_E2E_CACHE"), std::env::var_os("HOME")) {
            (Some(root), _) => PathBuf::from(root),
            (None, Some(home)) => Path::new(&home).join(".cache/basalt/e2e"),
            (None, None) => bail!("neither BASALT_E2E_CACHE nor HOME is set"),
        };
        let programs = Programs { root };
        for needed in [programs.built("kubelet"), programs.debian().join("usr/bin/containerd")] {
            if !needed.exists() {
                bail!("{} is missing: `cargo xtask e2e` builds it", needed.display());
            }
        }
        Ok(programs)
    }

    /// Folder of what was built from Go modules.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// A program that was built from a Go module.
    #[must_use]
    pub fn built(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// Root of the unpacked Debian packages.
    #[must_use]
    pub fn debian(&self) -> PathBuf {
        self.root.join("debian")
    }
}
