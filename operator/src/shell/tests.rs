//! Rounds against an API server that keeps objects in memory and merges patches. No master answers.

use super::*;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use clap::Parser;
use parking_lot::Mutex;
use std::sync::Arc;

const CLUSTERS: &str = "/apis/basalt.storage/v1alpha1/namespaces/store/storageclusters";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    operator: OperatorArgs,
}

#[derive(Default)]
struct Server {
    objects: Mutex<BTreeMap<String, Value>>,
    /// Method and path of what changed something.
    changes: Mutex<Vec<String>>,
    broken: Mutex<bool>,
}

impl Server {
    fn cluster(&self) -> Value {
        self.objects.lock()[&format!("{CLUSTERS}/db")].clone()
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.changes.lock())
    }
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn status(code: StatusCode, reason: &str) -> Response {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16() });
    (code, Json(body)).into_response()
}

async fn answer(State(server): State<Arc<Server>>, method: Method, uri: Uri, body: Bytes) -> Response {
    if *server.broken.lock() {
        return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
    }
    let path = uri.path().trim_end_matches("/status").to_owned();
    if method != Method::GET {
        server.changes.lock().push(format!("{method} {}", uri.path()));
    }
    let mut objects = server.objects.lock();
    if method == Method::GET && path == CLUSTERS {
        let items: Vec<_> = objects.iter().filter(|(at, _)| at.starts_with(CLUSTERS)).map(|(_, one)| one.clone()).collect();
        let list =
            json!({ "apiVersion": "basalt.storage/v1alpha1", "kind": "StorageClusterList", "metadata": {}, "items": items });
        return Json(list).into_response();
    }
    if method == Method::PATCH {
        let patch = serde_json::from_slice(&body).unwrap();
        merge(objects.entry(path.clone()).or_insert(Value::Null), patch);
    } else if method == Method::DELETE {
        objects.remove(&path);
        return Json(json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })).into_response();
    }
    objects.get(&path).map_or_else(|| status(StatusCode::NOT_FOUND, "NotFound"), |one| Json(one).into_response())
}

/// A server with one new StorageCluster, and the shell that looks after it.
async fn start(more: Value) -> (Arc<Server>, Shell) {
    let mut cluster = json!({
        "apiVersion": "basalt.storage/v1alpha1",
        "kind": "StorageCluster",
        "metadata": { "name": "db", "namespace": "store", "uid": "u", "generation": 1, "resourceVersion": "1" },
        "spec": {
            "agents": { "devices": [{ "path": "/dev/vdb" }] },
            "csi": { "sidecars": { "provisioner": { "image": "p" }, "attacher": { "image": "a" }, "resizer": { "image": "r" } } },
        },
    });
    merge(&mut cluster, more);
    let server = Arc::new(Server::default());
    server.objects.lock().insert(format!("{CLUSTERS}/db"), cluster);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let words = ["basalt", "--namespace", "store", "--image", "basalt:1", "--cluster-domain", "invalid"];
    let args = Line::parse_from(words).operator;
    (server, Shell { client, args, masters: BTreeMap::new(), masters_limit: Duration::from_millis(200) })
}

fn recorded() -> Value {
    json!({ "metadata": { "finalizers": [FINALIZER] }, "status": { "clusterId": "a" } })
}

fn condition(cluster: &Value, kind: &str) -> Value {
    let all = cluster["status"]["conditions"].as_array().unwrap();
    all.iter().find(|one| one["type"] == kind).unwrap()["reason"].clone()
}

#[tokio::test]
async fn a_new_cluster_gets_its_finalizer_before_anything_else() {
    let (server, mut shell) = start(json!({})).await;
    shell.rounds().await;
    assert_eq!(server.taken(), [format!("PATCH {CLUSTERS}/db")]);
    assert_eq!(server.cluster()["metadata"]["finalizers"], json!([FINALIZER]));
    shell.rounds().await;
    let objects = server.objects.lock().clone();
    assert!(objects.contains_key("/apis/apps/v1/namespaces/store/statefulsets/db-master"), "{:?}", objects.keys());
    assert!(!objects.keys().any(|path| path.contains("daemonsets")), "agents wait for the masters: {:?}", objects.keys());
    assert_eq!(condition(&server.cluster(), "Available"), "MastersSilent");
}

#[tokio::test]
async fn a_recorded_cluster_gets_all_its_parts() {
    let (server, mut shell) = start(recorded()).await;
    shell.rounds().await;
    let objects = server.objects.lock().clone();
    for path in [
        "/api/v1/namespaces/store/services/db-masters",
        "/apis/apps/v1/namespaces/store/daemonsets/db-agent",
        "/apis/apps/v1/namespaces/store/deployments/db-csi-controller",
        "/apis/policy/v1/namespaces/store/poddisruptionbudgets/db-master",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/basalt-store-db-csi-controller",
    ] {
        assert!(objects.contains_key(path), "{path}: {:?}", objects.keys());
    }
}

#[tokio::test]
async fn a_deletion_is_refused_while_nobody_knows_of_volumes() {
    let (server, mut shell) = start(recorded()).await;
    merge(
        &mut server.objects.lock().get_mut(&format!("{CLUSTERS}/db")).unwrap()["metadata"],
        json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }),
    );
    shell.rounds().await;
    assert!(!server.taken().iter().any(|change| change.starts_with("DELETE")));
    assert_eq!(server.cluster()["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(condition(&server.cluster(), "Progressing"), "DeletionBlocked");
}

#[tokio::test]
async fn one_that_never_had_agents_is_let_go() {
    let more = json!({ "metadata": { "finalizers": ["other/one", FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let (server, mut shell) = start(more).await;
    shell.rounds().await;
    assert_eq!(server.cluster()["metadata"]["finalizers"], json!(["other/one"]), "others' finalizers stay");
}

#[tokio::test]
async fn trouble_with_the_api_server_changes_nothing() {
    let (server, mut shell) = start(recorded()).await;
    *server.broken.lock() = true;
    shell.rounds().await;
    *server.broken.lock() = false;
    assert!(server.taken().is_empty());
    server.objects.lock().clear();
    shell.rounds().await;
    assert!(server.taken().is_empty(), "an empty list is no reason to do anything");
}
