//! Who serves, as a pure state machine: never two, and never nobody while somebody wants to and the last one is gone.
//!
//! | state | a new agent asks | the server says drained | the server's connection ends | time passes |
//! |---|---|---|---|---|
//! | nobody serves | gets the session | | | |
//! | one serves | the server is told to stop; the agent waits | noted | nobody serves; unanswered unless drained | |
//! | one serves, one waits | the agent that waited is refused, the new one waits | noted | the waiting agent gets the session | the server is killed, later the agent is refused |

/// A connection, by the number it was accepted with.
pub(crate) type Who = u64;

/// How long a server may take to stop when another wants to serve, in milliseconds; and how long its death may take.
pub(crate) const PATIENCE_MS: u64 = 2_000;

/// What the process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell this server to stop.
    Supersede(Who),
    /// Kill the process of this server.
    Kill(Who),
    /// Give this agent the session; `unanswered`: the last server may have left requests behind.
    Hand { to: Who, unanswered: bool },
    /// Tell this agent that it can't serve.
    Refuse(Who),
}

#[derive(Debug, Clone, Copy)]
struct Serving {
    who: Who,
    pid: i32,
    drained: bool,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    who: Who,
    pid: i32,
    until_ms: u64,
    killed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    serving: Option<Serving>,
    waiting: Option<Waiting>,
    unanswered: bool,
    handed: u64,
}

impl Ledger {
    /// For a session that another holder had: a server has it already, and may die at any time.
    pub(crate) fn taken_over(who: Who, pid: i32) -> Self {
        Ledger { serving: Some(Serving { who, pid, drained: false }), handed: 1, ..Ledger::default() }
    }

    /// How often the session was handed out.
    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    /// Requests may be waiting that a dead server had read.
    pub(crate) fn unanswered(&self) -> bool {
        self.unanswered
    }

    /// An agent wants to serve.
    pub(crate) fn serve(&mut self, who: Who, pid: i32, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(earlier) = self.waiting.take() {
            actions.push(Action::Refuse(earlier.who));
        }
        match self.serving {
            Some(server) if server.who == who => actions.push(Action::Refuse(who)),
            Some(server) => {
                self.waiting = Some(Waiting { who, pid, until_ms: now_ms + PATIENCE_MS, killed: false });
                actions.push(Action::Supersede(server.who));
            }
            None => actions.push(self.hand(who, pid)),
        }
        actions
    }

    fn hand(&mut self, to: Who, pid: i32) -> Action {
        self.serving = Some(Serving { who: to, pid, drained: false });
        self.handed += 1;
        Action::Hand { to, unanswered: std::mem::take(&mut self.unanswered) }
    }

    /// The server has answered all that it read.
    pub(crate) fn drained(&mut self, who: Who) {
        if let Some(server) = self.serving.as_mut().filter(|server| server.who == who) {
            server.drained = true;
        }
    }

    /// A connection ended: whoever it was has closed the session before, or died.
    pub(crate) fn left(&mut self, who: Who) -> Vec<Action> {
        if self.waiting.is_some_and(|waiting| waiting.who == who) {
            self.waiting = None;
        }
        let Some(server) = self.serving.filter(|server| server.who == who) else { return Vec::new() };
        self.serving = None;
        self.unanswered |= !server.drained;
        match self.waiting.take() {
            Some(next) => vec![self.hand(next.who, next.pid)],
            None => Vec::new(),
        }
    }

    /// When [`Ledger::tick`] has something to do.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.waiting.map(|waiting| waiting.until_ms)
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<Action> {
        let (Some(waiting), Some(server)) = (self.waiting, self.serving) else { return Vec::new() };
        if now_ms < waiting.until_ms {
            return Vec::new();
        }
        // A process is not killed for its own sake: two attachments of one agent are its own mistake.
        if waiting.killed || waiting.pid == server.pid {
            self.waiting = None;
            return vec![Action::Refuse(waiting.who)];
        }
        self.waiting = Some(Waiting { until_ms: now_ms + PATIENCE_MS, killed: true, ..waiting });
        vec![Action::Kill(server.who)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_server_that_dies_leaves_its_requests_to_the_next() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.serve(1, 10, 0), [Action::Hand { to: 1, unanswered: false }]);
        assert_eq!(ledger.left(1), []);
        assert_eq!(ledger.serve(2, 11, 0), [Action::Hand { to: 2, unanswered: true }]);
        ledger.drained(2);
        assert_eq!(ledger.left(2), []);
        assert_eq!(ledger.serve(3, 12, 0), [Action::Hand { to: 3, unanswered: false }]);
        assert_eq!(ledger.handed(), 3);
    }

    #[test]
    fn a_server_that_does_not_stop_is_killed_and_then_replaced() {
        let mut ledger = Ledger::default();
        ledger.serve(1, 10, 0);
        assert_eq!(ledger.serve(2, 11, 100), [Action::Supersede(1)]);
        assert_eq!(ledger.tick(100 + PATIENCE_MS - 1), []);
        assert_eq!(ledger.tick(100 + PATIENCE_MS), [Action::Kill(1)]);
        assert_eq!(ledger.left(1), [Action::Hand { to: 2, unanswered: true }]);
        assert_eq!(ledger.deadline_ms(), None);
    }

    #[test]
    fn a_server_that_does_not_even_die_keeps_the_session() {
        let mut ledger = Ledger::default();
        ledger.serve(1, 10, 0);
        ledger.serve(2, 11, 0);
        ledger.tick(PATIENCE_MS);
        assert_eq!(ledger.tick(2 * PATIENCE_MS), [Action::Refuse(2)]);
        assert_eq!(ledger.serve(3, 12, 0), [Action::Supersede(1)]);
    }

    #[test]
    fn an_agent_is_not_killed_for_its_own_second_attachment() {
        let mut ledger = Ledger::default();
        ledger.serve(1, 10, 0);
        ledger.serve(2, 10, 0);
        assert_eq!(ledger.tick(PATIENCE_MS), [Action::Refuse(2)]);
    }

    #[test]
    fn the_latest_agent_waits_and_the_one_before_is_refused() {
        let mut ledger = Ledger::default();
        ledger.serve(1, 10, 0);
        ledger.serve(2, 11, 0);
        assert_eq!(ledger.serve(3, 12, 0), [Action::Refuse(2), Action::Supersede(1)]);
        ledger.left(2);
        assert_eq!(ledger.left(1), [Action::Hand { to: 3, unanswered: true }]);
    }

    proptest! {
        #[test]
        fn two_never_serve_at_once(steps in proptest::collection::vec((0u8..4, 0u64..5), 0..60)) {
            let mut ledger = Ledger::default();
            let mut serving: Option<Who> = None;
            let mut now = 0;
            for (what, who) in steps {
                now += 700;
                let actions = match what {
                    0 => ledger.serve(who, who as i32, now),
                    1 => { ledger.drained(who); Vec::new() }
                    2 => { if serving == Some(who) { serving = None; } ledger.left(who) }
                    _ => ledger.tick(now),
                };
                for action in actions {
                    if let Action::Hand { to, .. } = action {
                        prop_assert_eq!(serving, None);
                        serving = Some(to);
                    }
                }
            }
        }
    }
}
