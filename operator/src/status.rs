//! What is said of a StorageCluster.

use crate::deletion::Blocked;
use crate::{Ready, Seen};
use api_crd::StorageClusterStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// All that the status is made from.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Generation of the spec that was applied.
    pub generation: Option<i64>,
    /// What the masters say, if they do.
    pub seen: Option<Seen>,
    /// Pods of each part, by its name; a part that isn't made as yet wants one and has none.
    pub parts: Vec<(&'static str, Ready)>,
    /// Why it may not be deleted, when somebody asked for that.
    pub blocked: Option<Blocked>,
}

/// The next status. What can't be seen now stays as it was last seen, but for the conditions, which say so.
pub fn next(before: &StorageClusterStatus, observed: &Observed, now: &Time) -> StorageClusterStatus {
    let mut status = StorageClusterStatus { observed_generation: observed.generation, ..before.clone() };
    if let Some(seen) = observed.seen.as_ref().filter(|seen| ours(before, seen)) {
        status.cluster_id = Some(seen.cluster.clone());
        status.masters = count(seen.masters);
        status.agents_up = count(seen.agents_up);
        status.volumes = count(seen.volumes);
        status.under_replicated_chunks = count(seen.under_replicated);
    }
    let verdicts = [available(before, observed), progressing(observed), degraded(before, observed)];
    let same = |one: &Condition, two: &Condition| one.type_ == two.type_ && one.status == two.status;
    status.conditions = verdicts
        .map(|verdict| {
            let mut condition = verdict.condition(observed.generation, now);
            if let Some(old) = before.conditions.iter().find(|old| same(old, &condition)) {
                condition.last_transition_time = old.last_transition_time.clone();
            }
            condition
        })
        .into();
    status
}

/// Whether the masters that answer are those on record. Masters that lost their data draw a new id.
fn ours(before: &StorageClusterStatus, seen: &Seen) -> bool {
    before.cluster_id.as_ref().is_none_or(|recorded| *recorded == seen.cluster)
}

fn count(number: u64) -> Option<i64> {
    i64::try_from(number).ok()
}

struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn condition(self, generation: Option<i64>, now: &Time) -> Condition {
        Condition {
            type_: self.kind.to_owned(),
            status: if self.holds { "True" } else { "False" }.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: now.clone(),
        }
    }
}

fn available(before: &StorageClusterStatus, observed: &Observed) -> Verdict {
    let (holds, reason, message) = match &observed.seen {
        None => (false, "MastersSilent", "no master answers".to_owned()),
        Some(seen) if !ours(before, seen) => {
            let message = format!("the masters that answer are of cluster {}: bring back those with the data", seen.cluster);
            (false, "ForeignMasters", message)
        }
        Some(seen) if !seen.led => (false, "NoLeader", "no master leads: a majority of them must be up".to_owned()),
        Some(seen) if seen.agents_up == 0 => (false, "NoAgents", "no agent is up".to_owned()),
        Some(_) => (true, "Serving", "masters and agents answer".to_owned()),
    };
    Verdict { kind: "Available", holds, reason, message }
}

fn progressing(observed: &Observed) -> Verdict {
    let (holds, reason, message) = match &observed.blocked {
        Some(blocked) => (true, "DeletionBlocked", blocked.to_string()),
        None => match missing(observed) {
            waiting if waiting.is_empty() => (false, "Applied", "all that the spec asks for is there".to_owned()),
            waiting => (true, "Waiting", format!("waiting for pods: {waiting}")),
        },
    };
    Verdict { kind: "Progressing", holds, reason, message }
}

