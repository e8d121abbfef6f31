//! The lab itself: a Kubernetes whose nodes are Ready, and whose pods have names, addresses and services.

use e2e::kube::{Lab, images};
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::json;

const SPACE: &str = "default";

fn pod(name: &str, node: &str, script: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": images::TOOLBOX, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-ec", script],
            }],
        },
    })
}

#[test]
fn three_nodes_are_ready_and_a_pod_reaches_another_by_the_name_of_its_service() {
    let Some(lab) = Lab::for_test() else { return };
    let api = lab.api().unwrap();
    for node in lab.nodes() {
        api.wait(&format!("{} to be ready", node.name()), || api.is_node_ready(node.name())).unwrap();
    }
    let (pods, services) = (api.namespaced::<Pod>(SPACE), api.namespaced::<Service>(SPACE));
    let serve = "mkdir /www; echo $HOSTNAME > /www/index.html; exec httpd -f -p 8080 -h /www";
    api.create(&pods, pod("server", "n2", serve)).unwrap();
    api.create(&pods, pod("caller", "n1", "exec sleep 1000")).unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    api.create(&services, service).unwrap();
    for name in ["server", "caller"] {
        api.wait_pod(SPACE, name).unwrap();
    }
    api.wait("the service to answer", || {
        Ok(api.shell(SPACE, "caller", "wget -qO- http://server.default.svc.cluster.local").is_ok())
    })
    .unwrap();
    let answer = api.shell(SPACE, "caller", "wget -qO- http://server").unwrap();
    assert_eq!(answer.trim(), "server");
    // The API itself is a service too, as every controller in a pod expects.
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
    api.shell(SPACE, "caller", &format!("test -s {token} && nc -w 5 kubernetes.default 443 < /dev/null")).unwrap();
    for name in ["server", "caller"] {
        api.delete(&pods, name).unwrap();
    }
    api.delete(&services, "server").unwrap();
}
