//! Messages and services as generated from `proto/*.proto`; the comments are there.

/// `master.proto`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, unused_qualifications, reason = "generated")]
pub mod master {
    tonic::include_proto!("basalt.master.v1");
}

/// `raft.proto`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, unused_qualifications, reason = "generated")]
pub mod raft {
    tonic::include_proto!("basalt.raft.v1");
}

/// `attach.proto`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, unused_qualifications, reason = "generated")]
pub mod attach {
    tonic::include_proto!("basalt.attach.v1");
}
