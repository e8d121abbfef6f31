//! How long things take, second by second, for an hour.
//!
//! A [`Recorder`] owns its buckets and is the only one who writes them, so recording is a load and a store. Once a
//! second the book takes the difference to what it saw the second before; nobody is interrupted, nothing is reset, and
//! a recorder that recorded nothing costs one load.

use crate::buckets::{BUCKETS, bucket_of, end_of, quantile};
use parking_lot::Mutex;
use serde::Serialize;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Seconds kept per operation and stage. Only those in which something was recorded count.
const SECONDS_KEPT: usize = 3600;

macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: &[$type] = &[$($type::$variant,)*];

            /// The name in metrics, traces and queries.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }

            /// The one with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == name)
            }
        }
    };
}

names! {
    /// What takes time.
    Operation {
        /// A block read, as the kernel sees it.
        Read = "read",
        /// A block write, as the kernel sees it.
        Write = "write",
        /// A block flush.
        Flush = "flush",
        /// A discard or a write of zeros.
        Discard = "discard",
        /// One append of a stream, until it is committed.
        StreamAppend = "stream_append",
        /// One read of a stream, until verified.
        StreamRead = "stream_read",
        /// A request to append, at its server.
        ServeAppend = "serve_append",
        /// A request to read, at its server.
        ServeRead = "serve_read",
        /// Any other request to a chunk store, at its server.
        ServeOther = "serve_other",
        /// A read of the device.
        DeviceRead = "device_read",
        /// A write of the device, until durable.
        DeviceWrite = "device_write",
        /// A flush of the device.
        DeviceFlush = "device_flush",
        /// A group commit of a chunk store's journal.
        JournalCommit = "journal_commit",
        /// Opening a volume, recovery included.
        VolumeOpen = "volume_open",
        /// Repairing one chunk.
        Repair = "repair",
        /// A call at a master.
        MasterServe = "master_serve",
        /// A command, from its proposal until it is applied.
        RaftCommit = "raft_commit",
        /// A CSI call.
        CsiCall = "csi_call",
        /// Attaching a volume, until its block device is there.
        Attach = "attach",
    }
}

names! {
    /// Part of an operation.
    Stage {
        /// From beginning to end.
        Total = "total",
        /// In the front end: parsing, copying, answering.
        FrontEnd = "front_end",
        /// Waiting for its turn.
        Queue = "queue",
        /// In the stream: until enough copies have answered.
        Stream = "stream",
        /// Under way between nodes: the client's time less the server's.
        Network = "network",
        /// At the chunk store and its device.
        Device = "device",
        /// From the first durable copy until enough of them.
        Commit = "commit",
    }
}

type Key = (Operation, Stage);

/// Records the durations of one stage of one operation. Owned by one thread: not `Sync`, and not shared by cloning.
/// Making one allocates 2 KiB; recording never does.
#[derive(Debug)]
pub struct Recorder {
    cells: Arc<Cells>,
    one_thread: PhantomData<Cell<()>>,
}

#[derive(Debug)]
struct Cells {
    count: AtomicU64,
    nanos: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

impl Recorder {
    /// A recorder whose values show in the process's book.
    #[must_use]
    pub fn new(operation: Operation, stage: Stage) -> Self {
        LatencyBook::global().recorder(operation, stage)
    }

