//! Compiles the protos without a protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = ["proto/master.proto", "proto/raft.proto", "proto/attach.proto"];
    for proto in protos {
        println!("cargo::rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure().bytes(".basalt.raft.v1").compile_fds(descriptors)?;
    Ok(())
}
