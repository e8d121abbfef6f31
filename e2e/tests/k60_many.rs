//! Many claims at once, and nothing of them left.

use anyhow::Result;
use e2e::kube::pods::Workload;
use e2e::kube::{Api, Lab, basalt, pods};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::collections::BTreeMap;

const CLAIMS: usize = 20;

/// What there is of volumes: at the masters, in the kernel, on every node.
fn traces(api: &Api, lab: &Lab) -> Result<BTreeMap<String, usize>> {
    let mut traces = BTreeMap::new();
    traces.insert("volumes at the masters".to_owned(), basalt::volumes(api)?);
    let attachments = api.run(api.cluster::<VolumeAttachment>().list(&Default::default()))?.items.len();
    traces.insert("attachments".to_owned(), attachments);
    for node in lab.nodes() {
        let count = |what: &str, script: &str| -> Result<(String, usize)> {
            let mut command = node.command("sh")?;
            command.args(["-c", script]);
            let lines = e2e::run(command)?.lines().count();
            Ok((format!("{what} on {}", node.name()), lines))
        };
        traces.extend([
            count("loop devices", "grep -l /run/basalt /sys/block/loop*/loop/backing_file 2>/dev/null; true")?,
            count("fuse mounts", "grep ' - fuse' /proc/self/mountinfo; true")?,
            count("mounts of pods", "grep csi.basalt.storage /proc/self/mountinfo; true")?,
            count("attachments", "ls /run/basalt/fuse/loop-fuse 2>/dev/null; true")?,
        ]);
    }
    Ok(traces)
}

#[test]
fn twenty_claims_at_once_are_all_bound_and_leave_nothing() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let before = traces(&api, &lab).unwrap();
    let workloads: Vec<_> = (0..CLAIMS).map(|number| Workload::new(&api, &format!("many-{number}"))).collect();
    let began = pods::now();
    for (number, workload) in workloads.iter().enumerate() {
        workload.claim("64Mi", "Filesystem").unwrap();
        workload.start_on(&format!("n{}", number % 3 + 1), "echo $HOSTNAME > /data/name; sync; exec sleep 100000").unwrap();
    }
    for number in 0..CLAIMS {
        api.wait_pod(pods::SPACE, &format!("many-{number}")).unwrap();
    }
    println!("{CLAIMS} pods run on their volumes after {:.1} s", began.elapsed().as_secs_f64());
    for (number, workload) in workloads.iter().enumerate() {
        assert_eq!(workload.shell("cat /data/name").unwrap().trim(), format!("many-{number}"));
    }
    let names: Vec<String> = (0..CLAIMS).map(|number| format!("many-{number}")).collect();
    for kind in ["pod", "pvc"] {
        let mut args = vec!["delete", kind, "-n", pods::SPACE, "--wait=false"];
        args.extend(names.iter().map(String::as_str));
        api.kubectl(&args).unwrap();
    }
    for workload in &workloads {
        workload.remove().unwrap();
    }
    api.wait("the last trace to go", || Ok(traces(&api, &lab)? == before)).unwrap_or_else(|error| {
        panic!("{error:#}: {before:#?} before, {:#?} now", traces(&api, &lab).unwrap());
    });
    println!("all gone after {:.1} s", began.elapsed().as_secs_f64());
}
