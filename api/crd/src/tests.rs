use super::*;
use serde_json::{Value, json};
use std::path::PathBuf;

fn schema() -> Value {
    serde_json::to_value(StorageCluster::crd()).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Every schema below one, with where it stands.
fn walk(schema: &Value, place: &str, found: &mut Vec<(String, Value)>) {
    found.push((place.to_owned(), schema.clone()));
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        walk(below, &format!("{place}.{name}"), found);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{place}[]"), found);
    }
}

fn fields() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    walk(&schema()["properties"]["spec"], "spec", &mut found);
    walk(&schema()["properties"]["status"], "status", &mut found);
    found
}

/// With `BASALT_WRITE=1` the files are written instead.
#[test]
fn the_charts_definitions_are_those_of_the_types() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../charts/basalt/crds");
    for (name, definition) in definitions() {
        let (path, text) = (folder.join(&name), yaml(&definition).unwrap());
        if std::env::var_os("BASALT_WRITE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(there, text, "run BASALT_WRITE=1 cargo test -p api-crd to make {name} anew");
    }
}

#[test]
fn every_field_says_what_it_means() {
    for (place, field) in fields().iter().filter(|(place, _)| !place.ends_with("[]")) {
        assert!(field["description"].as_str().is_some_and(|text| !text.is_empty()), "{place} has no description");
    }
}

#[test]
fn every_rule_names_its_fix() {
    let rules: Vec<_> =
        fields().iter().filter_map(|(_, field)| field["x-kubernetes-validations"].as_array().cloned()).flatten().collect();
    assert!(rules.len() >= 6, "{rules:?}");
    for rule in rules {
        assert!(rule["message"].as_str().is_some_and(|text| text.contains(':')), "{rule}");
    }
}

/// `null` isn't taken by structural schemas unless they say so.
#[test]
fn lists_and_texts_are_bounded_where_rules_look_at_them() {
    let devices = fields().into_iter().find(|(place, _)| place == "spec.agents.devices").unwrap().1;
    assert_eq!(devices["maxItems"], 16);
    assert_eq!(devices["items"]["properties"]["path"]["maxLength"], 256);
}

#[test]
fn defaults_are_in_the_schema() {
    let default = |wanted: &str| fields().into_iter().find(|(place, _)| place == wanted).unwrap().1["default"].clone();
    assert_eq!(default("spec.masters.replicas"), json!(3));
    assert_eq!(default("spec.masters.lostAfterSeconds"), json!(60));
    assert_eq!(default("spec.imagePullPolicy"), json!("IfNotPresent"));
    assert_eq!(default("spec.csi.kubeletPath"), json!("/var/lib/kubelet"));
}

#[test]
fn unknown_fields_are_refused() {
    let spec = |extra: Value| {
        let mut spec = json!({
            "agents": { "devices": [{ "path": "/dev/vdb" }] },
            "csi": { "sidecars": { "provisioner": { "image": "p" }, "attacher": { "image": "a" }, "resizer": { "image": "r" } } },
        });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value::<StorageClusterSpec>(spec)
    };
    assert_eq!(spec(json!({})).unwrap().masters, Masters::default());
    assert!(spec(json!({ "mastres": {} })).unwrap_err().to_string().contains("mastres"));
}
