use super::*;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use serde::Serialize;
use serde::de::DeserializeOwned;

const ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn cluster() -> StorageCluster {
    let spec = json!({
        "agents": { "devices": [{ "path": "/dev/vdb" }, { "path": "/var/lib/basalt/disk-0.img", "fileSize": "4Gi" }] },
        "csi": { "sidecars": {
            "provisioner": { "image": "sidecars:1", "command": "/usr/bin/csi-provisioner" },
            "attacher": { "image": "sidecars:1" },
            "resizer": { "image": "sidecars:1" },
        } },
    });
    StorageCluster::new("db", serde_json::from_value(spec).unwrap())
}

fn objects(recorded: Option<&str>) -> Vec<Value> {
    let cluster = cluster();
    let plan = Plan { name: "db", namespace: "store", uid: "u", cluster: &cluster, image: "basalt:1", domain: "cluster.local" };
    plan.objects(recorded)
}

fn object(kind: &str, name: &str) -> Value {
    let all = objects(Some(ID));
    all.into_iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
}

fn args(object: &Value) -> Vec<String> {
    serde_json::from_value(object["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap()
}

/// Nothing that Kubernetes doesn't know is in it: it comes back the same through Kubernetes' own types.
fn known<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    let mut back = serde_json::to_value(typed).unwrap();
    let mut given = object.clone();
    for one in [&mut back, &mut given] {
        prune(one);
    }
    assert_eq!(back, given);
}

/// Empty lists and maps, which some types leave out.
fn prune(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(prune);
        fields.retain(|_, field| !matches!(field, Value::Object(map) if map.is_empty()) && *field != json!([]));
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(prune);
    }
}

#[test]
fn every_object_has_only_fields_that_kubernetes_knows() {
    for object in objects(Some(ID)) {
        match object["kind"].as_str().unwrap() {
            "ServiceAccount" => known::<ServiceAccount>(&object),
            "Service" => known::<Service>(&object),
            "PodDisruptionBudget" => known::<PodDisruptionBudget>(&object),
            "StatefulSet" => known::<StatefulSet>(&object),
            "DaemonSet" => known::<DaemonSet>(&object),
            "Deployment" => known::<Deployment>(&object),
            "ClusterRoleBinding" => known::<ClusterRoleBinding>(&object),
            kind => panic!("{kind} has no check"),
        }
    }
}

#[test]
fn agents_wait_for_the_recorded_cluster() {
    let kinds: Vec<_> = objects(None).iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["ServiceAccount", "Service", "PodDisruptionBudget", "StatefulSet"]);
    assert!(args(&object("DaemonSet", "db-agent")).contains(&format!("--cluster={ID}")));
}

#[test]
fn masters_find_each_other_by_stable_names() {
    let args = args(&objects(None)[3]);
    assert!(args.contains(&"--advertise=$(POD).db-masters.store.svc.cluster.local:7300".to_owned()), "{args:?}");
    let initial = args.iter().find(|word| word.starts_with("--initial=")).unwrap();
    assert!(initial.starts_with("--initial=1=db-master-1.db-masters.store.svc.cluster.local:7300,2=db-master-2."), "{initial}");
    assert_eq!(initial.split(',').count(), 3);
}

#[test]
fn a_master_that_lost_its_memory_is_no_first_member_again() {
    let args = args(&object("StatefulSet", "db-master"));
    assert!(!args.iter().any(|word| word.starts_with("--initial")), "{args:?}");
}

#[test]
fn a_device_that_holds_anything_is_never_overwritten() {
    let agent = object("DaemonSet", "db-agent");
    let script = agent["spec"]["template"]["spec"]["initContainers"][0]["command"][2].as_str().unwrap().to_owned();
    assert!(!script.contains("--overwrite"), "{script}");
    assert!(script.contains(&format!("basalt device format --cluster {ID} '/dev/vdb'")), "{script}");
    assert!(script.contains("--size '4Gi' '/var/lib/basalt/disk-0.img'.new"), "{script}");
    let args = args(&agent);
    assert!(args.contains(&"--device=/dev/vdb".to_owned()) && args.contains(&"--device=/var/lib/basalt/disk-0.img".to_owned()));
}

#[test]
fn only_the_csi_controller_has_a_token() {
    for object in objects(Some(ID)) {
        let name = object["metadata"]["name"].as_str().unwrap();
        if object["kind"] == "ServiceAccount" {
            assert_eq!(object["automountServiceAccountToken"], name == "db-csi-controller", "{name}");
        }
        let pod = &object["spec"]["template"]["spec"];
        if pod.is_object() && name != "db-csi-controller" {
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        }
    }
}

#[test]
fn what_carries_mounted_volumes_is_not_restarted_by_a_changed_template() {
    for name in ["db-agent", "db-keeper"] {
        assert_eq!(object("DaemonSet", name)["spec"]["updateStrategy"]["type"], "OnDelete", "{name}");
    }
    assert_eq!(object("StatefulSet", "db-master")["spec"]["updateStrategy"]["type"], "OnDelete");
}

#[test]
fn everything_in_the_namespace_goes_with_its_cluster() {
    for object in objects(Some(ID)) {
        let owned = object["metadata"]["ownerReferences"][0]["uid"] == "u";
        assert_eq!(owned, object["kind"] != "ClusterRoleBinding", "{}", object["metadata"]["name"]);
    }
}

/// What one rule of a role allows.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

#[test]
fn the_chart_lets_the_operator_apply_what_it_builds() {
    let allowed: [Vec<Rule>; 2] = [
        include_str!("../../../charts/basalt/files/rules-operator-namespace.yaml"),
        include_str!("../../../charts/basalt/files/rules-operator-cluster.yaml"),
    ]
    .map(|text| serde_saphyr::from_str(text).unwrap());
    for object in objects(Some(ID)) {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let resource = format!("{}s", kind.to_lowercase());
        let rules = &allowed[usize::from(object["metadata"]["namespace"].is_null())];
        let has = |all: &[String], one: &str| all.iter().any(|each| each == one);
        for verb in ["create", "patch"] {
            let fits = |rule: &Rule| has(&rule.api_groups, group) && has(&rule.resources, &resource) && has(&rule.verbs, verb);
            assert!(rules.iter().any(fits), "nothing allows to {verb} {resource}");
        }
    }
}
