//! What must hold in every run, one file for each invariant.

mod blocks;
mod committed;
mod copies;
mod leaks;
mod one_writer;
mod sealed;

pub use blocks::Blocks;
pub(crate) use blocks::Stamp;
pub use committed::Committed;
pub(crate) use committed::{Unit, bytes_of};
pub(crate) use copies::check_copies;
pub(crate) use leaks::check_leaks;
pub use one_writer::OneWriter;
pub use sealed::Seals;

/// All checkers of a run, and what they found.
#[derive(Debug, Default)]
pub struct Checks {
    /// See [`Committed`].
    pub committed: Committed,
    /// See [`OneWriter`].
    pub one_writer: OneWriter,
    /// See [`Blocks`].
    pub blocks: Blocks,
    /// See [`Seals`].
    pub seals: Seals,
    failures: Vec<String>,
}

/// Findings kept; the first ones say it all.
const FAILURES_MAX: usize = 20;

impl Checks {
    /// Notes a broken invariant.
    pub fn fail(&mut self, what: String) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(what);
        }
    }

    /// Takes what was found.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }
}
