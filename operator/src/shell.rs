//! The shell: asks the API server and the masters, and applies what the pure parts have made.

mod observe;

use crate::build::Plan;
use crate::deletion::{self, FINALIZER};
use crate::status::{self, Observed};
use api_crd::{StorageCluster, StorageClusterStatus};
use api_wire::master_client::{ConnectError, ConnectionOptions, MasterConnection};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

/// Name under which fields are applied.
const MANAGER: &str = "basalt-operator";
/// What masters may take to answer.
const MASTERS_LIMIT: Duration = Duration::from_secs(5);

/// Flags of `basalt operator`.
#[derive(Debug, Clone, clap::Args)]
pub struct OperatorArgs {
    /// Namespace whose StorageClusters it looks after.
    #[arg(long, env = "BASALT_NAMESPACE")]
    pub namespace: String,
    /// Name of this process in logs and metrics: its pod.
    #[arg(long, env = "BASALT_IDENTITY", default_value = "operator")]
    pub identity: String,
    /// Image of Basalt for StorageClusters that name none: its own.
    #[arg(long, env = "BASALT_IMAGE")]
    pub image: String,
    /// Domain of the Kubernetes cluster.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Seconds between two looks at a StorageCluster.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub interval: u64,
    /// Logs, metrics and traces.
    #[command(flatten)]
    pub telemetry: api_telemetry::TelemetryArgs,
}

