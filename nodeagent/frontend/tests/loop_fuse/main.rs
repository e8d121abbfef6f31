//! The loop-on-FUSE front end against the real kernel: filesystems, fio, kill -9 of every process.
//!
//! This binary is four: the tests, the server that they kill (`serve`), the holder (`fuse-holder`) and its keeper (`keep`).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test says so when something is not as it should be")]

mod lab;
mod serve;

use lab::{Lab, run, succeeds};
use nodeagent_frontend::{FoundState, adopt, cleanup_orphans, run_holder};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

const MIB: u64 = 1 << 20;

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("a_filesystem_survives_unmount_and_detach", a_filesystem_survives_unmount_and_detach),
    ("fio_verifies_while_the_server_is_killed", fio_verifies_while_the_server_is_killed),
    ("a_mounted_filesystem_grows", a_mounted_filesystem_grows),
    ("discards_reach_the_volume", discards_reach_the_volume),
    ("a_busy_device_is_detached_only_by_force", a_busy_device_is_detached_only_by_force),
    ("a_hung_volume_is_detached_by_force_in_bounded_time", a_hung_volume_is_detached_by_force_in_bounded_time),
    ("a_killed_holder_is_replaced", a_killed_holder_is_replaced),
    ("containers_end_with_all_their_processes", containers_end_with_all_their_processes),
    ("what_is_left_when_all_died_is_cleaned", what_is_left_when_all_died_is_cleaned),
    ("a_session_without_its_loop_device_is_taken_up", a_session_without_its_loop_device_is_taken_up),
    ("a_planned_restart_drains_first", a_planned_restart_drains_first),
    ("a_stopped_server_is_superseded", a_stopped_server_is_superseded),
    ("a_read_only_device_refuses_writes", a_read_only_device_refuses_writes),
    ("errors_of_the_volume_reach_the_caller", errors_of_the_volume_reach_the_caller),
    ("an_idle_server_sleeps", an_idle_server_sleeps),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().and_then(|first| first.into_string().ok()).unwrap_or_default();
    match first.as_str() {
        "fuse-holder" => return run_holder(arguments.collect()),
        "serve" => return serve::main(arguments),
        "keep" => return serve::keep(arguments),
        _ => {}
    }
    if let Some(missing) = lab::missing() {
        println!("skipped: all tests of loop_fuse, because {missing}");
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))) {
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u32::from(!passed);
    }
    println!("test result: {}. {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    ExitCode::from(u8::from(failed > 0))
}

fn a_filesystem_survives_unmount_and_detach() {
    let lab = Lab::new(256 * MIB);
    let mut server = lab.serve();
    succeeds("mkfs.ext4", &["-q", "-F", &server.device]);
    let mount = lab.mount(&server.device);
    let data: Vec<u8> = (0..8 * MIB).map(|i| (i * 7 % 253) as u8).collect();
    std::fs::write(mount.path().join("data"), &data).unwrap();
    drop(mount);
    succeeds("fsck.ext4", &["-fn", &server.device]);
    assert_eq!(server.tell("detach"), "ok");
    assert_eq!(server.tell("detach"), "ok");
    drop(server);
    lab.assert_empty();

    let server = lab.serve();
    let mount = lab.mount(&server.device);
    assert!(std::fs::read(mount.path().join("data")).unwrap() == data, "the file differs");
    drop(mount);
}

fn fio(device: &str, size: &str, extra: &[&str]) -> std::process::Child {
    let filename = format!("--filename={device}");
    let size = format!("--size={size}");
    let mut arguments = vec!["--name=v", &filename, &size, "--direct=1", "--ioengine=libaio", "--rw=randwrite", "--bs=4k"];
    arguments.extend([
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--do_verify=1",
        "--randseed=7",
    ]);
    arguments.extend(extra);
    lab::spawn("fio", &arguments)
}

