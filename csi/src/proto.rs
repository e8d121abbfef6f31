//! Messages, clients and servers of `proto/csi.proto`, and of `proto/registration.proto` in a room of their own.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::or_fun_call,
    reason = "generated: the protos have the words"
)]

tonic::include_proto!("csi.v1");

/// How kubelet and a node plugin meet.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
