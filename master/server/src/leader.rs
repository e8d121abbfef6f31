//! What only the leader does: watches who beats, and plans repairs.

use crate::meters::Meters;
use api_telemetry::{Operation, Recorder, Stage};
use api_types::RequestId;
use api_types::master::NodeReport;
use master_raft::{Group, GroupError};
use master_state::{Body, Command, Liveness, LivenessConfig, Outcome, State};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// How often silence is judged and repairs are planned.
const LOOK: Duration = Duration::from_secs(1);

/// How often a follower looks after its meters.
const FOLLOWER_LOOK: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Leader {
    config: LivenessConfig,
    origin: Instant,
    liveness: Mutex<Liveness>,
    commits: Mutex<Recorder>,
}

impl Leader {
    pub(crate) fn new(config: LivenessConfig) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the origin of this process's monotonic time")]
        let origin = Instant::now();
        let commits = Mutex::new(Recorder::new(Operation::RaftCommit, Stage::Total));
        Leader { config, origin, liveness: Mutex::new(Liveness::new(config, Duration::ZERO)), commits }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Commits a command, and takes note of how long that took.
    pub(crate) async fn commit(&self, group: &Group, command: Command) -> Result<Outcome, GroupError> {
        let began = self.now();
        let outcome = group.propose(command).await;
        self.commits.lock().record(self.now().saturating_sub(began));
        outcome
    }

    /// A node was heard.
    pub(crate) fn beat(&self, report: &NodeReport) {
        let now = self.now();
        self.liveness.lock().beat(report, now);
    }

    /// How long the answer to a beat lets a node go on without another.
    pub(crate) fn lease_ms(&self) -> u64 {
        u64::try_from(self.config.lost_after.as_millis()).unwrap_or(u64::MAX)
    }

    /// How long each node has been silent, in ms.
    pub(crate) fn silence_ms(&self, node: &api_types::NodeName) -> u64 {
        let now = self.now();
        u64::try_from(self.liveness.lock().silence(node, now).as_millis()).unwrap_or(u64::MAX)
    }

    fn start_afresh(&self) {
        let now = self.now();
        *self.liveness.lock() = Liveness::new(self.config, now);
    }

    fn judge(&self, state: &State) -> Option<Body> {
        let now = self.now();
        self.liveness.lock().transitions(state, now)
    }
}

/// Milliseconds since 1970: goes into commands as their time, which nothing depends on to go forward.
pub(crate) fn wall_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the one place where the masters read the wall clock")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Runs until `stop` changes; does something only while this member leads.
pub(crate) async fn run(group: Group, leader: Arc<Leader>, first: Body, mut stop: watch::Receiver<bool>) {
    let mut changes = group.watch();
    let mut led = false;
    let meters = Meters::new();
    loop {
        let leads = group.is_leader();
        meters.refresh(&group);
        if leads {
            if !led {
                leader.start_afresh();
                tracing::info!("this master leads");
            }
            if group.read(State::cluster).is_none() {
                propose(&group, first.clone()).await;
            }
            look(&group, &leader).await;
        }
        led = leads;
        // A follower wakes for its meters alone.
        let pause = tokio::time::sleep(if leads { LOOK } else { FOLLOWER_LOOK });
        tokio::select! {
            biased;
            _ = stop.changed() => return,
            goes_on = changes.changed() => if !goes_on { return },
            () = pause => {}
        }
    }
}

async fn look(group: &Group, leader: &Leader) {
    if let Some(body) = group.read(|state| leader.judge(state)) {
        propose(group, body).await;
    }
    let at_ms = wall_ms();
    if group.read(|state| state.repairs_wanted(at_ms)) {
        propose(group, Body::PlanRepairs).await;
    }
}

async fn propose(group: &Group, body: Body) {
    let command = Command { request_id: RequestId(0), at_ms: wall_ms(), seed: rand::random(), body };
    match group.propose(command).await {
        Ok(outcome) => {
            for event in outcome.events {
                tracing::info!(?event, "the cluster changed");
            }
            if let Err(error) = outcome.reply {
                tracing::error!(%error, "the leader's own command was refused");
            }
        }
        // Lost the lead meanwhile: the next leader will see the same.
        Err(error) => tracing::debug!(%error, "the leader's own command was not applied"),
    }
}