fn fio_verifies_while_the_server_is_killed() {
    let lab = Lab::new(64 * MIB);
    let mut server = lab.serve();
    let device = server.device.clone();
    let mut fio = fio(&device, "48m", &["--rate_iops=4000", "--loops=2"]);
    let mut resent = 0;
    for _ in 0..6 {
        // Killed when it is in the middle of something: requests are held, so that some are always unanswered.
        server.tell("hold");
        server.wait_for_held();
        server.kill();
        assert_eq!(adopt(&lab.run_dir())[0].state, FoundState::Waiting);
        server = lab.serve();
        assert_eq!(server.device, device);
        server.wait_for_writes(500);
        resent += 1;
    }
    assert!(resent == 6 && fio.wait().unwrap().success());
    assert_eq!(server.tell("trouble"), "none");
    assert_eq!(server.tell("detach"), "ok");
}

fn a_mounted_filesystem_grows() {
    let lab = Lab::new(128 * MIB);
    let mut server = lab.serve();
    succeeds("mkfs.ext4", &["-q", "-F", &server.device]);
    let mount = lab.mount(&server.device);
    let grown = 320 * MIB;
    assert_eq!(server.tell(&format!("grow {grown}")), format!("ok {grown}"));
    assert_eq!(succeeds("blockdev", &["--getsize64", &server.device]).trim(), grown.to_string());
    // Growing a mounted ext4 takes a privilege that root may lack.
    let mount = if run("resize2fs", &[&server.device]).status.success() {
        mount
    } else {
        println!("note: resize2fs may not grow a mounted filesystem here, done unmounted");
        drop(mount);
        succeeds("fsck.ext4", &["-fp", &server.device]);
        succeeds("resize2fs", &[&server.device]);
        lab.mount(&server.device)
    };
    std::fs::write(mount.path().join("big"), vec![1; 200 * MIB as usize]).unwrap();
    // The size is right after the agent's restart too, also when it grew meanwhile.
    server.kill();
    lab.grow(400 * MIB);
    let server = lab.serve();
    assert_eq!(succeeds("blockdev", &["--getsize64", &server.device]).trim(), (400 * MIB).to_string());
    drop(mount);
}

fn discards_reach_the_volume() {
    let lab = Lab::new(128 * MIB);
    let mut server = lab.serve();
    assert_eq!(succeeds("blockdev", &["--getss", &server.device]).trim(), "4096");
    let name = server.device.trim_start_matches("/dev/").to_owned();
    let queue = |setting: &str| std::fs::read_to_string(format!("/sys/block/{name}/queue/{setting}")).unwrap().trim().to_owned();
    assert_eq!(queue("discard_granularity"), "4096");
    assert_eq!(std::fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap().trim(), "1");
    lab.write_at(&server.device, 0, &vec![7; 4 * MIB as usize]);
    succeeds("blkdiscard", &["-o", "1048576", "-l", "1048576", &server.device]);
    succeeds("blkdiscard", &["-z", "-o", "2097152", "-l", "1048576", &server.device]);
    let data = lab.read_at(&server.device, 0, 4 * MIB as usize);
    assert!(data[..MIB as usize].iter().all(|&byte| byte == 7));
    assert!(data[MIB as usize..3 * MIB as usize].iter().all(|&byte| byte == 0));
    assert!(data[3 * MIB as usize..].iter().all(|&byte| byte == 7));
    let counts = server.tell("counts");
    let counts: Vec<u64> = counts.split(' ').map(|count| count.parse().unwrap()).collect();
    assert!(counts[1] + counts[2] >= 2 * MIB, "discarded and zeroed: {counts:?}");

    succeeds("mkfs.ext4", &["-q", "-F", &server.device]);
    let mount = lab.mount(&server.device);
    std::fs::write(mount.path().join("data"), vec![9; 32 * MIB as usize]).unwrap();
    succeeds("sync", &["-f", mount.path().to_str().unwrap()]);
    std::fs::remove_file(mount.path().join("data")).unwrap();
    succeeds("sync", &["-f", mount.path().to_str().unwrap()]);
    succeeds("fstrim", &[mount.path().to_str().unwrap()]);
    let after: u64 = server.tell("counts").split(' ').nth(1).unwrap().parse().unwrap();
    assert!(after >= counts[1] + 32 * MIB, "fstrim discarded {after}");
    drop(mount);
}

