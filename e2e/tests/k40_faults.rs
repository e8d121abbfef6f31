//! What dies under a pod that writes, and the pod doesn't notice: it only waits.

use anyhow::{Result, ensure};
use e2e::kube::pods::{Workload, now};
use e2e::kube::{Api, Lab, basalt, pods};
use k8s_openapi::api::core::v1::Pod;

/// Writes blocks that carry their own checksum for so long, then reads all of them again. Ends with an error at the first
/// one that fails or is not what was written.
fn verify(seconds: u32) -> String {
    format!(
        "exec fio --name=verify --filename=/data/file --size=64m --bs=4k --rw=randwrite --direct=1 --fsync=32 \
         --ioengine=psync --time_based --runtime={seconds} --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting"
    )
}

/// Pods of Basalt with this label on this node; on any, when none is named.
fn pods_of(api: &Api, app: &str, node: Option<&str>) -> Result<Vec<String>> {
    let pods = api.namespaced::<Pod>(basalt::NAMESPACE);
    let mut selected = kube::api::ListParams::default().labels(&format!("app={app}"));
    if let Some(node) = node {
        selected = selected.fields(&format!("spec.nodeName={node}"));
    }
    let found = api.run(pods.list(&selected))?.items;
    Ok(found.into_iter().filter_map(|pod| pod.metadata.name).collect())
}

/// Deletes a pod while another one writes; answers when the pod's successor is ready.
fn delete_under_load(api: &Api, workload: &Workload<'_>, app: &str, victim: &str, count: usize) -> Result<()> {
    api.wait("the load to run", || Ok(workload.shell("test -s /data/file").is_ok()))?;
    let pods = api.namespaced::<Pod>(basalt::NAMESPACE);
    let uid = api.run(pods.get(victim))?.metadata.uid;
    let began = now();
    api.kubectl(&["delete", "pod", "-n", basalt::NAMESPACE, victim, "--grace-period=0", "--force", "--wait=false"])?;
    api.wait("the old pod to go", || {
        let there = api.run(pods.get_opt(victim))?;
        Ok(there.is_none_or(|pod| pod.metadata.uid != uid))
    })?;
    api.wait_ready(basalt::NAMESPACE, &format!("app={app}"), count)?;
    println!("{victim}: a successor is ready after {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn must_succeed(api: &Api, workload: &Workload<'_>) -> Result<()> {
    api.wait("the load to end", || Ok(["Succeeded", "Failed"].contains(&workload.phase()?.as_str())))?;
    ensure!(workload.phase()? == "Succeeded", "{}", workload.log()?);
    Ok(())
}

#[test]
fn an_agent_pod_deleted_under_load_costs_its_application_a_pause_and_no_error() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let workload = Workload::new(&api, "agent-gone");
    workload.claim("256Mi", "Filesystem").unwrap();
    workload.start_on("n1", &verify(60)).unwrap();
    api.wait_pod(pods::SPACE, "agent-gone").unwrap();
    let agent = pods_of(&api, "basalt-agent", Some("n1")).unwrap();
    delete_under_load(&api, &workload, "basalt-agent", &agent[0], 3).unwrap();
    must_succeed(&api, &workload).unwrap();
    workload.remove().unwrap();
}

#[test]
fn the_leading_master_deleted_under_load_is_not_noticed() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    basalt::install(&api).unwrap();
    let workload = Workload::new(&api, "leader-gone");
    workload.claim("256Mi", "Filesystem").unwrap();
    workload.start_on("n2", &verify(40)).unwrap();
    api.wait_pod(pods::SPACE, "leader-gone").unwrap();
    let leader = basalt::leader(&api).unwrap();
    delete_under_load(&api, &workload, "basalt-master", &leader, 3).unwrap();
    must_succeed(&api, &workload).unwrap();
    // And a claim made meanwhile by a new leader is served.
    let other = Workload::new(&api, "after-leader");
    other.claim("128Mi", "Filesystem").unwrap();
    other.run_on("n3").unwrap();
    other.remove().unwrap();
    workload.remove().unwrap();
}
