//! openraft's log on [`SegmentLog`]: entries that aren't purged are kept in memory, writes go through one thread that
//! syncs once for all that waits.

use crate::error::OpenError;
use crate::file;
use crate::record::{Kind, Record};
use crate::segments::SegmentLog;
use crate::types::{Entry, LogId, TypeConfig, Vote};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokio::sync::oneshot;

/// Size of a segment in bytes.
const SEGMENT_BYTES: u64 = 4 << 20;
/// The most operations waiting for the thread.
const QUEUE_MAX: usize = 4096;
const VOTE: &str = "vote";
const VOTE_MAGIC: [u8; 4] = *b"BSLV";

/// What must survive beside the entries.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct HardState {
    vote: Option<Vote>,
    purged: Option<LogId>,
}

#[derive(Debug, Default)]
struct Shared {
    hard: HardState,
    committed: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
    /// The record that holds each entry.
    records: BTreeMap<u64, u64>,
    next_record: u64,
    bytes: u64,
}

enum Operation {
    Append(Vec<(Kind, Vec<u8>)>, Option<IOFlushed<TypeConfig>>),
    Sync(Vec<(Kind, Vec<u8>)>, oneshot::Sender<io::Result<()>>),
    Hard(HardState, oneshot::Sender<io::Result<()>>),
    Drop(u64, oneshot::Sender<io::Result<()>>),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct LogStore {
    shared: Arc<Mutex<Shared>>,
    operations: SyncSender<Operation>,
}

/// Sizes of a log, for people.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogSize {
    pub(crate) bytes: u64,
    pub(crate) first_index: u64,
    pub(crate) last_index: u64,
}

impl LogStore {
    /// Opens the log of a member. `lock` is held until the last clone is gone and everything is written.
    pub(crate) fn open(directory: &Path, lock: File) -> Result<LogStore, OpenError> {
        let hard = match file::read(&directory.join(VOTE), VOTE_MAGIC)? {
            Some((head, _)) => {
                postcard::from_bytes(&head).map_err(|error| OpenError::damaged(directory.join(VOTE), error.to_string()))?
            }
            None => HardState::default(),
        };
        let log_directory = directory.join("log");
        let (log, records) = SegmentLog::open(&log_directory, SEGMENT_BYTES)?;
        let mut shared = Shared { hard, bytes: log.bytes(), ..Shared::default() };
        shared.next_record = records.last().map_or(1, |record| record.sequence + 1);
        for record in records {
            shared.replay(&record).map_err(|what| OpenError::damaged(&log_directory, what))?;
        }
        shared.check().map_err(|what| OpenError::damaged(&log_directory, what))?;
        let shared = Arc::new(Mutex::new(shared));
        let (operations, queue) = sync_channel(QUEUE_MAX);
        let worker = Worker { log, directory: directory.into(), shared: shared.clone(), _lock: lock };
        std::thread::Builder::new()
            .name("raft-log".into())
            .spawn(move || worker.run(&queue))
            .map_err(OpenError::io(directory))?;
        Ok(LogStore { shared, operations })
    }

    /// Whether nothing was ever written.
    pub(crate) fn pristine(&self) -> bool {
        let shared = self.shared.lock();
        shared.entries.is_empty() && shared.hard.vote.is_none() && shared.hard.purged.is_none()
    }

    pub(crate) fn size(&self) -> LogSize {
        let shared = self.shared.lock();
        let purged = shared.hard.purged.map_or(0, |id| id.index);
        LogSize {
            bytes: shared.bytes,
            first_index: shared.entries.first_key_value().map_or(purged, |(index, _)| *index),
            last_index: shared.entries.last_key_value().map_or(purged, |(index, _)| *index),
        }
    }

    fn send(&self, operation: Operation) -> io::Result<()> {
        self.operations.send(operation).map_err(|_| io::Error::other("the log's thread has stopped"))
    }

    async fn wait(&self, make: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Operation) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.send(make(sender))?;
        receiver.await.map_err(|_| io::Error::other("the log's thread has stopped"))?
    }
}

impl Shared {
    fn replay(&mut self, record: &Record) -> Result<(), String> {
        let unreadable = |error: postcard::Error| format!("record {} can't be read: {error}", record.sequence);
        match record.kind {
            Kind::Entry => {
                let entry: Entry = postcard::from_bytes(&record.body).map_err(unreadable)?;
                let index = entry.log_id.index;
                if self.hard.purged.is_some_and(|purged| index <= purged.index) {
                    return Ok(());
                }
                let last = self.entries.last_key_value().map(|(index, _)| *index).or_else(|| self.hard.purged.map(|id| id.index));
                if last.is_some_and(|last| index != last + 1) {
                    return Err(format!("entry {index} follows entry {}", last.unwrap_or(0)));
                }
                self.records.insert(index, record.sequence);
                self.entries.insert(index, entry);
            }
            Kind::Committed => self.committed = postcard::from_bytes(&record.body).map_err(unreadable)?,
            Kind::Truncate => {
                let after: Option<LogId> = postcard::from_bytes(&record.body).map_err(unreadable)?;
                self.truncate(after);
            }
        }
        Ok(())
    }

    fn truncate(&mut self, after: Option<LogId>) {
        let from = after.map_or(0, |id| id.index + 1);
        self.entries.split_off(&from);
        self.records.split_off(&from);
    }