    /// Records one duration.
    pub fn record(&self, duration: Duration) {
        let cells = &*self.cells;
        let bucket = &cells.buckets[bucket_of(duration)];
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // This thread alone writes: no need for an atomic addition.
        bucket.store(bucket.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        cells.nanos.store(cells.nanos.load(Ordering::Relaxed).wrapping_add(nanos), Ordering::Relaxed);
        // Last: whoever sees the count sees the bucket.
        cells.count.store(cells.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// One second of one stage of one operation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Second {
    /// Seconds since 1970.
    pub second: u64,
    /// How many there were.
    pub count: u32,
    /// Half of them took less, in seconds.
    pub p50: f64,
    /// 99 of 100 took less.
    pub p99: f64,
    /// 999 of 1000 took less.
    pub p999: f64,
    /// All took less.
    pub max: f64,
}

/// As kept: bucket numbers say it all.
#[derive(Clone, Copy, Debug)]
struct Compact {
    second: u64,
    count: u32,
    quantiles: [u16; 4],
}

impl Compact {
    fn open(&self) -> Second {
        let [p50, p99, p999, max] = self.quantiles.map(|bucket| end_of(usize::from(bucket)).as_secs_f64());
        Second { second: self.second, count: self.count, p50, p99, p999, max }
    }
}

/// All recorders of a process and their last hour.
#[derive(Debug, Default)]
pub struct LatencyBook {
    pages: Mutex<BTreeMap<Key, Page>>,
}

#[derive(Debug, Default)]
struct Page {
    sources: Vec<Source>,
    /// All that was ever recorded, the recorders that are gone included.
    total: Totals,
    hour: VecDeque<Compact>,
}

#[derive(Debug)]
struct Source {
    cells: Arc<Cells>,
    seen_count: u64,
    seen_nanos: u64,
    seen: Box<[u32; BUCKETS]>,
    /// Values taken from the buckets so far. May be ahead of `seen_count`: a value is in its bucket before it is counted.
    taken: u64,
}

/// A distribution since the process began.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    pub(crate) buckets: Box<[u64; BUCKETS]>,
}

impl Default for Totals {
    fn default() -> Self {
        Totals { count: 0, seconds: 0.0, buckets: Box::new([0; BUCKETS]) }
    }
}

impl LatencyBook {
    /// The process's.
    #[must_use]
    pub fn global() -> &'static LatencyBook {
        static GLOBAL: LatencyBook = LatencyBook { pages: Mutex::new(BTreeMap::new()) };
        &GLOBAL
    }

    /// A recorder whose values show in this book.
    #[must_use]
    pub fn recorder(&self, operation: Operation, stage: Stage) -> Recorder {
        let cells = Arc::new(Cells {
            count: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
        });
        let source = Source { cells: Arc::clone(&cells), seen_count: 0, seen_nanos: 0, seen: Box::new([0; BUCKETS]), taken: 0 };
        self.pages.lock().entry((operation, stage)).or_default().sources.push(source);
        Recorder { cells, one_thread: PhantomData }
    }

    /// Closes a second: takes what was recorded since the last call. `second` is the time since 1970.
    pub fn turn(&self, second: u64) {
        for page in self.pages.lock().values_mut() {
            page.turn(second);
        }
    }

    /// The seconds of one stage of one operation that aren't older than `since`, oldest first.
    #[must_use]
    pub fn seconds(&self, operation: Operation, stage: Stage, since: u64) -> Vec<Second> {
        let pages = self.pages.lock();
        let Some(page) = pages.get(&(operation, stage)) else { return Vec::new() };
        page.hour.iter().filter(|second| second.second >= since).map(Compact::open).collect()
    }

    /// The newest second of every stage of every operation that ran.
    #[must_use]
    pub fn newest(&self) -> Vec<(Operation, Stage, Second)> {
        let pages = self.pages.lock();
        pages.iter().filter_map(|(key, page)| Some((key.0, key.1, page.hour.back()?.open()))).collect()
    }

    /// All that was recorded since the process began.
    pub(crate) fn totals(&self) -> Vec<(Operation, Stage, Totals)> {
        let pages = self.pages.lock();
        pages.iter().filter(|(_, page)| page.total.count > 0).map(|(key, page)| (key.0, key.1, page.total.clone())).collect()
    }
}

impl Page {
    fn turn(&mut self, second: u64) {
        let mut counts = [0_u32; BUCKETS];
        let mut count = 0_u64;
        for source in &mut self.sources {
            if source.cells.count.load(Ordering::Acquire) != source.seen_count {
                count += source.take(&mut counts, &mut self.total);
            }
        }
        // Looked at after it was emptied: a recorder that is gone records no more.
        self.sources.retain(|source| Arc::strong_count(&source.cells) > 1 || source.is_behind());
        if count == 0 {
            return;
        }
        let quantiles = [0.5, 0.99, 0.999, 1.0].map(|share| quantile(&counts, count, share) as u16);
        if self.hour.len() == SECONDS_KEPT {
            self.hour.pop_front();
        }
        self.hour.push_back(Compact { second, count: u32::try_from(count).unwrap_or(u32::MAX), quantiles });
    }
}

impl Source {
    fn is_behind(&self) -> bool {
        self.cells.count.load(Ordering::Acquire) != self.seen_count
    }

