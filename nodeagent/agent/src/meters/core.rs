//! The threads of the data cores.

use super::Following;
use api_telemetry::table;
use nodeagent_reactor::core::Stats;

/// See the module. For all cores of a process together.
pub(crate) struct CoreMeters {
    polls: Following,
    overruns: Following,
    stalls: Following,
}

impl CoreMeters {
    pub(crate) fn new() -> Self {
        CoreMeters {
            polls: Following::new(table::CORE_POLLS_TOTAL.with(&[])),
            overruns: Following::new(table::CORE_OVERRUNS_TOTAL.with(&[])),
            stalls: Following::new(table::CORE_STALLS_TOTAL.with(&[])),
        }
    }

    /// Takes over what the cores counted.
    pub(crate) fn refresh(&self, cores: impl Iterator<Item = Stats>) {
        let (mut polls, mut overruns, mut stalls) = (0, 0, 0);
        for stats in cores {
            polls += stats.polls;
            overruns += stats.overruns.values().map(|overrun| overrun.count).sum::<u64>();
            stalls += stats.stalls;
        }
        self.polls.follow(polls);
        self.overruns.follow(overruns);
        self.stalls.follow(stalls);
    }
}
