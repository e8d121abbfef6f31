use super::*;

const SEGMENT: u64 = 4096;

fn entries(range: std::ops::Range<u64>) -> Vec<(Kind, Vec<u8>)> {
    range.map(|n| (Kind::Entry, n.to_le_bytes().repeat(12))).collect()
}

fn sequences(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    list(directory).unwrap().into_iter().map(|segment| segment.path).collect()
}

/// A log of `count` records, each synced on its own.
fn written(directory: &Path, count: u64) {
    let (mut log, _) = SegmentLog::open(directory, SEGMENT).unwrap();
    for n in 0..count {
        log.append(&entries(n..n + 1)).unwrap();
        log.sync().unwrap();
    }
}

#[test]
fn records_read_back_over_many_segments() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 100);
    assert!(files(directory.path()).len() > 2);
    let (mut log, records) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    assert_eq!(sequences(&records), (1..=100).collect::<Vec<_>>());
    assert_eq!(records[41].body, 41u64.to_le_bytes().repeat(12));
    assert_eq!(log.append(&entries(100..101)).unwrap(), 101);
}

#[test]
fn a_torn_tail_goes_wherever_it_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 3);
    let (mut log, _) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    let start = log.offset as usize;
    log.append(&entries(3..6)).unwrap();
    let end = log.offset as usize;
    drop(log);
    let path = &files(directory.path())[0];
    let whole = fs::read(path).unwrap();
    for cut in start..end {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        fs::write(path, &torn).unwrap();
        let (_, records) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
        let kept = 3 + (cut - start) / record::record_bytes(96);
        assert!(records.len() == kept || records.len() == kept + 1, "cut at {cut}: {} records", records.len());
    }
}

#[test]
fn an_unsynced_batch_may_lose_its_middle() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 3);
    let (mut log, _) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    let start = log.offset as usize;
    log.append(&entries(3..6)).unwrap();
    drop(log);
    let path = &files(directory.path())[0];
    let mut torn = fs::read(path).unwrap();
    torn[start..start + 128].fill(0);
    fs::write(path, &torn).unwrap();
    let (log, records) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    assert_eq!(sequences(&records), [1, 2, 3]);
    drop(log);
    assert!(fs::read(path).unwrap()[start..].iter().all(|byte| *byte == 0), "the torn tail is cleared");
}

#[test]
fn a_flipped_bit_in_a_synced_record_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 10);
    let path = &files(directory.path())[0];
    let good = fs::read(path).unwrap();
    for record in 0..9 {
        let mut bad = good.clone();
        bad[HEADER_BYTES as usize + record * record::record_bytes(96) + 40] ^= 4;
        fs::write(path, &bad).unwrap();
        assert!(matches!(SegmentLog::open(directory.path(), SEGMENT), Err(OpenError::Damaged { .. })), "record {record}");
    }
}

#[test]
fn a_missing_segment_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 100);
    fs::remove_file(&files(directory.path())[1]).unwrap();
    assert!(matches!(SegmentLog::open(directory.path(), SEGMENT), Err(OpenError::Damaged { .. })));
}

#[test]
fn dropped_segments_are_gone_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 100);
    let (mut log, _) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    let before = log.bytes();
    log.drop_before(60).unwrap();
    assert!(log.bytes() < before);
    drop(log);
    let (_, records) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    let first = records[0].sequence;
    assert!(first > 1 && first <= 60);
    assert_eq!(sequences(&records), (first..=100).collect::<Vec<_>>());
}

#[test]
fn a_record_longer_than_a_segment_gets_one_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    log.append(&[(Kind::Entry, vec![7; 10_000])]).unwrap();
    log.append(&entries(0..1)).unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, records) = SegmentLog::open(directory.path(), SEGMENT).unwrap();
    assert_eq!(records[0].body, vec![7; 10_000]);
    assert_eq!(records.len(), 2);
}