    /// Adds what is new to `counts` and `total`; returns how many values that were.
    fn take(&mut self, counts: &mut [u32; BUCKETS], total: &mut Totals) -> u64 {
        self.seen_count = self.cells.count.load(Ordering::Acquire);
        let nanos = self.cells.nanos.load(Ordering::Relaxed);
        total.seconds += Duration::from_nanos(nanos.wrapping_sub(self.seen_nanos)).as_secs_f64();
        self.seen_nanos = nanos;
        let mut taken = 0;
        for (bucket, cell) in self.cells.buckets.iter().enumerate() {
            let now = cell.load(Ordering::Relaxed);
            let new = now.wrapping_sub(self.seen[bucket]);
            if new > 0 {
                self.seen[bucket] = now;
                counts[bucket] += new;
                total.buckets[bucket] += u64::from(new);
                taken += u64::from(new);
            }
        }
        self.taken += taken;
        debug_assert!(self.taken >= self.seen_count, "a value was counted and is in no bucket");
        total.count += taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_taken_before_it_is_counted_is_taken_once() {
        let book = LatencyBook::default();
        let recorder = book.recorder(Operation::Write, Stage::Total);
        let duration = Duration::from_micros(100);
        recorder.record(duration);
        // Another one, as far as its thread comes before it counts it.
        recorder.cells.buckets[bucket_of(duration)].fetch_add(1, Ordering::Relaxed);
        book.turn(1000);
        recorder.cells.count.fetch_add(1, Ordering::Release);
        book.turn(1001);
        recorder.record(duration);
        book.turn(1002);
        let counts: Vec<_> = book.seconds(Operation::Write, Stage::Total, 0).iter().map(|second| second.count).collect();
        assert_eq!(counts, [2, 1]);
    }

    #[test]
    fn a_second_holds_what_was_recorded_in_it_by_all() {
        let book = LatencyBook::default();
        let one = book.recorder(Operation::Write, Stage::Total);
        let other = book.recorder(Operation::Write, Stage::Total);
        for _ in 0..990 {
            one.record(Duration::from_micros(100));
        }
        for _ in 0..10 {
            other.record(Duration::from_millis(200));
        }
        book.turn(1000);
        book.turn(1001);
        one.record(Duration::from_micros(1));
        book.turn(1002);
        let seconds = book.seconds(Operation::Write, Stage::Total, 0);
        assert_eq!(seconds.iter().map(|second| (second.second, second.count)).collect::<Vec<_>>(), [(1000, 1000), (1002, 1)]);
        assert!((0.0001..0.00011).contains(&seconds[0].p50), "{seconds:?}");
        assert!((0.0001..0.00011).contains(&seconds[0].p99), "{seconds:?}");
        assert!((0.2..0.22).contains(&seconds[0].p999), "{seconds:?}");
        assert!(book.seconds(Operation::Write, Stage::Queue, 0).is_empty());
        assert_eq!(book.totals()[0].2.count, 1001);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let book = LatencyBook::default();
        let recorder = book.recorder(Operation::Read, Stage::Device);
        for second in 0..4000 {
            recorder.record(Duration::from_micros(5));
            book.turn(second);
        }
        let seconds = book.seconds(Operation::Read, Stage::Device, 0);
        assert_eq!((seconds.len(), seconds[0].second), (3600, 400));
        assert_eq!(book.seconds(Operation::Read, Stage::Device, 3990).len(), 10);
    }

    #[test]
    fn what_a_dropped_recorder_recorded_is_not_lost() {
        let book = LatencyBook::default();
        let recorder = book.recorder(Operation::Read, Stage::Total);
        recorder.record(Duration::from_micros(5));
        drop(recorder);
        book.turn(7);
        book.turn(8);
        assert_eq!(book.seconds(Operation::Read, Stage::Total, 0).len(), 1);
        assert!(book.pages.lock()[&(Operation::Read, Stage::Total)].sources.is_empty());
    }

    #[test]
    fn recorders_on_other_threads_lose_nothing_while_seconds_turn() {
        let book = LatencyBook::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let recorder = book.recorder(Operation::Write, Stage::Queue);
                scope.spawn(move || {
                    for number in 0..100_000 {
                        recorder.record(Duration::from_nanos(number));
                    }
                });
            }
            (0..50).for_each(|second| book.turn(second));
        });
        book.turn(99);
        assert_eq!(book.totals()[0].2.count, 300_000);
    }
}