fn a_busy_device_is_detached_only_by_force() {
    let lab = Lab::new(128 * MIB);
    let mut server = lab.serve();
    succeeds("mkfs.ext4", &["-q", "-F", &server.device]);
    let mount = lab.mount(&server.device);
    let said = server.tell("detach");
    assert!(said.contains("is in use (mounted"), "{said}");
    std::fs::write(mount.path().join("still"), b"works").unwrap();
    succeeds("sync", &["-f", mount.path().to_str().unwrap()]);
    drop(mount);

    let opened = std::fs::File::open(&server.device).unwrap();
    let said = server.tell("detach");
    assert!(said.contains("is in use (opened by a process)"), "{said}");
    drop(opened);
    // It was told to go and then to stay: closing it didn't take it away.
    assert_eq!(lab.read_at(&server.device, 0, 4096).len(), 4096);

    let mount = lab.mount(&server.device);
    assert_eq!(server.tell("force"), "ok");
    let mut file = std::fs::File::open(mount.path().join("still"));
    let failed = file.as_mut().map_or(true, |file| {
        let mut text = String::new();
        file.read_to_string(&mut text).is_err()
    });
    assert!(failed || lab::read_uncached(&server.device).is_err());
    drop(mount);
    drop(server);
    lab.assert_empty();
}

fn a_hung_volume_is_detached_by_force_in_bounded_time() {
    let lab = Lab::new(64 * MIB);
    let mut server = lab.serve();
    let mut fio = fio(&server.device, "16m", &[]);
    server.tell("hold");
    server.wait_for_held();
    assert!(server.tell("detach").contains("in use"));
    assert_eq!(server.tell("force"), "ok");
    assert!(!fio.wait().unwrap().success(), "fio got an error");
    drop(server);
    lab.assert_empty();
}

fn a_killed_holder_is_replaced() {
    let lab = Lab::new(64 * MIB);
    let mut server = lab.serve();
    let device = server.device.clone();
    let mut fio = fio(&device, "32m", &["--rate_iops=4000"]);
    for _ in 0..2 {
        let holder = lab.holder().unwrap();
        lab::kill(holder);
        lab.wait_for_another_holder(holder);
        server.wait_for_writes(200);
    }
    server.tell("hold");
    server.wait_for_held();
    server.kill();
    let mut server = lab.serve();
    assert_eq!(server.device, device);
    assert!(fio.wait().unwrap().success());
    assert_eq!(server.tell("trouble"), "none");
    assert_eq!(server.tell("detach"), "ok");
    drop(server);
    lab.assert_empty();
}

/// A server in namespaces of its own, whose end is that of all it started; and a keeper outside of them.
fn containers_end_with_all_their_processes() {
    let lab = Lab::new(64 * MIB);
    let mut shared = lab.share();
    let mut server = lab.serve_in_container();
    let device = server.device.clone();
    let mut fio = fio(&device, "48m", &["--rate_iops=4000", "--loops=2"]);
    for round in 0..4 {
        server.wait_for_writes(500);
        if round == 2 {
            // The keeper goes with its holders; the server lives, and has a new one when there is a new keeper.
            let holder = lab.holder().unwrap();
            shared.end_keeper(&lab);
            server.wait_for_writes(200);
            shared.start_keeper(&lab);
            lab.wait_for_another_holder(holder);
        }
        server.tell("hold");
        server.wait_for_held();
        server.kill();
        assert_eq!(adopt(&lab.run_dir())[0].state, FoundState::Waiting);
        server = lab.serve_in_container();
        assert_eq!(server.device, device, "the device is known although the container that made it is gone");
    }
    assert!(fio.wait().unwrap().success());
    assert_eq!(server.tell("trouble"), "none");
    assert_eq!(server.tell("detach"), "ok");
    drop(server);
    lab.assert_empty();
}

fn what_is_left_when_all_died_is_cleaned() {
    let lab = Lab::new(64 * MIB);
    let server = lab.serve();
    let device = server.device.clone();
    lab::kill(lab.holder().unwrap());
    lab::stop_all_then_kill(&server, &lab);
    let found = adopt(&lab.run_dir());
    assert_eq!((found.len(), found[0].state), (1, FoundState::Dead));
    assert_eq!(found[0].device_path.as_deref(), Some(device.as_str()));
    drop(server);
    assert_eq!(cleanup_orphans(&lab.run_dir()), Vec::<String>::new());
    lab.assert_empty();

    // Exporting again needs no cleaning first.
    let server = lab.serve();
    lab::stop_all_then_kill(&server, &lab);
    drop(server);
    let mut server = lab.serve();
    assert_eq!(lab.read_at(&server.device, 0, 4096).len(), 4096);
    assert_eq!(server.tell("detach"), "ok");
    drop(server);
    lab.assert_empty();
}

