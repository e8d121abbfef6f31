//! Records single operations of a volume for a while, on demand. The same recording is at `/debug/trace`, and goes to a
//! collector as spans.

use crate::meters::Spans;
use api_types::VolumeId;
use std::fmt::Write as _;
use std::time::Duration;

/// What was recorded.
pub(crate) struct Recorded {
    /// Operations that were slow enough; more than are kept.
    pub(crate) operations: u64,
    /// Those that are kept, a line each.
    pub(crate) text: String,
}

/// Records every operation of `volume` that takes at least `threshold`, for `duration`, which `end` waits for.
pub(crate) async fn record(
    spans: &Spans,
    volume: VolumeId,
    duration: Duration,
    threshold: Duration,
    end: impl Future<Output = ()>,
) -> Recorded {
    let hub = spans.hub();
    hub.start(volume, duration, threshold);
    end.await;
    hub.stop(volume);
    spans.flush();
    let kept = hub.kept(volume);
    let mut text = String::new();
    for operation in &kept {
        // Writing to a string doesn't fail.
        let _ = writeln!(text, "{operation}");
    }
    let operations = hub.seen(volume);
    if operations > kept.len() as u64 {
        let _ = writeln!(text, "... and {} before these", operations - kept.len() as u64);
    }
    Recorded { operations, text }
}
