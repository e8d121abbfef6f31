//! The client: what all streams of one core share.

use crate::appender::WriterStats;
use crate::blacklist::{Blacklist, Doubt};
use crate::directory::Directory;
use crate::latency::LatencyModel;
use crate::reader::{Candidate, Failure, Plan, Step};
use crate::writer::Shell;
use crate::{Config, Error, Scan, Writer, WriterOptions, recovery};
use api_types::checksum::FooterSeed;
use api_types::chunk::{self, ChunkTransport, Read, Request, Response};
use api_types::master::{BadCopy, ChunkRecord, MasterClient, Replication};
use api_types::{ChunkId, Clock, DeviceId, Epoch, QosClass, Rng, StreamId};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, future};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// What a client stands on.
#[derive(Clone)]
pub struct Deps {
    /// The way to every chunk store.
    pub transport: Rc<dyn ChunkTransport>,
    /// The way to the masters.
    pub master: Rc<dyn MasterClient>,
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// Chance, for jitter and for the choice among equals.
    pub rng: Rc<dyn Rng>,
    /// Where footer checksums of this cluster start from.
    pub seed: FooterSeed,
}

/// Reads chunks and makes writers. Cheap to clone; all clones share the location cache, the latency model and the
/// blacklists. Must be used inside a tokio `LocalSet`.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

struct Inner {
    deps: Deps,
    config: Config,
    directory: Rc<Directory>,
    latency: RefCell<LatencyModel>,
    blacklist: RefCell<Blacklist>,
    probing: Cell<bool>,
    writers: RefCell<Vec<Weak<Shell>>>,
    /// What happened to reads, and to writers that are gone.
    past: Cell<ClientStats>,
}

/// What a client has been through, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStats {
    /// Second copies asked because the first was slow.
    pub backup_reads: u64,
    /// Copies that failed their reader, and were reported.
    pub bad_copies: u64,
    /// Devices on the blacklist of those that are gone or failed.
    pub avoided_certain: u64,
    /// Devices on the blacklist of those that may be slow.
    pub avoided_probable: u64,
    /// All writers together. The bytes that are chased are those of living writers.
    pub writers: WriterStats,
}

/// How a round over the copies of a chunk ended.
enum Round {
    Read(Bytes),
    Failed(Vec<(DeviceId, Failure)>),
}

impl Client {
    /// A client that knows nothing yet.
    #[must_use]
    pub fn new(deps: Deps, config: Config) -> Client {
        let directory = Directory::new(deps.master.clone(), deps.clock.clone(), config.locations_max, config.locate_batch_max);
        let latency = LatencyModel::new(config.backup_delay_min, config.backup_delay_max, config.backup_percent_max);
        let blacklist = Blacklist::new(config.blacklist_max, config.probe_grace);
        let inner = Inner {
            deps,
            config,
            directory,
            latency: RefCell::new(latency),
            blacklist: RefCell::new(blacklist),
            probing: Cell::new(false),
            writers: RefCell::default(),
            past: Cell::default(),
        };
        Client { inner: Rc::new(inner) }
    }