    /// An end before what was committed is damage that no crash explains: those entries were synced.
    fn check(&mut self) -> Result<(), String> {
        if self.hard.purged > self.committed {
            self.committed = self.hard.purged;
        }
        let last = self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.hard.purged);
        match (self.committed, last) {
            (Some(committed), last) if last.is_none_or(|last| last.index < committed.index) => Err(format!(
                "the log ends with entry {}, entries up to {} were committed",
                last.map_or(0, |id| id.index),
                committed.index
            )),
            _ => Ok(()),
        }
    }
}

struct Worker {
    log: SegmentLog,
    directory: PathBuf,
    shared: Arc<Mutex<Shared>>,
    _lock: File,
}

impl Worker {
    /// Serves until every sender is gone. After a failed write or sync nothing is tried again: what the kernel kept
    /// of it is not known.
    fn run(mut self, queue: &Receiver<Operation>) {
        let mut broken: Option<String> = None;
        while let Ok(first) = queue.recv() {
            let mut batch = vec![first];
            batch.extend(queue.try_iter().take(QUEUE_MAX));
            let mut waiting = Vec::new();
            for operation in batch {
                let result = match &broken {
                    Some(what) => Err(io::Error::other(what.clone())),
                    None => Ok(()),
                };
                let result = result.and_then(|()| self.start(operation, &mut waiting));
                broken = broken.or_else(|| result.err().map(|error| error.to_string()));
            }
            if !waiting.is_empty() && broken.is_none() {
                broken = self.log.sync().err().map(|error| error.to_string());
            }
            for done in waiting {
                done.finish(broken.as_deref());
            }
            self.shared.lock().bytes = self.log.bytes();
        }
    }

    /// Does what needs no sync, and collects who waits for one.
    fn start(&mut self, operation: Operation, waiting: &mut Vec<Done>) -> io::Result<()> {
        match operation {
            Operation::Append(records, callback) => {
                waiting.extend(callback.map(Done::Callback));
                self.log.append(&records).map(|_| ())
            }
            Operation::Sync(records, sender) => {
                waiting.push(Done::Sender(sender));
                self.log.append(&records).map(|_| ())
            }
            Operation::Hard(hard, sender) => {
                let written = postcard::to_stdvec(&hard).map_err(io::Error::other);
                reply(sender, written.and_then(|head| file::replace(&self.directory, VOTE, VOTE_MAGIC, &head, &[])))
            }
            Operation::Drop(before, sender) => reply(sender, self.log.drop_before(before)),
        }
    }
}

fn reply(sender: oneshot::Sender<io::Result<()>>, result: io::Result<()>) -> io::Result<()> {
    let copy = result.as_ref().copied().map_err(|error| io::Error::other(error.to_string()));
    // Whoever asked may be gone; it is done all the same.
    let _ = sender.send(result);
    copy
}

enum Done {
    Callback(IOFlushed<TypeConfig>),
    Sender(oneshot::Sender<io::Result<()>>),
}

impl Done {
    fn finish(self, broken: Option<&str>) {
        let result = broken.map_or(Ok(()), |what| Err(io::Error::other(what.to_owned())));
        match self {
            Done::Callback(callback) => callback.io_completed(result),
            Done::Sender(sender) => {
                let _ = sender.send(result);
            }
        }
    }
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let empty = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(start), Bound::Excluded(end)) => start >= end,
            (Bound::Included(start), Bound::Included(end)) => start > end,
            _ => false,
        };
        if empty {
            return Ok(Vec::new());
        }
        Ok(self.shared.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.shared.lock().hard.vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let shared = self.shared.lock();
        let last = shared.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: shared.hard.purged, last_log_id: last.or(shared.hard.purged) })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let hard = {
            let mut shared = self.shared.lock();
            shared.hard.vote = Some(*vote);
            shared.hard.clone()
        };
        self.wait(|sender| Operation::Hard(hard, sender)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.shared.lock().committed = committed;
        let record = (Kind::Committed, encode(&committed)?);
        self.shared.lock().next_record += 1;
        // Not worth a sync of its own: it only saves work after a restart.
        self.send(Operation::Append(vec![record], None))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.shared.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = Vec::new();
        {
            let mut shared = self.shared.lock();
            for entry in entries {
                records.push((Kind::Entry, encode(&entry)?));
                let record = shared.next_record;
                shared.next_record += 1;
                shared.records.insert(entry.index(), record);
                shared.entries.insert(entry.index(), entry);
            }
        }
        self.send(Operation::Append(records, Some(callback)))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let record = (Kind::Truncate, encode(&last_log_id)?);
        {
            let mut shared = self.shared.lock();
            shared.truncate(last_log_id);
            shared.next_record += 1;
        }
        self.wait(|sender| Operation::Sync(vec![record], sender)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let (hard, first_record) = {
            let mut shared = self.shared.lock();
            if shared.hard.purged.is_some_and(|purged| purged.index >= log_id.index) {
                return Ok(());
            }
            shared.hard.purged = Some(log_id);
            shared.entries = shared.entries.split_off(&(log_id.index + 1));
            shared.records = shared.records.split_off(&(log_id.index + 1));
            let first = shared.records.first_key_value().map_or(shared.next_record, |(_, record)| *record);
            (shared.hard.clone(), first)
        };
        // The mark first: a log that begins later than its mark would look damaged.
        self.wait(|sender| Operation::Hard(hard, sender)).await?;
        self.wait(|sender| Operation::Drop(first_record, sender)).await
    }
}

#[cfg(test)]
mod tests;
