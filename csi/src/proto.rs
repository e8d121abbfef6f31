//! Messages, clients and servers of `proto/csi.proto`.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::or_fun_call,
    reason = "generated: the proto has the words"
)]

tonic::include_proto!("csi.v1");
