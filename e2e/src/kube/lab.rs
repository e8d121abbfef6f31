//! See [`Lab`].

use super::api::Api;
use super::control_plane::{ControlPlane, SERVER_NAMES, server};
use super::network::Namespace;
use super::node::Node;
use super::pki::Pki;
use super::process::Daemons;
use super::programs::Programs;
use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};

/// How many nodes a lab has: a chunk has three copies on three nodes.
const NODES: usize = 3;

/// Where a lab is kept when nobody says otherwise.
const DEFAULT_DIR: &str = "/var/tmp/basalt-lab";

/// The file that a volume's loop device stands on, as the kernel names it once nothing mounts it any more.
const LOST_BACKING: &str = "/volume";

/// A Kubernetes cluster in a directory. It runs until it is taken down, whoever started it.
#[derive(Debug, Clone)]
pub struct Lab {
    dir: PathBuf,
    name: String,
    programs: Programs,
}

impl Lab {
    /// The lab of a directory, running or not. Its last part is the lab's name, and that of its namespaces.
    pub fn at(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let name = dir.file_name().and_then(|name| name.to_str()).context("the directory of a lab has a name")?.to_owned();
        Ok(Lab { dir, name, programs: Programs::find()? })
    }

    /// The directory named by `BASALT_LAB`, or the usual one.
    #[must_use]
    pub fn usual_dir() -> PathBuf {
        std::env::var_os("BASALT_LAB").map_or_else(|| DEFAULT_DIR.into(), PathBuf::from)
    }

    /// The running lab that a test is to use, which is named by `BASALT_LAB`. Says why the test is skipped where there is
    /// none.
    #[must_use]
    pub fn for_test() -> Option<Self> {
        let Some(dir) = std::env::var_os("BASALT_LAB") else {
            eprintln!("skipped: needs a Kubernetes lab: run `cargo xtask e2e`");
            return None;
        };
        match Lab::at(Path::new(&dir)) {
            Ok(lab) => Some(lab),
            Err(error) => {
                eprintln!("skipped: {error:#}");
                None
            }
        }
    }

    fn pki(&self) -> Pki {
        Pki::at(&self.dir.join("pki"))
    }

    fn daemons(&self) -> Daemons {
        Daemons::at(&self.dir.join("daemons"))
    }

    fn hub(&self) -> Namespace {
        Namespace(self.name.clone())
    }

    fn control_plane(&self) -> ControlPlane {
        ControlPlane {
            dir: self.dir.clone(),
            network: self.hub(),
            programs: self.programs.clone(),
            pki: self.pki(),
            daemons: self.daemons(),
        }
    }

    /// Where images lie that nodes load when they start.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.dir.join("images")
    }

    /// Programs that were built for the lab.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// All nodes: n1, n2, n3.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        let node = |number: usize| {
            let name = format!("n{number}");
            Node {
                dir: self.dir.join("nodes").join(&name),
                images: self.images(),
                network: Namespace(format!("{}-{name}", self.name)),
                hub: self.hub(),
                programs: self.programs.clone(),
                pki: self.pki(),
                daemons: self.daemons(),
                nodes: NODES,
                name,
                number,
            }
        };
        (1..=NODES).map(node).collect()
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<Node> {
        self.nodes().into_iter().find(|node| node.name() == name).with_context(|| format!("there is no node {name}"))
    }

    /// Starts a new lab, in place of whatever was left of an earlier one, and waits until its nodes are Ready. Images must
    /// be there already.
    pub fn start(&self) -> Result<Api> {
        self.stop()?;
        self.forget()?;
        self.hub().make_hub()?;
        let names: Vec<String> = self.nodes().iter().map(|node| node.name().to_owned()).collect();
        self.pki().make(&server(), &SERVER_NAMES, &names)?;
        let control_plane = self.control_plane();
        control_plane.start()?;
        for node in self.nodes() {
            node.start()?;
        }
        let api = self.api()?;
        api.wait("the nodes to be ready", || {
            control_plane.must_run()?;
            for node in self.nodes() {
                node.must_run()?;
                if !api.is_node_ready(node.name())? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(api)
    }

    /// Moves the calling thread into the lab's network and connects to its API.
    pub fn api(&self) -> Result<Api> {
        self.enter()?;
        Api::connect(self.programs.built("kubectl"), &self.kubeconfig())
    }

    /// Moves the calling thread, and all that it starts from now on, into the lab's network.
    pub fn enter(&self) -> Result<()> {
        self.hub().enter()
    }

    /// What a client of the API needs, as an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki().file("admin.kubeconfig")
    }

    /// Stops one program of the control plane, such as `kube-apiserver`.
    pub fn stop_component(&self, name: &str) -> Result<()> {
        self.daemons().stop(name, Signal::SIGKILL)
    }

    /// Starts it again.
    pub fn start_component(&self, name: &str) -> Result<()> {
        self.control_plane().start_one(name)
    }

    /// Ends everything that runs, and takes namespaces, mounts, control groups and loop devices away. Files stay.
    pub fn stop(&self) -> Result<()> {
        for node in self.nodes() {
            node.kill()?;
        }
        self.control_plane().stop()?;
        self.hub().remove()?;
        release_lost_loops()
    }

    /// Deletes everything of the lab but its images.
    pub fn forget(&self) -> Result<()> {
        for part in ["pki", "daemons", "etcd", "nodes"] {
            let path = self.dir.join(part);
            if path.exists() {
                unmount_below(&path)?;
                std::fs::remove_dir_all(&path).with_context(|| format!("could not delete {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Names of daemons that run.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        let daemons = self.daemons();
        daemons.names().into_iter().filter(|name| daemons.find(name).is_some()).collect()
    }
}

/// A node's mounts are in a namespace of its own and end with it; what is seen from here is an accident that must not
/// make a deletion reach into it.
fn unmount_below(path: &Path) -> Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let targets = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    for target in targets.filter(|target| target.starts_with(path)).collect::<Vec<_>>().into_iter().rev() {
        umount2(target, MntFlags::MNT_DETACH).with_context(|| format!("could not unmount {}", target.display()))?;
    }
    Ok(())
}

/// Loop devices are the machine's, not a node's: those whose file died with a node are given back.
fn release_lost_loops() -> Result<()> {
    for entry in std::fs::read_dir("/sys/block")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if name.starts_with("loop") && backing.trim_end() == LOST_BACKING {
            // Best effort: one that is still open goes when it is closed.
            crate::run_program("losetup", &["--detach", &format!("/dev/{name}")]).ok();
        }
    }
    Ok(())
}
