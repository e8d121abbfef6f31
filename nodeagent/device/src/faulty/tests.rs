use super::*;
use crate::Memory;
use nodeagent_reactor::RealRng;

/// A clock that only moves when told to; sleeps end when it has.
#[derive(Clone, Default)]
struct TestClock {
    now: Rc<RefCell<Duration>>,
}

impl TestClock {
    fn advance(&self, by: Duration) {
        *self.now.borrow_mut() += by;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        *self.now.borrow()
    }
    fn wall_ms(&self) -> u64 {
        0
    }
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        let (clock, until) = (self.clone(), self.now() + duration);
        std::future::poll_fn(move |_| if clock.now() >= until { Poll::Ready(()) } else { Poll::Pending }).boxed_local()
    }
}

const MS: Duration = Duration::from_millis(1);

fn faulty(seed: u64) -> (Faulty<Memory>, TestClock) {
    let clock = TestClock::default();
    let device = Faulty::new(Memory::new(1 << 20, 512), Rc::new(clock.clone()), Rc::new(RealRng::seeded(seed)));
    (device, clock)
}

fn write(offset: u64, fill: u8, length: usize, durability: Durability) -> Write {
    Write { offset, data: vec![fill; length].into(), durability, qos: QosClass::Foreground }
}

fn done<T>(future: LocalBoxFuture<'static, io::Result<T>>) -> io::Result<T> {
    future.now_or_never().expect("nothing to wait for")
}

fn read(device: &Faulty<Memory>, offset: u64, length: u32) -> Bytes {
    done(device.read(offset, length, QosClass::Foreground)).unwrap()
}

#[test]
fn durable_writes_survive_every_crash_and_cached_ones_only_some() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let (device, _) = faulty(seed);
        done(device.write(write(0, 1, 4096, Durability::Durable))).unwrap();
        done(device.write(write(4096, 2, 4096, Durability::Cached))).unwrap();
        assert!(read(&device, 4096, 4096).iter().all(|byte| *byte == 2), "it is read back before the crash");
        device.crash();
        assert!(read(&device, 0, 4096).iter().all(|byte| *byte == 1));
        let after = read(&device, 4096, 4096);
        match after.iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            4096 => kept += 1,
            part => {
                assert!(part.is_multiple_of(512), "blocks are whole");
                torn += 1;
            }
        }
        assert_eq!(after, read(&device, 4096, 4096), "what a crash left doesn't change any more");
        device.crash();
        assert_eq!(after, read(&device, 4096, 4096), "also not by another crash");
    }
    assert!(kept > 10 && lost > 10 && torn > 10, "{kept} {lost} {torn}");
}

#[test]
fn a_flush_makes_everything_before_it_durable() {
    for seed in 0..50 {
        let (device, _) = faulty(seed);
        done(device.write(write(0, 1, 8192, Durability::Cached))).unwrap();
        done(device.flush()).unwrap();
        device.crash();
        assert!(read(&device, 0, 8192).iter().all(|byte| *byte == 1));
    }
}

#[test]
fn writes_are_reordered_by_a_crash() {
    let reordered = (0..100).any(|seed| {
        let (device, _) = faulty(seed);
        done(device.write(write(0, 1, 512, Durability::Cached))).unwrap();
        done(device.write(write(512, 2, 512, Durability::Cached))).unwrap();
        device.crash();
        read(&device, 0, 512)[0] == 0 && read(&device, 512, 512)[0] == 2
    });
    assert!(reordered, "the second survived without the first at least once");
}

#[test]
fn a_durable_write_is_not_undone_by_an_older_cached_one() {
    for seed in 0..50 {
        let (device, _) = faulty(seed);
        done(device.write(write(0, 1, 1024, Durability::Cached))).unwrap();
        done(device.write(write(512, 2, 512, Durability::Durable))).unwrap();
        device.crash();
        assert_eq!(read(&device, 512, 512)[0], 2);
    }
}