/// Why the operator can't start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No way to the API server.
    #[error("no way to the API server: {0}")]
    Client(#[source] Box<kube::Error>),
    /// Signals can't be waited for.
    #[error("could not wait for signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// Why a round ended early. The next one begins anew.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{what}: {source}")]
    Api { what: String, source: Box<kube::Error> },
    #[error("the StorageCluster has no {0}")]
    Incomplete(&'static str),
    #[error("an object that was made can't be applied: {0}")]
    Object(#[from] serde_json::Error),
    #[error("no way to the masters: {0}")]
    Masters(#[from] ConnectError),
}

fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> RoundError {
    move |source| RoundError::Api { what: what.into(), source: Box::new(source) }
}

/// Looks after the StorageClusters of a namespace until a signal ends it.
pub async fn run(args: OperatorArgs) -> Result<(), RunError> {
    let client = Client::try_default().await.map_err(|error| RunError::Client(Box::new(error)))?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut shell = Shell { client, args, masters: BTreeMap::new(), masters_limit: MASTERS_LIMIT };
    // A round may be left at any point, as if the process had died there: the next one begins anew.
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
        never = shell.work() => match never {},
    }
}

struct Shell {
    client: Client,
    args: OperatorArgs,
    /// Ways to masters, by their addresses. One for each StorageCluster that is there.
    masters: BTreeMap<Vec<String>, MasterConnection>,
    /// How long masters may take to answer before they count as silent.
    masters_limit: Duration,
}

impl Shell {
    async fn work(&mut self) -> Infallible {
        loop {
            self.rounds().await;
            tokio::time::sleep(Duration::from_secs(self.args.interval)).await;
        }
    }

    /// One round for every StorageCluster.
    async fn rounds(&mut self) {
        let clusters = match self.clusters().list(&ListParams::default()).await {
            Ok(clusters) => clusters.items,
            Err(error) => {
                tracing::warn!(%error, "could not list StorageClusters");
                return;
            }
        };
        for cluster in clusters {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            if let Err(error) = self.round(&name, &cluster).await {
                tracing::warn!(cluster = name, %error, "a round ended early");
            }
        }
    }

    fn clusters(&self) -> Api<StorageCluster> {
        Api::namespaced(self.client.clone(), &self.args.namespace)
    }

    async fn round(&mut self, name: &str, cluster: &StorageCluster) -> Result<(), RoundError> {
        let args = self.args.clone();
        let uid = cluster.metadata.uid.as_deref().ok_or(RoundError::Incomplete("uid"))?;
        let plan = Plan { name, namespace: &args.namespace, uid, cluster, image: &args.image, domain: &args.cluster_domain };
        let before = cluster.status.clone().unwrap_or_default();
        let recorded = before.cluster_id.as_deref();
        let has_finalizer = finalizers(cluster).iter().any(|finalizer| finalizer == FINALIZER);
        let masters = self.masters(plan.masters())?;
        let mut observed = Observed { generation: cluster.metadata.generation, ..Observed::default() };
        if cluster.metadata.deletion_timestamp.is_some() {
            if !has_finalizer {
                return Ok(());
            }
            observed.seen = observe::masters(&masters).await;
            match deletion::judge(recorded, observed.seen.as_ref()) {
                Ok(()) => return self.let_go(&plan).await,
                Err(blocked) => observed.blocked = Some(blocked),
            }
        } else if has_finalizer {
            observed.seen = observe::masters(&masters).await;
        } else {
            let mut all = finalizers(cluster).to_vec();
            all.push(FINALIZER.to_owned());
            // What it was when we looked goes with it: the list is not overwritten if it has changed.
            return self.set_finalizers(cluster, all).await;
        }
        // Also while a deletion is refused: the volumes need their cluster as before.
        for object in plan.objects(recorded) {
            self.apply(&object).await?;
        }
        observed.parts = observe::parts(&self.client, &plan).await?;
        self.say(name, &before, &observed).await
    }

    fn masters(&mut self, addresses: Vec<String>) -> Result<MasterConnection, RoundError> {
        if let Some(known) = self.masters.get(&addresses) {
            return Ok(known.clone());
        }
        let options = ConnectionOptions { call_limit: self.masters_limit, ..ConnectionOptions::default() };
        let connection = MasterConnection::connect(addresses.clone(), options)?;
        self.masters.insert(addresses, connection.clone());
        Ok(connection)
    }

    /// Server-side apply: our fields are as we want them, others' stay.
    async fn apply(&self, object: &Value) -> Result<(), RoundError> {
        let typed: DynamicObject = serde_json::from_value(object.clone())?;
        let types = typed.types.clone().ok_or(RoundError::Incomplete("kind"))?;
        let kind = GroupVersionKind::try_from(&types).map_err(|_| RoundError::Incomplete("apiVersion"))?;
        let resource = ApiResource::from_gvk(&kind);
        let name = typed.metadata.name.clone().ok_or(RoundError::Incomplete("name"))?;
        let objects: Api<DynamicObject> = match &typed.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let params = PatchParams::apply(MANAGER).force();
        let applied = objects.patch(&name, &params, &Patch::Apply(object)).await;
        applied.map(drop).map_err(api(format!("applying {} {name}", types.kind)))
    }

    async fn say(&self, name: &str, before: &StorageClusterStatus, observed: &Observed) -> Result<(), RoundError> {
        let status = status::next(before, observed, &Time(Timestamp::now()));
        if status == *before {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "status": status }));
        let said = self.clusters().patch_status(name, &PatchParams::default(), &patch).await;
        said.map(drop).map_err(api("writing the status"))
    }

    /// Removes what Kubernetes doesn't remove with the StorageCluster, then lets that go.
    async fn let_go(&mut self, plan: &Plan<'_>) -> Result<(), RoundError> {
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        match bindings.delete(&plan.binding_name(), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(api("deleting the ClusterRoleBinding")(error)),
        }
        self.masters.remove(&plan.masters());
        let rest = finalizers(plan.cluster).iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
        self.set_finalizers(plan.cluster, rest).await
    }

    async fn set_finalizers(&self, cluster: &StorageCluster, all: Vec<String>) -> Result<(), RoundError> {
        let name = cluster.metadata.name.as_deref().ok_or(RoundError::Incomplete("name"))?;
        let version = cluster.metadata.resource_version.as_deref().ok_or(RoundError::Incomplete("resourceVersion"))?;
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": all, "resourceVersion": version } }));
        let patched = self.clusters().patch(name, &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(api("setting the finalizers"))
    }
}

fn finalizers(cluster: &StorageCluster) -> &[String] {
    cluster.metadata.finalizers.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
