use super::*;

const CHUNK: u32 = 1 << 20;

fn location(chunk: u64) -> Location {
    Location { chunk: ChunkId(chunk), offset: 0, crc: 0 }
}

/// A sealed chunk with so many blocks, and so many of them alive.
fn add(chunks: &mut Chunks, chunk: u64, blocks: u32, live: u32) {
    chunks.grow(Log::Hot, ChunkId(chunk), chunk, blocks * BLOCK_BYTES);
    chunks.seal(ChunkId(chunk));
    chunks.set_live(ChunkId(chunk), live);
}

#[test]
fn what_lives_and_what_is_garbage_adds_up() {
    let mut chunks = Chunks::default();
    add(&mut chunks, 1, 100, 40);
    chunks.refer(&location(1));
    chunks.forget(&location(1));
    chunks.forget(&location(1));
    assert_eq!(chunks.live_bytes(), 39 * 4096);
    assert_eq!(chunks.dead_bytes(), 61 * 4096);
    chunks.remove(ChunkId(1));
    assert_eq!((chunks.live_bytes(), chunks.dead_bytes(), chunks.len()), (0, 0, 0));
}

#[test]
fn the_least_live_chunk_goes_first_when_space_is_short() {
    let mut chunks = Chunks::default();
    add(&mut chunks, 1, 250, 100);
    add(&mut chunks, 2, 250, 30);
    add(&mut chunks, 3, 250, 250);
    assert_eq!(chunks.victim(Aim::Cheapest, CHUNK), Some(ChunkId(2)));
    chunks.skip(ChunkId(2), 1 << 30);
    assert_eq!(chunks.victim(Aim::Cheapest, CHUNK), Some(ChunkId(1)));
    chunks.unskip();
    assert_eq!(chunks.victim(Aim::Cheapest, CHUNK), Some(ChunkId(2)));
}

#[test]
fn of_two_equal_chunks_the_older_is_worth_more() {
    let mut chunks = Chunks::default();
    add(&mut chunks, 1, 250, 100);
    add(&mut chunks, 2, 250, 95);
    add(&mut chunks, 3, 250, 250);
    assert_eq!(chunks.victim(Aim::Best, CHUNK), Some(ChunkId(1)), "what is young may still die by itself");
}

#[test]
fn open_and_wholly_living_chunks_are_left_alone() {
    let mut chunks = Chunks::default();
    chunks.grow(Log::Hot, ChunkId(1), 0, CHUNK);
    chunks.set_live(ChunkId(1), 3);
    add(&mut chunks, 2, 250, 249);
    assert_eq!(chunks.victim(Aim::Cheapest, CHUNK), None);
    assert_eq!(chunks.victim(Aim::Best, CHUNK), None);
}

#[test]
fn a_chunk_is_dead_only_behind_the_place_where_replay_starts() {
    let mut chunks = Chunks::default();
    add(&mut chunks, 5, 10, 0);
    let at = |index, end| LogPosition { index, end };
    assert_eq!(chunks.dead(at(4, 0), at(9, 0)), [], "units of it are still to be replayed");
    assert_eq!(chunks.dead(at(5, 9 * 4096), at(9, 0)), []);
    assert_eq!(chunks.dead(at(5, 10 * 4096), at(0, 0)), [(Log::Hot, ChunkId(5))]);
    assert_eq!(chunks.dead(at(6, 512), at(0, 0)), [(Log::Hot, ChunkId(5))]);
    assert_eq!(chunks.empty_bytes(at(6, 512), at(0, 0)), 10 * 4096);
}

#[test]
fn reclaim_idles_while_there_is_plenty_and_hurries_when_space_is_short() {
    let config = Config::default();
    let mut chunks = Chunks::default();
    for chunk in 1..=20 {
        add(&mut chunks, chunk, 256, 160);
    }
    let space = |free| Some(PoolSpace { available_bytes: free, capacity_bytes: 100 });
    let urgency = |space, starved| pace(&chunks, CHUNK, space, starved, &config).urgency;
    assert!(urgency(space(80), false) < f64::EPSILON, "37 % of garbage is fine with plenty of space");
    assert!(urgency(space(30), false) > 0.5);
    assert!(urgency(None, false) > 0.5);
    assert!((urgency(space(5), false) - 1.0).abs() < f64::EPSILON);
    assert!((urgency(space(80), true) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn a_few_dead_chunks_of_a_small_volume_start_nothing() {
    let config = Config::default();
    let mut chunks = Chunks::default();
    add(&mut chunks, 1, 256, 10);
    add(&mut chunks, 2, 256, 10);
    assert!(pace(&chunks, CHUNK, None, false, &config).urgency < f64::EPSILON);
}

#[test]
fn writes_are_slowed_only_when_reclaim_falls_behind() {
    let config = Config::default();
    let mut chunks = Chunks::default();
    for chunk in 1..=20 {
        add(&mut chunks, chunk, 256, 160);
    }
    let delay = |chunks: &Chunks| write_delay(chunks, CHUNK, None, &config);
    assert_eq!(delay(&chunks), Duration::ZERO);
    for chunk in 1..=20 {
        chunks.set_live(ChunkId(chunk), 64);
    }
    assert_eq!(delay(&chunks), config.write_delay_max);
}