#[test]
fn a_write_under_way_is_torn_by_a_crash_and_answered_with_an_error() {
    let mut torn = false;
    for seed in 0..50 {
        let (device, clock) = faulty(seed);
        device.plan().set_latency(Latency { min: MS, max: 2 * MS });
        let mut pending = device.write(write(0, 3, 4096, Durability::Durable));
        assert!((&mut pending).now_or_never().is_none());
        assert_eq!(device.queued(), 1);
        device.crash();
        clock.advance(3 * MS);
        assert_eq!(done(pending).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        device.plan().clear();
        let count = read(&device, 0, 4096).iter().filter(|byte| **byte == 3).count();
        torn |= count > 0 && count < 4096;
    }
    assert!(torn);
}

#[test]
fn a_dropped_future_does_not_undo_its_write() {
    let (device, clock) = faulty(1);
    device.plan().set_latency(Latency { min: MS, max: MS });
    drop(device.write(write(0, 4, 512, Durability::Durable)));
    clock.advance(2 * MS);
    device.plan().clear();
    assert_eq!(read(&device, 0, 512)[0], 4);
    assert_eq!(device.queued(), 0);
}

#[test]
fn a_slow_window_ends_by_itself() {
    let (device, clock) = faulty(1);
    device.slow_for(200 * MS, 1000 * MS);
    let mut slow = device.read(0, 512, QosClass::Foreground);
    clock.advance(199 * MS);
    assert!((&mut slow).now_or_never().is_none());
    clock.advance(MS);
    done(slow).unwrap();
    clock.advance(1000 * MS);
    read(&device, 0, 512);
    assert!(!device.plan().is_active());
}

#[test]
fn errors_come_at_their_rate_and_only_for_their_kind() {
    let (device, _) = faulty(1);
    device.plan().set_errors(OpKind::Write, 500_000);
    let failures = (0..200).filter(|_| done(device.write(write(0, 1, 512, Durability::Durable))).is_err()).count();
    assert!((50..150).contains(&failures), "{failures}");
    read(&device, 0, 512);
}

#[test]
fn rot_flips_bits_until_the_bytes_are_written_again() {
    let (device, _) = faulty(1);
    done(device.write(write(0, 1, 1024, Durability::Durable))).unwrap();
    device.rot(512, 512, 1);
    let flipped: u32 = read(&device, 0, 1024).iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(flipped, 1);
    done(device.write(write(512, 1, 512, Durability::Durable))).unwrap();
    assert!(read(&device, 0, 1024).iter().all(|byte| *byte == 1));
}

#[test]
fn a_hung_device_answers_once_it_is_on_and_a_gone_one_fails() {
    let (device, _) = faulty(1);
    device.plan().set_power(Power::Hung);
    let mut waiting = device.write(write(0, 1, 512, Durability::Durable));
    assert!((&mut waiting).now_or_never().is_none());
    device.plan().set_power(Power::On);
    done(waiting).unwrap();
    device.plan().set_power(Power::Gone);
    assert_eq!(done(device.flush()).unwrap_err().raw_os_error(), Some(19));
}

#[test]
fn a_door_passes_everything_on_until_it_is_told_otherwise() {
    let memory = Memory::new(1 << 20, 4096);
    let plan = FaultPlan::new();
    let clock = TestClock::default();
    let door = Faulty::door(memory.clone(), Rc::new(clock), Rc::new(RealRng::seeded(1)), plan.clone());
    assert!(!door.info().volatile_cache);
    done(door.write(write(0, 9, 4096, Durability::Cached))).unwrap();
    assert_eq!(memory.peek(0, 1), [9]);
    plan.set_errors(OpKind::Read, 1_000_000);
    assert!(done(door.read(0, 4096, QosClass::Foreground)).is_err());
    plan.clear();
    assert_eq!(read(&door, 0, 4096)[0], 9);
}

#[test]
fn one_seed_twice_is_one_run() {
    let run = |seed| {
        let (device, _) = faulty(seed);
        for i in 0..40u8 {
            done(device.write(write(u64::from(i % 8) * 512, i, 2048, Durability::Cached))).unwrap();
        }
        device.crash();
        read(&device, 0, 8192)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn nothing_is_kept_of_requests_that_could_not_be_done() {
    let (device, _) = faulty(1);
    device.plan().set_power(Power::Gone);
    assert!(done(device.write(write(0, 1, 512, Durability::Durable))).is_err());
    device.plan().set_power(Power::Hung);
    drop(device.write(write(0, 1, 512, Durability::Durable)));
    device.plan().set_power(Power::On);
    assert!(device.shared.state.borrow().waiting.is_empty());
    assert_eq!(device.queued(), 0);
    assert_eq!(read(&device, 0, 512)[0], 0);
}
