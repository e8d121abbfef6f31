//! Records single operations of a volume for a while, on demand.

use client_volume::{Trace, Volume};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

/// The most operations that are kept; the rest are counted.
const KEPT_MAX: usize = 10_000;

/// What was recorded.
pub(crate) struct Recorded {
    pub(crate) operations: u64,
    pub(crate) text: String,
}

#[derive(Default)]
struct Tape {
    seen: u64,
    kept: Vec<Trace>,
}

/// Records every operation of `volume` that takes at least `threshold`, until `end` is ready.
pub(crate) async fn record(volume: &Volume, threshold: Duration, end: impl Future<Output = ()>) -> Recorded {
    let tape = Rc::new(RefCell::new(Tape::default()));
    let hook = {
        let tape = Rc::clone(&tape);
        Rc::new(move |trace: &Trace| {
            if trace.throttled + trace.queued + trace.stream < threshold {
                return;
            }
            let mut tape = tape.borrow_mut();
            tape.seen += 1;
            if tape.kept.len() < KEPT_MAX {
                tape.kept.push(*trace);
            }
        })
    };
    volume.set_trace(Some(hook));
    end.await;
    volume.set_trace(None);
    let tape = tape.borrow();
    Recorded { operations: tape.seen, text: print(&tape) }
}

fn print(tape: &Tape) -> String {
    let mut text = String::from("    start ms  operation      offset     length  throttled us  queued us  stream us  ok\n");
    for trace in &tape.kept {
        // Writing to a string doesn't fail.
        let _ = writeln!(
            text,
            "{:12.3}  {:12} {:10} {:10} {:13} {:10} {:10}  {}",
            trace.start.as_secs_f64() * 1e3,
            trace.operation.as_str(),
            trace.offset,
            trace.length,
            trace.throttled.as_micros(),
            trace.queued.as_micros(),
            trace.stream.as_micros(),
            if trace.ok { "yes" } else { "NO" },
        );
    }
    if tape.seen > tape.kept.len() as u64 {
        let _ = writeln!(text, "... and {} more", tape.seen - tape.kept.len() as u64);
    }
    text
}
