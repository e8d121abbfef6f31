//! What is there.

use super::{RoundError, api};
use crate::build::Plan;
use crate::{Ready, Seen};
use api_wire::master_client::MasterConnection;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::{Api, Client};

/// What the masters say; `None` while they don't.
pub(super) async fn masters(masters: &MasterConnection) -> Option<Seen> {
    let cluster = masters.cluster().await;
    let status = masters.status().await;
    match cluster.and_then(|cluster| Ok((cluster, status?))) {
        Ok((cluster, status)) => {
            let up = status.nodes.iter().filter(|node| node.liveness == "up").count();
            Some(Seen {
                cluster: cluster.to_string(),
                led: status.leader.is_some(),
                masters: status.members.len() as u64,
                agents_up: up as u64,
                agents: status.nodes.len() as u64,
                volumes: status.volumes,
                under_replicated: status.chunks.map_or(0, |chunks| chunks.under_replicated),
            })
        }
        Err(error) => {
            tracing::debug!(%error, "the masters don't answer");
            None
        }
    }
}

/// Pods of each part.
pub(super) async fn parts(client: &Client, plan: &Plan<'_>) -> Result<Vec<(&'static str, Ready)>, RoundError> {
    let named = |part: &str| format!("{}-{part}", plan.name);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), plan.namespace);
    let set = sets.get_opt(&named("master")).await.map_err(api("looking at the masters"))?;
    let ready = set.and_then(|set| set.status).and_then(|status| status.ready_replicas).unwrap_or(0);
    let mut parts = vec![("master", pods(ready, plan.cluster.spec.masters.replicas))];
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), plan.namespace);
    for part in ["keeper", "agent", "csi-node"] {
        let set = daemons.get_opt(&named(part)).await.map_err(api(format!("looking at the {part} pods")))?;
        let counts = set.and_then(|set| set.status).map(|status| (status.number_ready, status.desired_number_scheduled));
        // One that isn't made as yet lacks at least one pod.
        let (ready, wanted) = counts.unwrap_or((0, 1));
        parts.push((part, pods(ready, wanted)));
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), plan.namespace);
    let deployment = deployments.get_opt(&named("csi-controller")).await.map_err(api("looking at the CSI controller"))?;
    let ready = deployment.and_then(|one| one.status).and_then(|status| status.ready_replicas).unwrap_or(0);
    parts.push(("csi-controller", pods(ready, 1)));
    Ok(parts)
}

fn pods(ready: i32, wanted: i32) -> Ready {
    Ready { ready: i64::from(ready), wanted: i64::from(wanted) }
}