    pub(crate) fn deps(&self) -> &Deps {
        &self.inner.deps
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn directory(&self) -> &Rc<Directory> {
        &self.inner.directory
    }

    /// Fences all writers of older epochs and seals every chunk of the stream that isn't sealed, open ones and spares,
    /// on at least `max_copy - min_copy + 1` answers each; records the lengths at the masters, then cuts the copies to
    /// them. Returns the chunks in stream order, all sealed. Chunks that never held anything are deleted and left out.
    ///
    /// After a move to another chunk the last units of the chunk that was left may stand there and, again, at the start of
    /// the next one: whoever replays must skip a unit whose sequence isn't above the last one's.
    ///
    /// # Errors
    /// [`Error::Unavailable`] names the devices that didn't answer; [`Error::Fenced`] when the epoch isn't the newest.
    pub async fn recover(&self, stream: StreamId, epoch: Epoch, replication: Replication) -> Result<Vec<ChunkRecord>, Error> {
        recovery::recover(self, stream, epoch, replication).await
    }

    /// The writer of a recovered stream; it goes on in new chunks.
    #[must_use]
    pub fn writer(&self, stream: StreamId, options: WriterOptions) -> Writer {
        let writer = Writer::new(self.clone(), stream, options);
        let mut writers = self.inner.writers.borrow_mut();
        writers.retain(|writer| writer.strong_count() > 0);
        writers.push(Rc::downgrade(writer.shell()));
        drop(writers);
        writer.shell().listed(self.inner.blacklist.borrow().listed());
        writer
    }

    /// Reads committed bytes, at most `limits::READ_BYTES_MAX`. `verify` judges them: a copy that fails is reported to
    /// the masters, and another one is read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no copy verifies, [`Error::Unavailable`] when none answers, [`Error::NotFound`] when the
    /// chunk was deleted.
    pub async fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        qos: QosClass,
        verify: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Bytes, Error> {
        let clock = &self.inner.deps.clock;
        let deadline = clock.now() + self.inner.config.read_limit;
        let request = Read { chunk, offset, length, qos };
        let mut wait = self.inner.config.retry_wait;
        let mut asked_again = false;
        loop {
            let Some(record) = self.inner.directory.locate(chunk).await? else {
                return Err(Error::NotFound(format!("chunk {chunk}")));
            };
            let failures = match self.read_round(&record, request, verify).await {
                Round::Read(bytes) => return Ok(bytes),
                Round::Failed(failures) => failures,
            };
            // The places may have changed: ask the masters before anything is concluded.
            self.inner.directory.forget(chunk);
            let bad = failures.iter().any(|(_, failure)| *failure == Failure::Bad);
            let silent = failures.iter().any(|(_, failure)| *failure == Failure::Silent);
            if bad && !silent && asked_again {
                return Err(Error::Corrupt(describe(&request, &failures)));
            }
            if asked_again && clock.now() + wait >= deadline {
                return Err(Error::Unavailable(describe(&request, &failures)));
            }
            if asked_again {
                clock.sleep(wait).await;
                wait = (wait * 2).min(self.inner.config.retry_wait_max);
            }
            asked_again = true;
        }
    }

    /// Asks one copy after the other, and a second one beside a slow one.
    async fn read_round(&self, record: &ChunkRecord, request: Read, verify: &dyn Fn(&[u8]) -> bool) -> Round {
        let mut plan = Plan::new(self.candidates(record));
        self.inner.latency.borrow_mut().earn();
        let mut under_way = FuturesUnordered::new();
        let mut step = plan.start();
        loop {
            let backup_after = match step {
                Step::Exhausted => return Round::Failed(plan.failures().to_vec()),
                Step::Ask(device) => {
                    under_way.push(self.read_copy(device, request));
                    plan.has_more().then(|| self.backup_delay(device, request.length))
                }
                Step::Wait => None,
            };
            let late = match backup_after {
                Some(delay) => self.inner.deps.clock.sleep(delay),
                None => future::pending().boxed_local(),
            };
            step = tokio::select! {
                biased;
                answer = under_way.next() => match answer {
                    Some((_, Ok(bytes))) if verify(&bytes) => return Round::Read(bytes),
                    Some((device, Ok(_))) => {
                        self.report(request.chunk, device, "bytes that do not verify");
                        plan.failed(device, Failure::Bad)
                    }
                    Some((device, Err(error))) => plan.failed(device, self.judge(request.chunk, device, &error)),
                    None => Step::Exhausted,
                },
                () = late => {
                    let may = self.inner.latency.borrow_mut().spend();
                    if may {
                        self.note(|stats| stats.backup_reads += 1);
                    }
                    plan.late(may)
                }
            };
        }
    }

    fn candidates(&self, record: &ChunkRecord) -> Vec<Candidate> {
        let blacklist = self.inner.blacklist.borrow();
        let rng = &self.inner.deps.rng;
        let sealed = matches!(record.state, api_types::master::ChunkState::Sealed { .. });
        record
            .copies
            .iter()
            .map(|copy| {
                let node = self.inner.directory.device(copy.device).map(|address| address.node);
                Candidate {
                    device: copy.device,
                    near: node.is_some() && node == self.inner.config.node,
                    whole: copy.whole || !sealed,
                    doubt: blacklist.doubt(copy.device),
                    lot: rng.next_u64(),
                    // One read in sixteen gives a doubtful device its chance; probes do the rest.
                    pardoned: rng.below(16) == 0,
                }
            })
            .collect()
    }

    async fn read_copy(&self, device: DeviceId, request: Read) -> (DeviceId, Result<Bytes, chunk::Error>) {
        let clock = &self.inner.deps.clock;
        let start = clock.now();
        let result = match self.call(device, Request::Read(request), self.inner.config.read_timeout).await {
            Ok(Response::Read(bytes)) if bytes.len() == request.length as usize => {
                let media = self.inner.directory.device(device).map(|address| address.media).unwrap_or_default();
                self.inner.latency.borrow_mut().observe(&media, request.length, clock.now() - start);
                Ok(bytes)
            }
            Ok(_) => Err(chunk::Error::Invalid("the store answered something else than was asked".to_owned())),
            Err(error) => Err(error),
        };
        (device, result)
    }

    fn backup_delay(&self, device: DeviceId, length: u32) -> Duration {
        let media = self.inner.directory.device(device).map(|address| address.media).unwrap_or_default();
        self.inner.latency.borrow_mut().backup_delay(&media, length)
    }

    fn judge(&self, chunk: ChunkId, device: DeviceId, error: &chunk::Error) -> Failure {
        match error {
            chunk::Error::Corrupt { .. } => {
                self.report(chunk, device, "the store itself finds it damaged");
                Failure::Bad
            }
            chunk::Error::Unknown => Failure::Missing,
            _ => Failure::Silent,
        }
    }

    fn report(&self, chunk: ChunkId, device: DeviceId, reason: &str) {
        tracing::warn!(%chunk, %device, reason, "a copy failed its reader");
        self.note(|stats| stats.bad_copies += 1);
        let report = self.inner.deps.master.report(BadCopy { chunk, device, reason: reason.to_owned() });
        // The scrubber and the next reader will find it again if this doesn't arrive.
        tokio::task::spawn_local(async move { drop(report.await) });
    }

    /// The units of a sealed or committed range, in order. `from` must be the start of a unit and `to` the end of one.
    #[must_use]
    pub fn scan(&self, chunk: ChunkId, from: u32, to: u32, with_data: bool, qos: QosClass) -> Scan {
        Scan::new(self.clone(), chunk, from, to, with_data, qos)
    }

    /// Gives chunks back. Those already gone are no error.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::Unavailable`].
    pub async fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> Result<(), Error> {
        for chunk in &chunks {
            self.inner.directory.forget(*chunk);
        }
        Ok(self.inner.deps.master.delete_chunks(stream, epoch, chunks).await?)
    }

    /// Sends a request, queued by this call, and learns from how it ends.
    pub(crate) fn call(
        &self,
        device: DeviceId,
        request: Request,
        limit: Duration,
    ) -> LocalBoxFuture<'static, Result<Response, chunk::Error>> {
        let answer = self.inner.deps.transport.call(device, request, limit);
        let client = self.clone();
        async move {
            let result = answer.await;
            match &result {
                Err(chunk::Error::Unreachable(_) | chunk::Error::Io(_)) => client.doubt(device, Doubt::Certain),
                Err(chunk::Error::Deadline) => client.doubt(device, Doubt::Probable),
                _ => {}
            }
            result
        }
        .boxed_local()
    }

