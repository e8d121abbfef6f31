//! A whole cluster on one thread and one seed: real engines on devices that forget and tear, the real stream client, the
//! real state of the masters, and between them a network and a clock that are only simulated.
//!
//! ```text
//!   writers ─▶ client-stream ─▶ network (delays, losses, partitions) ─▶ nodeagent-engine ─▶ Faulty(Memory)
//!                   └────────▶ masters (latency, silence, lost answers) ─▶ master-state
//! ```
//! A run is a pure function of its seed: the same seed gives the same story, word for word. What must hold is in
//! [`check`], one file for each invariant:
//!
//! | checker | what must hold |
//! |---|---|
//! | `check::committed` | a unit that was acknowledged is there after every takeover, at its place, with its bytes |
//! | `check::one_writer` | what is appended after a newer writer has recovered is never acknowledged |
//! | `check::blocks` | a block of a volume reads as its last acknowledged write, or as one beside it (every third seed) |
//! | `check::leaks` | in the end no device holds a chunk that the masters don't know there |
//! | `check::copies` | in the end all whole copies of a sealed chunk are the same, and every chunk has all its copies |

pub mod check;
mod clock;
mod disk;
mod faults;
mod masters;
mod network;
mod node;
mod process;
mod run;
mod world;
mod writer;

pub use run::{Outcome, run};

/// Faults in a run, unless told otherwise.
pub const STEPS: u64 = 12;

/// The command that runs a seed again and tells its story.
#[must_use]
pub fn replay(seed: u64, steps: u64) -> String {
    format!("cargo run -p sim -- --seed {seed} --steps {steps} --story")
}
