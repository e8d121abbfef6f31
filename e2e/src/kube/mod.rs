//! A Kubernetes cluster on this machine, made of the real programs: etcd, a control plane, and nodes that are namespaces
//! of this kernel, each with its own containerd and kubelet.
//!
//! ```text
//! network namespace <lab>:   etcd · kube-apiserver · controller-manager · scheduler · kube-proxy · dns
//!                            bridge 10.200.0.1/24, API at https://10.200.0.1:6443
//! namespaces <lab>-n1 n2 n3: 10.200.0.11 12 13 · pods 10.244.1.0/24 2 3 · containerd · kube-proxy · kubelet
//! ```
//!
//! `cargo xtask e2e` builds the programs, starts a lab with the binary `kube-lab`, and runs the tests `k*.rs` against it.
//! What a lab is lies in its directory; a lab that was killed is cleared away by the next start. Nothing here knows how
//! Basalt is installed.

mod api;
pub mod basalt;
mod cgroup;
mod control_plane;
mod image;
pub mod images;
mod lab;
mod network;
mod node;
mod pki;
pub mod pods;
mod process;
mod programs;

pub use api::{Api, PATIENCE};
pub use image::{Image, Source};
pub use lab::Lab;
pub use node::Node;
pub use programs::Programs;