    /// Stays away from a device until it has answered its probes for a while.
    pub(crate) fn doubt(&self, device: DeviceId, doubt: Doubt) {
        let now = self.inner.deps.clock.now();
        let before = self.inner.blacklist.borrow().version();
        self.inner.blacklist.borrow_mut().add(device, doubt, now);
        if self.inner.blacklist.borrow().version() != before {
            tracing::info!(%device, ?doubt, "staying away from a device");
            self.tell_writers();
        }
        if !self.inner.probing.replace(true) {
            tokio::task::spawn_local(probe(Rc::downgrade(&self.inner)));
        }
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let mut stats = self.inner.past.get();
        for writer in self.inner.writers.borrow().iter().filter_map(|writer| writer.upgrade()?.stats()) {
            stats.writers.add(&writer);
        }
        let blacklist = self.inner.blacklist.borrow();
        stats.avoided_certain = blacklist.count(Doubt::Certain);
        stats.avoided_probable = blacklist.count(Doubt::Probable);
        stats
    }

    fn note(&self, what: impl FnOnce(&mut ClientStats)) {
        let mut stats = self.inner.past.get();
        what(&mut stats);
        self.inner.past.set(stats);
    }

    /// A writer ends: what it counted stays.
    pub(crate) fn writer_ends(&self, stats: WriterStats) {
        self.note(|past| past.writers.add(&WriterStats { chased_bytes: 0, ..stats }));
    }

    fn tell_writers(&self) {
        let listed = self.inner.blacklist.borrow().listed();
        let writers: Vec<Rc<Shell>> = self.inner.writers.borrow().iter().filter_map(Weak::upgrade).collect();
        for writer in writers {
            writer.listed(listed.clone());
        }
    }
}

/// Probes what is listed, until nothing is.
async fn probe(client: Weak<Inner>) {
    loop {
        let Some(inner) = client.upgrade() else { return };
        let (clock, every) = (inner.deps.clock.clone(), inner.config.probe_every);
        drop(inner);
        clock.sleep(every).await;
        let Some(inner) = client.upgrade() else { return };
        let listed = inner.blacklist.borrow().listed();
        let calls = listed.iter().map(|device| {
            let answer = inner.deps.transport.call(*device, Request::Probe, inner.config.probe_timeout);
            async move { (*device, answer.await.is_ok()) }
        });
        let answers = future::join_all(calls).await;
        let (before, now) = (inner.blacklist.borrow().version(), clock.now());
        for (device, well) in answers {
            inner.blacklist.borrow_mut().probed(device, well, now);
        }
        let done = inner.blacklist.borrow().is_empty();
        if done {
            inner.probing.set(false);
        }
        if inner.blacklist.borrow().version() != before {
            Client { inner }.tell_writers();
        }
        if done {
            return;
        }
    }
}

fn describe(request: &Read, failures: &[(DeviceId, Failure)]) -> String {
    let who: Vec<String> = failures.iter().map(|(device, failure)| format!("{device} {failure:?}").to_lowercase()).collect();
    format!("{} bytes at {} of chunk {}: {}", request.length, request.offset, request.chunk, who.join(", "))
}
