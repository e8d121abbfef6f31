use super::*;
use crate::identity;
use openraft::entry::EntryPayload;
use std::fs;

fn id(index: u64) -> LogId {
    LogId { leader_id: *Vote::new_committed(1, 1).leader_id(), index }
}

fn entries(range: std::ops::Range<u64>) -> Vec<Entry> {
    range.map(|index| Entry { log_id: id(index), payload: EntryPayload::Blank }).collect()
}

async fn indexes(store: &mut LogStore) -> Vec<u64> {
    store.try_get_log_entries(0..).await.unwrap().iter().map(|entry| entry.log_id.index).collect()
}

/// Opens the store; the one before it may need a moment to let go of the lock.
async fn open(directory: &Path) -> Result<LogStore, OpenError> {
    loop {
        match identity::claim(directory, 1) {
            Ok((lock, _)) => return LogStore::open(directory, lock),
            Err(OpenError::Locked(_)) => tokio::task::yield_now().await,
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await.unwrap();
    assert!(store.pristine());
    let vote = Vote::new_committed(3, 2);
    store.save_vote(&vote).await.unwrap();
    store.append(entries(0..10), IOFlushed::noop()).await.unwrap();
    store.truncate_after(Some(id(6))).await.unwrap();
    store.append(entries(7..9), IOFlushed::noop()).await.unwrap();
    store.save_committed(Some(id(5))).await.unwrap();
    store.purge(id(2)).await.unwrap();
    drop(store);

    let mut store = open(directory.path()).await.unwrap();
    assert!(!store.pristine());
    assert_eq!(store.read_vote().await.unwrap(), Some(vote));
    assert_eq!(store.read_committed().await.unwrap(), Some(id(5)));
    assert_eq!(indexes(&mut store).await, [3, 4, 5, 6, 7, 8]);
    let state = store.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(2)), Some(id(8))));
}

#[tokio::test]
async fn a_log_goes_on_behind_a_snapshot_that_is_ahead_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await.unwrap();
    store.append(entries(0..3), IOFlushed::noop()).await.unwrap();
    store.purge(id(100)).await.unwrap();
    store.append(entries(101..103), IOFlushed::noop()).await.unwrap();
    drop(store);
    let mut store = open(directory.path()).await.unwrap();
    assert_eq!(indexes(&mut store).await, [101, 102]);
}

#[tokio::test]
async fn a_log_that_ends_before_what_was_committed_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await.unwrap();
    store.append(entries(0..3), IOFlushed::noop()).await.unwrap();
    store.purge(id(1)).await.unwrap();
    store.save_committed(Some(id(7))).await.unwrap();
    drop(store);
    assert!(matches!(open(directory.path()).await, Err(OpenError::Damaged { .. })));
}

#[tokio::test]
async fn a_damaged_vote_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).await.unwrap();
    store.save_vote(&Vote::new_committed(3, 2)).await.unwrap();
    drop(store);
    let path = directory.path().join(VOTE);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(open(directory.path()).await, Err(OpenError::Damaged { .. })));
}
