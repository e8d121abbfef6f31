//! The operator: makes a Basalt out of a StorageCluster, and says in its status how that one is.
//!
//! Contract: for each StorageCluster the same five steps, again and again: observe, validate, build, apply, status. What to
//! build and what to say are pure functions ([`build`], [`status`], [`deletion`]); the shell ([`run`]) asks and applies.
//! Never: nothing is deleted because something could not be seen. Trouble with the API server or with the masters ends a
//! round and changes nothing.

pub mod build;
pub mod deletion;
mod shell;
pub mod status;

pub use shell::{OperatorArgs, RunError, run};

/// What the masters say of their cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Its id (a UUID).
    pub cluster: String,
    /// Whether a master leads.
    pub led: bool,
    /// Members of the Raft group.
    pub masters: u64,
    /// Nodes whose agent beats.
    pub agents_up: u64,
    /// Nodes that the masters know.
    pub agents: u64,
    /// Volumes that they know.
    pub volumes: u64,
    /// Chunks with fewer copies than they should have.
    pub under_replicated: u64,
}

/// How many pods of one kind are ready, and how many should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// That are.
    pub ready: i64,
    /// That should be.
    pub wanted: i64,
}

impl Ready {
    /// Whether none is missing.
    pub fn whole(self) -> bool {
        self.ready >= self.wanted
    }
}
