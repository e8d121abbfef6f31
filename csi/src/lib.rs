//! The CSI driver: a claim becomes a volume at the masters, and a volume becomes a mounted filesystem, or a block
//! device, under a pod.
//!
//! Contract: the controller holds no state and asks the masters ([`control_plane::ControlPlane`]); the node service
//! believes only the kernel's table of mounts and the agent ([`agent::Agent`]), works on the machine through
//! [`host::Host`], and never makes a filesystem over anything. Every call is idempotent, bounded in time, and alone on
//! its volume. Every error has its code in one table, [`error`].
//!
//! What this crate never does: talk to the Kubernetes API, or move a byte of data.

pub mod agent;
pub mod capability;
pub mod content;
pub mod control_plane;
pub mod controller;
pub mod error;
pub mod host;
pub mod identity;
mod mount_flags;
pub mod mounts;
pub mod node;
pub mod parameters;
mod pending;
pub mod proto;
pub mod record;
pub mod registration;
mod serve;
mod sizes;
mod tool;
mod topology;

pub use identity::DRIVER_NAME;
pub use serve::{CsiArgs, Mode, RunError, Services, run, run_controller, run_node, serve};