/// As an agent leaves it that dies before it makes the loop device: the kernel doesn't know the file.
fn a_session_without_its_loop_device_is_taken_up() {
    let lab = Lab::new(64 * MIB);
    let server = lab.serve();
    succeeds("losetup", &["--detach", &server.device]);
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    server.kill();

    let mut server = lab.serve();
    lab.write_at(&server.device, 0, b"taken up");
    assert_eq!(lab.read_at(&server.device, 0, 8), b"taken up");
    assert_eq!(server.tell("detach"), "ok");
    drop(server);
    lab.assert_empty();
}

fn a_planned_restart_drains_first() {
    let lab = Lab::new(64 * MIB);
    let mut server = lab.serve();
    let device = server.device.clone();
    let mut fio = fio(&device, "32m", &["--rate_iops=6000"]);
    for _ in 0..3 {
        server.wait_for_writes(100);
        assert_eq!(server.tell("release"), "ok");
        drop(server);
        server = lab.serve();
        assert_eq!(server.device, device);
    }
    assert!(fio.wait().unwrap().success());
    assert_eq!(server.tell("detach"), "ok");
}

fn a_stopped_server_is_superseded() {
    let lab = Lab::new(64 * MIB);
    let mut first = lab.serve();
    let mut fio = fio(&first.device, "16m", &["--rate_iops=4000"]);
    first.wait_for_writes(100);
    first.stop();
    let mut second = lab.serve();
    assert_eq!(second.device, first.device);
    // Killed before the session is handed on, which the kernel tells a moment before it tells the parent.
    first.wait_for_end();
    assert!(fio.wait().unwrap().success());

    // One that listens goes by itself, and lives on.
    let mut third = lab.serve();
    assert!(!second.ended());
    assert!(second.tell("trouble").contains("another agent serves"));
    assert_eq!(third.tell("trouble"), "none");
    assert_eq!(third.tell("detach"), "ok");
}

fn a_read_only_device_refuses_writes() {
    let lab = Lab::new(64 * MIB);
    let server = lab.serve_with(&["read-only"]);
    assert_eq!(succeeds("blockdev", &["--getro", &server.device]).trim(), "1");
    assert_eq!(lab.read_at(&server.device, 0, 4096), vec![0; 4096]);
    assert!(!run("dd", &["if=/dev/zero", &format!("of={}", server.device), "bs=4k", "count=1", "conv=fsync"]).status.success());
}

fn errors_of_the_volume_reach_the_caller() {
    let lab = Lab::new(64 * MIB);
    let mut server = lab.serve();
    let write = |device: &str| {
        let of = format!("of={device}");
        let output = run("dd", &["if=/dev/zero", &of, "bs=4k", "count=1", "oflag=direct"]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    server.tell("fail nospace");
    let said = write(&server.device);
    assert!(said.contains("No space left on device"), "{said}");
    server.tell("fail none");
    assert!(!write(&server.device).contains("rror"));
    assert_eq!(server.tell("trouble"), "none");
    server.tell("fail fenced");
    let said = write(&server.device);
    assert!(said.contains("Input/output error"), "{said}");
    assert!(server.tell("trouble").contains("served elsewhere"));
    assert_eq!(server.tell("detach"), "ok");
}

fn an_idle_server_sleeps() {
    let lab = Lab::new(64 * MIB);
    let server = lab.serve();
    let holder = lab.holder().unwrap();
    let before = (server.switches(), lab::switches(holder));
    std::thread::sleep(std::time::Duration::from_secs(2));
    let after = (server.switches(), lab::switches(holder));
    // The first look may have caught it on its way to sleep.
    assert!(after.1 - before.1 < 3, "the holder woke up {} times in two seconds", after.1 - before.1);
    assert!(after.0 - before.0 < 20, "the server woke up {} times in two seconds", after.0 - before.0);
    let _ = std::io::stdout().flush();
    println!("resident: holder {} KiB, server {} KiB", lab::resident(holder), lab::resident(server.pid()));
}
