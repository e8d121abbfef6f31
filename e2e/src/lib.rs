//! A cluster of real processes for tests: `basalt dev` in a temporary directory, with handles to kill, stop, continue
//! and start again each process.
//!
//! The binary is the one named by `BASALT_BIN`, or the one beside the test's own target directory; `cargo xtask test`
//! builds it first. Everything a test starts is ended and removed when its [`Cluster`] is dropped, also when it fails.

mod cluster;
pub mod kube;
pub mod load;

pub use cluster::{Cluster, Options, Process, Program, binary, run, run_program, wait_for};

/// Runs these tests need root and FUSE. Says why they are skipped where that isn't there.
#[must_use]
pub fn can_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    let fuse = std::path::Path::new("/dev/fuse").exists() && std::path::Path::new("/dev/loop-control").exists();
    if !root || !fuse {
        eprintln!("skipped: needs root, /dev/fuse and /dev/loop-control");
    }
    root && fuse
}
