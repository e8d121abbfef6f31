//! The CSI conformance suite, every case of it, on the sockets of a cluster of plain processes.

use e2e::kube::Programs;
use e2e::{Cluster, Options, run};
use std::process::Command;

/// Cases that are left out. None: what the suite skips by itself is what the driver doesn't advertise, and every other
/// case must pass.
const LEFT_OUT: [&str; 0] = [];

#[test]
fn the_driver_passes_every_case_of_the_conformance_suite() {
    if !e2e::can_run() {
        return;
    }
    let suite = match Programs::find() {
        Ok(programs) => programs.built("csi-sanity"),
        Err(error) => return eprintln!("skipped: {error:#}"),
    };
    let cluster = Cluster::start(Options { base_port: 28_000, volume: None, ..Options::default() }).unwrap();
    let socket = format!("unix://{}", cluster.dir().join("csi/csi.sock").display());
    let mut command = Command::new(suite);
    command.args(["-csi.endpoint", &socket, "-ginkgo.no-color"]);
    for (flag, folder) in [("-csi.mountdir", "sanity-mount"), ("-csi.stagingdir", "sanity-stage")] {
        command.arg(flag).arg(cluster.dir().join(folder));
    }
    command.args(["-csi.testvolumesize", "268435456", "-csi.testvolumeexpandsize", "536870912"]);
    for case in LEFT_OUT {
        command.args(["-ginkgo.skip", case]);
    }
    let output = run(command).unwrap();
    let summary = output.lines().rev().find(|line| line.contains("Passed")).unwrap().to_owned();
    println!("csi-sanity: {summary}");
    // A suite that ran next to nothing says "passed" too.
    let passed: u32 = summary.split("Passed").next().unwrap().split_whitespace().last().unwrap().parse().unwrap();
    assert!(passed >= 60, "{summary}");
}
