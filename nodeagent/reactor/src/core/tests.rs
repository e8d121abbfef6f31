use super::*;
use std::convert::Infallible;
use std::sync::mpsc as sync_mpsc;

fn start<S: Send + 'static>(options: Options, state: S) -> Core<S> {
    futures::executor::block_on(Core::start(options, move || async move { Ok::<_, Infallible>(state) })).unwrap()
}

fn run<S: 'static, T: Send + 'static, F, Fut>(core: &Core<S>, job: F) -> Result<T, Stopped>
where
    F: FnOnce(Rc<S>) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    futures::executor::block_on(core.handle().run("test", job))
}

#[test]
fn jobs_run_on_the_named_thread_with_its_state() {
    let core = start(Options { name: "core-7".to_owned(), ..Options::default() }, 41);
    let answer = run(&core, |state| async move { (*state + 1, std::thread::current().name().map(str::to_owned)) });
    assert_eq!(answer, Ok((42, Some("core-7".to_owned()))));
    assert!(core.stop(|_| async {}));
}

#[test]
fn a_state_that_cannot_be_made_is_the_error_of_the_start() {
    let started = futures::executor::block_on(Core::<()>::start(Options::default(), || async { Err("no") }));
    assert!(matches!(started, Err(StartError::State("no"))));
}

#[test]
fn a_cpu_that_does_not_exist_is_an_error() {
    let options = Options { cpu: Some(100_000), ..Options::default() };
    let started = futures::executor::block_on(Core::start(options, || async { Ok::<_, Infallible>(()) }));
    assert!(matches!(started, Err(StartError::Thread(_))));
}

#[test]
fn a_pinned_core_stays_on_its_cpu() {
    let core = start(Options { cpu: Some(0), ..Options::default() }, ());
    assert_eq!(run(&core, |_| async { rustix::thread::sched_getcpu() }), Ok(0));
    core.stop(|_| async {});
}

#[test]
fn stopping_runs_what_was_taken_in_and_then_the_last_job() {
    let core = start(Options::default(), ());
    let (tell, told) = sync_mpsc::channel();
    for number in 0..10 {
        let tell = tell.clone();
        core.handle().try_spawn("test", move |_| async move { tell.send(number).unwrap() }).unwrap();
    }
    let handle = core.handle();
    assert!(core.stop(move |_| async move {
        tokio::task::yield_now().await;
        tell.send(99).unwrap()
    }));
    assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99]);
    assert_eq!(futures::executor::block_on(handle.run("test", |_| async {})), Err(Stopped));
    assert_eq!(handle.try_spawn("test", |_| async {}), Err(TrySpawnError::Stopped));
}

#[test]
fn a_full_inbox_refuses_at_once() {
    let core = start(Options { inbox: 1, ..Options::default() }, ());
    let (enter, entered) = sync_mpsc::channel();
    let (release, released) = sync_mpsc::channel::<()>();
    let block = move |_: Rc<()>| async move {
        enter.send(()).unwrap();
        released.recv().unwrap();
    };
    core.handle().try_spawn("block", block).unwrap();
    entered.recv().unwrap();
    core.handle().try_spawn("test", |_| async {}).unwrap();
    assert_eq!(core.handle().try_spawn("test", |_| async {}), Err(TrySpawnError::Full));
    release.send(()).unwrap();
    assert!(core.stop(|_| async {}));
}

#[test]
fn a_task_that_holds_the_thread_is_counted_by_name() {
    let core = start(Options { quantum: Duration::from_millis(1), ..Options::default() }, ());
    let handle = core.handle();
    let hold = |_| async {
        let began = crate::RealClock::monotonic();
        while crate::RealClock::monotonic() - began < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
    };
    futures::executor::block_on(handle.run("hog", hold)).unwrap();
    // The answer is sent from within the poll that is being timed.
    run(&core, |_| async {}).unwrap();
    let stats = handle.stats();
    assert_eq!(stats.overruns["hog"].count, 1);
    assert!(stats.overruns["hog"].longest >= Duration::from_millis(2));
    assert!(stats.polls >= 1, "the poll of the question itself may still go on");
    core.stop(|_| async {});
}

#[test]
fn background_work_runs_elsewhere_and_its_panic_is_an_error() {
    let core = start(Options::default(), ());
    let elsewhere = run(&core, |_| async {
        let own = std::thread::current().id();
        background(move || std::thread::current().id() != own).await
    });
    assert_eq!(elsewhere, Ok(Ok(true)));
    let panicked = run(&core, |_| background(|| panic!("on purpose")));
    assert_eq!(panicked, Ok(Err::<(), _>(BackgroundError::Ended)));
    core.stop(|_| async {});
}

#[test]
fn a_spinning_core_works_and_stops() {
    let core = start(Options { spin: Duration::from_micros(200), ..Options::default() }, ());
    for _ in 0..20 {
        run(&core, |_| async { tokio::task::yield_now().await }).unwrap();
    }
    assert!(core.stop(|_| async {}));
}
