//! Alive and ready are two things: a process that isn't ready gets no traffic, one that isn't alive gets restarted.

use parking_lot::Mutex;
use std::sync::Arc;

/// All checks of a process.
#[derive(Clone, Debug, Default)]
pub struct Health {
    checks: Arc<Mutex<Vec<Arc<State>>>>,
}

#[derive(Debug)]
struct State {
    name: &'static str,
    problem: Mutex<Option<String>>,
}

/// One condition of being ready. Gone from the list when dropped.
#[derive(Debug)]
pub struct Check {
    state: Arc<State>,
    health: Health,
}

impl Health {
    /// A new condition, not met as yet.
    #[must_use]
    pub fn check(&self, name: &'static str) -> Check {
        let state = Arc::new(State { name, problem: Mutex::new(Some("starting".to_owned())) });
        self.checks.lock().push(Arc::clone(&state));
        Check { state, health: self.clone() }
    }

    /// What keeps the process from being ready: name and reason of each condition that isn't met.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let checks = self.checks.lock();
        checks.iter().filter_map(|check| Some((check.name, check.problem.lock().clone()?))).collect()
    }
}

impl Check {
    /// The condition is met.
    pub fn met(&self) {
        *self.state.problem.lock() = None;
    }

    /// The condition isn't met.
    pub fn failed(&self, reason: &str) {
        *self.state.problem.lock() = Some(reason.to_owned());
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.health.checks.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_every_condition_is_met() {
        let health = Health::default();
        let (one, two) = (health.check("one"), health.check("two"));
        assert_eq!(health.problems().len(), 2);
        one.met();
        two.failed("no leader");
        assert_eq!(health.problems(), [("two", "no leader".to_owned())]);
        drop(two);
        assert!(health.problems().is_empty());
    }
}