fn degraded(before: &StorageClusterStatus, observed: &Observed) -> Verdict {
    let short = observed.seen.as_ref().map_or(0, |seen| seen.under_replicated);
    let (up, known) = observed.seen.as_ref().map_or((0, 0), |seen| (seen.agents_up, seen.agents));
    let waiting = missing(observed);
    let (holds, reason, message) = match &observed.seen {
        None if before.cluster_id.is_some() => (true, "MastersSilent", "no master answers".to_owned()),
        _ if short > 0 => (true, "CopiesMissing", format!("{short} chunks have too few copies")),
        _ if up < known => (true, "AgentsDown", format!("{up} of {known} agents are up")),
        // At the first start nothing is worse than it was.
        _ if !waiting.is_empty() && before.cluster_id.is_some() => (true, "PodsDown", format!("not ready: {waiting}")),
        _ => (false, "Whole", "nothing is missing".to_owned()),
    };
    Verdict { kind: "Degraded", holds, reason, message }
}

fn missing(observed: &Observed) -> String {
    let waiting = observed.parts.iter().filter(|(_, ready)| !ready.whole());
    waiting.map(|(part, ready)| format!("{part} {}/{}", ready.ready, ready.wanted)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn healthy() -> Observed {
        let seen = Seen { cluster: "a".to_owned(), led: true, masters: 3, agents_up: 3, agents: 3, ..Seen::default() };
        let parts = vec![("master", Ready { ready: 3, wanted: 3 })];
        Observed { generation: Some(2), seen: Some(seen), parts, blocked: None }
    }

    fn said(status: &StorageClusterStatus) -> Vec<(String, String)> {
        status.conditions.iter().map(|one| (one.type_.clone(), format!("{} {}", one.status, one.reason))).collect()
    }

    fn pairs(wanted: [&str; 3]) -> Vec<(String, String)> {
        ["Available", "Progressing", "Degraded"]
            .iter()
            .zip(wanted)
            .map(|(&kind, text)| (kind.to_owned(), text.to_owned()))
            .collect()
    }

    #[test]
    fn a_healthy_cluster_is_available() {
        let status = next(&StorageClusterStatus::default(), &healthy(), &at(1));
        assert_eq!(said(&status), pairs(["True Serving", "False Applied", "False Whole"]));
        assert_eq!((status.cluster_id.as_deref(), status.masters, status.observed_generation), (Some("a"), Some(3), Some(2)));
        assert!(status.conditions.iter().all(|one| one.observed_generation == Some(2)));
    }

    #[test]
    fn a_condition_that_holds_on_keeps_its_time() {
        let first = next(&StorageClusterStatus::default(), &healthy(), &at(1));
        let again = next(&first, &healthy(), &at(2));
        assert_eq!(again, first);
        let silent = next(&first, &Observed { seen: None, ..healthy() }, &at(3));
        assert_eq!(said(&silent), pairs(["False MastersSilent", "False Applied", "True MastersSilent"]));
        assert_eq!(silent.conditions[0].last_transition_time, at(3));
        assert_eq!(silent.cluster_id, first.cluster_id, "what was known stays");
    }

    #[test]
    fn masters_with_another_id_never_replace_the_record() {
        let first = next(&StorageClusterStatus::default(), &healthy(), &at(1));
        let mut other = healthy();
        other.seen.as_mut().unwrap().cluster = "b".to_owned();
        let status = next(&first, &other, &at(2));
        assert_eq!(status.cluster_id.as_deref(), Some("a"));
        assert_eq!(said(&status)[0].1, "False ForeignMasters");
    }

    #[test]
    fn what_is_missing_is_named() {
        let before = next(&StorageClusterStatus::default(), &healthy(), &at(1));
        let mut observed = healthy();
        observed.parts.push(("agent", Ready { ready: 1, wanted: 3 }));
        let status = next(&before, &observed, &at(2));
        assert_eq!(status.conditions[1].message, "waiting for pods: agent 1/3");
        assert_eq!(said(&status)[2].1, "True PodsDown");
        observed.blocked = Some(Blocked::Volumes(2));
        assert!(next(&before, &observed, &at(2)).conditions[1].message.starts_with("2 volumes exist: delete"));
    }
}
