//! Claims that grow, and claims that are bare devices.

use e2e::kube::pods::{SPACE, Workload};
use e2e::kube::{Lab, basalt};

#[test]
fn a_mounted_volume_grows_while_it_is_used() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let workload = Workload::new(&api, "grow");
    workload.claim("128Mi", "Filesystem").unwrap();
    workload.run_on("n1").unwrap();
    let kilobytes = || -> u64 { workload.shell("df -k /data | tail -1 | awk '{print $2}'").unwrap().trim().parse().unwrap() };
    let before = kilobytes();
    workload.shell("echo kept > /data/file; sync").unwrap();
    let patch = r#"{"spec":{"resources":{"requests":{"storage":"384Mi"}}}}"#;
    api.kubectl(&["patch", "pvc", "-n", SPACE, "grow", "-p", patch]).unwrap();
    api.wait("the filesystem to grow", || Ok(kilobytes() > before + 200 * 1024)).unwrap();
    assert_eq!(workload.shell("cat /data/file").unwrap().trim(), "kept");
    let claim = api.run(workload.claims().get("grow")).unwrap();
    let capacity = claim.status.and_then(|status| status.capacity).unwrap();
    assert_eq!(capacity["storage"].0, "384Mi");
    workload.remove().unwrap();
}

#[test]
fn a_bare_device_keeps_its_bytes_on_another_node() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let workload = Workload::new(&api, "device");
    workload.claim("128Mi", "Block").unwrap();
    workload.run_on("n2").unwrap();
    let size = workload.shell("blockdev --getsize64 /dev/volume").unwrap();
    assert_eq!(size.trim(), (128u64 << 20).to_string());
    let script = "dd if=/dev/urandom of=/x bs=1M count=16 2>/dev/null; dd if=/x of=/dev/volume bs=1M oflag=direct \
                  conv=fsync 2>/dev/null; sha256sum < /x";
    let sum = workload.shell(script).unwrap();
    workload.stop().unwrap();
    workload.run_on("n3").unwrap();
    assert_eq!(workload.shell("dd if=/dev/volume bs=1M count=16 iflag=direct 2>/dev/null | sha256sum").unwrap(), sum);
    workload.remove().unwrap();
}
