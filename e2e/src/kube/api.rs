//! The API server, for tests that are plain functions.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ClusterResourceScope, NamespaceResourceScope, Resource};
use serde::de::DeserializeOwned;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails.
pub const PATIENCE: Duration = Duration::from_secs(180);
const STEP: Duration = Duration::from_millis(200);

/// Made by [`super::Lab::api`], after the thread entered the lab's network.
pub struct Api {
    runtime: tokio::runtime::Runtime,
    client: kube::Client,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

impl Api {
    pub(crate) fn connect(kubectl: PathBuf, kubeconfig: &Path) -> Result<Self> {
        // On this thread alone: it is in the lab's network, and others are not.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
            anyhow::Ok(kube::Client::try_from(config)?)
        })?;
        Ok(Api { runtime, client, kubectl, kubeconfig: kubeconfig.to_owned() })
    }

    /// Waits for an answer.
    pub fn run<T, E: Into<anyhow::Error>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T> {
        self.runtime.block_on(call).map_err(Into::into)
    }

    /// Objects of a namespace.
    #[must_use]
    pub fn namespaced<K>(&self, namespace: &str) -> kube::Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        kube::Api::namespaced(self.client.clone(), namespace)
    }

    /// Objects that belong to no namespace.
    #[must_use]
    pub fn cluster<K>(&self) -> kube::Api<K>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        kube::Api::all(self.client.clone())
    }

    /// Makes an object out of JSON, unless it is there.
    pub fn create<K>(&self, api: &kube::Api<K>, object: serde_json::Value) -> Result<()>
    where
        K: Resource + DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).context("the object")?;
        match self.runtime.block_on(api.create(&Default::default(), &object)) {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    /// Deletes an object and waits until it is gone.
    pub fn delete<K>(&self, api: &kube::Api<K>, name: &str) -> Result<()>
    where
        K: Resource + DeserializeOwned + Clone + std::fmt::Debug,
    {
        match self.runtime.block_on(api.delete(name, &Default::default())) {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            result => drop(result?),
        }
        self.wait(&format!("the end of {name}"), || Ok(self.run(api.get_opt(name))?.is_none()))
    }

    /// Waits for a condition; gives up after [`PATIENCE`].
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        self.wait_for(what, PATIENCE, &mut condition)
    }

    /// Waits for a condition for so long and no longer. Errors of the API server count as "not yet".
    pub fn wait_for(&self, what: &str, limit: Duration, condition: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        #[expect(clippy::disallowed_methods, reason = "a test waits in real time")]
        let start = Instant::now();
        loop {
            let last = condition();
            if matches!(last, Ok(true)) {
                return Ok(());
            }
            if start.elapsed() > limit {
                match last {
                    Ok(_) => bail!("gave up waiting for {what}"),
                    Err(error) => return Err(error.context(format!("gave up waiting for {what}"))),
                }
            }
            self.runtime.block_on(tokio::time::sleep(STEP));
        }
    }

    /// Waits until all these pods are Ready, and at least `count` of them are there.
    pub fn wait_ready(&self, namespace: &str, labels: &str, count: usize) -> Result<()> {
        let pods = self.namespaced::<Pod>(namespace);
        let selected = kube::api::ListParams::default().labels(labels);
        self.wait(&format!("{count} ready pods {labels} in {namespace}"), || {
            let found = self.run(pods.list(&selected))?.items;
            Ok(found.len() >= count && found.iter().all(is_ready))
        })
    }

    /// Waits until this pod is Ready.
    pub fn wait_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let pods = self.namespaced::<Pod>(namespace);
        self.wait(&format!("pod {name} to be ready"), || Ok(self.run(pods.get_opt(name))?.is_some_and(|pod| is_ready(&pod))))
    }

    /// Says whether a node is Ready.
    pub fn is_node_ready(&self, name: &str) -> Result<bool> {
        let node = self.run(self.cluster::<Node>().get_opt(name))?;
        let conditions = node.and_then(|node| node.status).and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
    }

    /// Runs kubectl.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        crate::run(command)
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("kubectl has an input")?.write_all(manifests.as_bytes())?;
        let output = child.wait_with_output()?;
        anyhow::ensure!(output.status.success(), "kubectl apply failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Runs a shell command in a pod's first container.
    pub fn shell(&self, namespace: &str, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", "-n", namespace, pod, "--", "/bin/sh", "-ec", script])
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}
