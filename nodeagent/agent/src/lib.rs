//! The agent: the process on every node that has disks or uses volumes. It serves chunks to the cluster and volumes to
//! this node, one thread a core.

pub mod rpc;
