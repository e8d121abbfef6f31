use super::*;
use futures::FutureExt;
use std::thread;

fn pool(slabs: usize) -> BufferPool {
    BufferPool::new(PoolOptions { bytes_max: slabs * SLAB_BYTES, idle_slabs: 1, huge_pages: false })
}

#[test]
fn buffers_are_aligned_and_do_not_overlap() {
    let pool = pool(64);
    let lengths = [1, 512, 4096, 4097, 9000, 20_000, 70_000, 136 << 10, 300_000, 532 << 10, BUFFER_BYTES_MAX];
    let mut buffers: Vec<_> = (0..44).map(|i| pool.try_take(lengths[i % lengths.len()]).unwrap()).collect();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        assert!(buffer.as_ptr().addr().is_multiple_of(BUFFER_ALIGNMENT));
        buffer.fill(u8::try_from(i).unwrap());
    }
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.len(), lengths[i % lengths.len()]);
        assert!(buffer.iter().all(|byte| usize::from(*byte) == i));
    }
}

#[test]
fn a_frozen_buffer_returns_when_its_last_clone_goes_on_another_thread() {
    let pool = pool(4);
    let mut buffer = pool.try_take(8192).unwrap();
    buffer.fill(7);
    let bytes = buffer.freeze();
    assert!(is_aligned(&bytes, 4096));
    assert!(!is_aligned(&bytes.slice(1..), 512));
    let clone = bytes.slice(4096..);
    drop(bytes);
    assert_eq!(pool.info().used_bytes, 8192);
    thread::spawn(move || assert!(clone.iter().all(|byte| *byte == 7))).join().unwrap();
    assert_eq!(pool.info().used_bytes, 0);
}

#[test]
fn the_bound_holds_across_classes_and_an_idle_slab_changes_its_class() {
    let pool = pool(1);
    let large: Vec<_> = (0..3).map(|_| pool.try_take(BUFFER_BYTES_MAX).unwrap()).collect();
    assert!(matches!(pool.try_take(BUFFER_BYTES_MAX), Err(TakeError::Exhausted { .. })));
    assert!(matches!(pool.try_take(1), Err(TakeError::Exhausted { .. })));
    drop(large);
    let small = pool.try_take(1).unwrap();
    assert_eq!(small.capacity(), 4096);
    assert_eq!(pool.info().mapped_bytes, SLAB_BYTES);
}

#[test]
fn too_long_is_an_error_that_names_the_limit() {
    let error = pool(1).try_take(BUFFER_BYTES_MAX + 1).unwrap_err();
    assert!(error.to_string().contains("1056768"), "{error}");
}

#[test]
fn idle_slabs_beyond_the_kept_ones_go_back_to_the_system() {
    let pool = pool(8);
    let many: Vec<_> = (0..12).map(|_| pool.try_take(BUFFER_BYTES_MAX).unwrap()).collect();
    assert_eq!(pool.info().mapped_bytes, 4 * SLAB_BYTES);
    drop(many);
    assert_eq!(pool.info().mapped_bytes, SLAB_BYTES);
}

#[test]
fn waiters_of_one_size_are_served_in_order_and_those_who_left_are_skipped() {
    let pool = pool(1);
    let held: Vec<_> = (0..3).map(|_| pool.try_take(BUFFER_BYTES_MAX).unwrap()).collect();
    let mut first = Box::pin(pool.take(BUFFER_BYTES_MAX));
    let mut left = Box::pin(pool.take(BUFFER_BYTES_MAX));
    let mut third = Box::pin(pool.take(BUFFER_BYTES_MAX - 1));
    assert!(first.as_mut().now_or_never().is_none());
    assert!(left.as_mut().now_or_never().is_none());
    assert!(third.as_mut().now_or_never().is_none());
    drop(left);
    let mut held = held.into_iter();
    drop(held.next());
    let got = first.now_or_never().unwrap().unwrap();
    assert!(third.as_mut().now_or_never().is_none());
    drop(got);
    assert_eq!(third.now_or_never().unwrap().unwrap().len(), BUFFER_BYTES_MAX - 1);
    assert_eq!(pool.info().waiting, 0);
}

#[test]
fn many_threads_share_one_pool() {
    let pool = pool(2);
    let threads: Vec<_> = (0..4u8)
        .map(|number| {
            let pool = pool.clone();
            thread::spawn(move || {
                for round in 0..500usize {
                    let mut buffer = pool.try_take(4096 + round * 16).unwrap();
                    buffer.fill(number);
                    let bytes = buffer.freeze();
                    assert!(bytes.iter().all(|byte| *byte == number));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pool.info().used_bytes, 0);
}

#[test]
fn asking_for_huge_pages_always_gives_memory_and_says_which() {
    let pool = BufferPool::new(PoolOptions { bytes_max: SLAB_BYTES, idle_slabs: 0, huge_pages: true });
    assert_eq!(pool.info().pages, None);
    let buffer = pool.try_take_zeroed(65_536).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0));
    assert!(pool.info().pages.is_some());
}
