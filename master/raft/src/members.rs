//! Who takes part, and how that changes: a new member first follows and catches up, then votes; an old one goes by a
//! joint majority. What would leave the group without a majority is refused.

use crate::error::GroupError;
use crate::group::{Group, write_error};
use crate::network::{cluster_bytes, hello};
use openraft::async_runtime::WatchReceiver;
use openraft::{BasicNode, ChangeMembers, Instant};
use std::collections::BTreeSet;

/// A member as the group knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// `host:port`.
    pub address: String,
    /// It counts for a majority. One that doesn't is catching up.
    pub voter: bool,
    /// It leads.
    pub leader: bool,
    /// Last entry it is known to have; only the leader knows.
    pub matched_index: Option<u64>,
    /// It was heard within two election times; only the leader knows, others say `true`.
    pub heard: bool,
}

impl Group {
    /// Everybody in the group, ordered by id.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let inner = self.inner();
        let metrics = inner.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let bound = inner.timing.election_max * 2;
        let heard = |id: u64| match &metrics.heartbeat {
            None => true,
            Some(_) if id == inner.id => true,
            Some(acks) => acks.get(&id).copied().flatten().is_some_and(|at| at.elapsed() < bound),
        };
        let matched = |id: u64| match &metrics.replication {
            Some(_) if id == inner.id => metrics.last_log_index,
            replication => replication.as_ref().and_then(|all| all.get(&id).copied().flatten()).map(|id| id.index),
        };
        membership
            .nodes()
            .map(|(id, node)| Member {
                id: *id,
                address: node.addr.clone(),
                voter: voters.contains(id),
                leader: metrics.current_leader == Some(*id),
                matched_index: matched(*id),
                heard: heard(*id),
            })
            .collect()
    }

    /// Adds a member that was started with an empty directory, or gives a known one its new address. Answers once it
    /// votes.
    pub async fn add_member(&self, id: u64, address: &str) -> Result<Vec<Member>, GroupError> {
        self.must_lead()?;
        let members = self.members();
        if let Some(other) = members.iter().find(|member| member.address == address && member.id != id) {
            return Err(GroupError::Refused(format!("address: {address} is member {}'s", other.id)));
        }
        if members.iter().any(|member| member.id == id && member.address == address && member.voter) {
            return Ok(members);
        }
        self.check_candidate(id, address).await?;
        let raft = &self.inner().raft;
        if let Some(known) = members.iter().find(|member| member.id == id && member.address != address) {
            if known.voter {
                return Err(GroupError::Refused(format!(
                    "member {id} votes at {}: remove it before it is added at another address",
                    known.address
                )));
            }
            let change = ChangeMembers::SetNodes([(id, BasicNode::new(address))].into());
            raft.change_membership(change, true).await.map_err(write_error)?;
        } else {
            raft.add_learner(id, BasicNode::new(address), true).await.map_err(write_error)?;
        }
        raft.change_membership(ChangeMembers::AddVoterIds([id].into()), true).await.map_err(write_error)?;
        Ok(self.members())
    }

    /// Whoever listens there must be that member, and must belong to this cluster or to none.
    async fn check_candidate(&self, id: u64, address: &str) -> Result<(), GroupError> {
        let found = hello(address).await?;
        if found.member != id {
            return Err(GroupError::Refused(format!("id: member {} listens at {address}, not {id}", found.member)));
        }
        let ours = cluster_bytes(self.cluster());
        if !found.cluster.is_empty() && found.cluster != ours {
            return Err(GroupError::Refused(format!(
                "member {id} at {address} belongs to another cluster: start it with an empty directory"
            )));
        }
        Ok(())
    }

    /// Removes a member. When that is this one, it gives the lead away first and answers [`GroupError::NotLeader`]: the
    /// next leader removes it.
    pub async fn remove_member(&self, id: u64) -> Result<Vec<Member>, GroupError> {
        self.must_lead()?;
        let members = self.members();
        let Some(member) = members.iter().find(|member| member.id == id) else { return Ok(members) };
        if member.voter {
            self.await_majority(id).await?;
        }
        if id == self.id() {
            self.hand_over(self.timing().election_max * 2).await;
            return Err(GroupError::NotLeader { leader: self.leader_address() });
        }
        let raft = &self.inner().raft;
        if member.voter {
            let voters: BTreeSet<u64> =
                members.iter().filter(|other| other.voter && other.id != id).map(|other| other.id).collect();
            raft.change_membership(ChangeMembers::ReplaceAllVoters(voters), false).await.map_err(write_error)?;
        } else {
            raft.change_membership(ChangeMembers::RemoveNodes([id].into()), false).await.map_err(write_error)?;
        }
        Ok(self.members())
    }

    /// Like [`check_majority`], but a leader that has only just been elected gets the time to hear from the others.
    async fn await_majority(&self, without: u64) -> Result<(), GroupError> {
        let (every, bound) = (self.timing().election_max / 4, self.timing().election_max * 3);
        let patient = async {
            while check_majority(&self.members(), without).is_err() && self.is_leader() {
                tokio::time::sleep(every).await;
            }
        };
        // Whether it took too long is seen by the last look.
        let _ = tokio::time::timeout(bound, patient).await;
        self.must_lead()?;
        check_majority(&self.members(), without)
    }

    fn must_lead(&self) -> Result<(), GroupError> {
        if self.is_leader() { Ok(()) } else { Err(GroupError::NotLeader { leader: self.leader_address() }) }
    }
}

/// The voters that stay and were heard lately must be a majority of those that stay.
fn check_majority(members: &[Member], without: u64) -> Result<(), GroupError> {
    let stay: Vec<&Member> = members.iter().filter(|member| member.voter && member.id != without).collect();
    if stay.is_empty() {
        return Err(GroupError::Refused(format!("member {without} is the last one: a group without members is gone")));
    }
    let alive = stay.iter().filter(|member| member.heard).count();
    if alive * 2 <= stay.len() {
        return Err(GroupError::Refused(format!(
            "without member {without} only {alive} of {} members answer, which is no majority: bring one back or add one first",
            stay.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, heard: bool) -> Member {
        Member { id, address: String::new(), voter: true, leader: false, matched_index: None, heard }
    }

    #[test]
    fn a_removal_that_would_lose_the_majority_is_refused() {
        let members = [member(1, true), member(2, true), member(3, false)];
        assert!(check_majority(&members, 3).is_ok(), "the dead one may go");
        assert!(check_majority(&members, 2).is_err(), "1 of 2 is no majority");
        assert!(check_majority(&[member(1, true)], 1).is_err(), "the last one stays");
    }
}
