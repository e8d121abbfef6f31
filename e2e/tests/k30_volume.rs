//! A claim becomes a disk under a pod, and its data outlives what happens to pods.

use e2e::kube::pods::Workload;
use e2e::kube::{Lab, basalt, pods};

#[test]
fn a_claim_is_bound_and_mounted_and_its_data_follows_the_pod_to_another_node() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let workload = Workload::new(&api, "move");
    workload.claim("256Mi", "Filesystem").unwrap();
    let began = pods::now();
    workload.run_on("n1").unwrap();
    println!("claimed, attached, mounted and running after {:.1} s", began.elapsed().as_secs_f64());
    let sum =
        workload.shell("dd if=/dev/urandom of=/data/file bs=1M count=64 conv=fsync 2>/dev/null; sha256sum /data/file").unwrap();
    workload.stop().unwrap();
    workload.run_on("n2").unwrap();
    assert_eq!(workload.shell("sha256sum /data/file").unwrap(), sum);
    workload.remove().unwrap();
}
