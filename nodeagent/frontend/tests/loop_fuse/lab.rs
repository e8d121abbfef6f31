//! A run directory, its servers and its mounts. Dropping it leaves nothing behind, whatever a test did.

use nodeagent_frontend::{abandon, adopt, cleanup_orphans};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// What stands in the way of these tests on this machine.
pub(crate) fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("they need root".to_owned());
    }
    let paths = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    if let Some(path) = paths {
        return Some(format!("{path} is missing"));
    }
    let tools = ["fio", "mkfs.ext4", "resize2fs", "blkdiscard", "fstrim", "mount", "umount"];
    let found = |tool: &str| ["/bin", "/sbin", "/usr/bin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(tool).exists());
    tools.into_iter().find(|tool| !found(tool)).map(|tool| format!("{tool} is not installed"))
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new("timeout").args(["-k", "1", "60", program]).args(arguments).output().unwrap()
}

pub(crate) fn spawn(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "90", program]).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out}{error}");
    out.into_owned()
}

pub(crate) fn kill(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

fn status(pid: i32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn switches(pid: i32) -> u64 {
    status(pid, "voluntary_ctxt_switches:")
}

pub(crate) fn resident(pid: i32) -> u64 {
    status(pid, "VmRSS:")
}

/// Waits until something is so; a minute at most.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}

/// Kills the server and all holders of a lab, so that neither can help the other.
pub(crate) fn stop_all_then_kill(server: &Server, lab: &Lab) {
    let pid = nix::unistd::Pid::from_raw(server.pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    lab.holders().into_iter().for_each(kill);
    kill(server.pid());
    until("the server and the holders die", || lab.holders().is_empty() && switches_of_the_living(server.pid()).is_none());
}

fn switches_of_the_living(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find(|line| line.starts_with("State:")).filter(|line| !line.contains('Z')).map(str::to_owned)
}

pub(crate) fn read_uncached(device: &str) -> std::io::Result<usize> {
    let output = run("dd", &[&format!("if={device}"), "of=/dev/null", "bs=4k", "count=1", "iflag=direct"]);
    if output.status.success() { Ok(4096) } else { Err(std::io::Error::other("dd failed")) }
}

pub(crate) struct Lab {
    dir: Option<tempfile::TempDir>,
    size: u64,
}

impl Lab {
    pub(crate) fn new(size: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("basalt-lab").tempdir_in("/dev/shm").unwrap();
        Lab { dir: Some(dir), size }
    }

    fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir().join("run")
    }

    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    pub(crate) fn serve_with(&self, more: &[&str]) -> Server {
        self.start(Command::new(std::env::current_exe().unwrap()), more)
    }

    /// In namespaces of its own for processes and mounts, as in a pod. The run directory must be [`Lab::share`]d.
    pub(crate) fn serve_in_container(&self) -> Server {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount", "--propagation", "unchanged", "--"]);
        command.arg(std::env::current_exe().unwrap());
        self.start(command, &["keeper"])
    }

    /// Mounts in the run directory are seen from all namespaces, and a keeper runs in it.
    pub(crate) fn share(&self) -> Shared {
        std::fs::create_dir_all(self.run_dir()).unwrap();
        let dir = self.run_dir().display().to_string();
        succeeds("mount", &["--bind", &dir, &dir]);
        succeeds("mount", &["--make-shared", &dir]);
        let mut shared = Shared { dir: self.run_dir(), keeper: None };
        shared.start_keeper(self);
        shared
    }

    fn start(&self, mut command: Command, more: &[&str]) -> Server {
        command.arg("serve").arg(self.run_dir()).arg(self.dir().join("backing")).arg(self.size.to_string()).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut server = Server { child, input, output, device: String::new() };
        server.device = server.hear();
        assert!(server.device.starts_with("/dev/loop"), "{}", server.device);
        server
    }

    /// As if the volume grew while no agent ran.
    pub(crate) fn grow(&self, size: u64) {
        File::options().write(true).open(self.dir().join("backing")).unwrap().set_len(size).unwrap();
    }

    pub(crate) fn mount(&self, device: &str) -> Mount {
        let at = self.dir().join("fs");
        std::fs::create_dir_all(&at).unwrap();
        succeeds("mount", &["-o", "errors=continue", device, at.to_str().unwrap()]);
        Mount(at)
    }

    pub(crate) fn write_at(&self, device: &str, offset: u64, data: &[u8]) {
        let file = File::options().write(true).open(device).unwrap();
        file.write_all_at(data, offset).unwrap();
        file.sync_all().unwrap();
    }

    pub(crate) fn read_at(&self, device: &str, offset: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        let file = File::options().read(true).custom_flags(libc::O_CLOEXEC).open(device).unwrap();
        file.read_exact_at(&mut data, offset).unwrap();
        data
    }

    pub(crate) fn holders(&self) -> Vec<i32> {
        let run_dir = self.run_dir().display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        processes
            .filter(|pid: &i32| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let command = String::from_utf8_lossy(&command);
                command.contains("fuse-holder") && command.contains(&run_dir)
            })
            .collect()
    }

    pub(crate) fn holder(&self) -> Option<i32> {
        self.holders().first().copied()
    }

    pub(crate) fn wait_for_another_holder(&self, than: i32) {
        until("a new holder starts", || {
            let path = self.run_dir().join("loop-fuse/v-7/holder.sock");
            self.holders().iter().any(|&pid| pid != than) && std::os::unix::net::UnixStream::connect(path).is_ok()
        });
    }

    /// Nothing of this lab is in the kernel, in the process table or in the run directory.
    pub(crate) fn assert_empty(&self) {
        let dir = self.dir().display().to_string();
        until("the holder exits", || self.holders().is_empty());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&format!("{dir}/run/loop-fuse")), "a mount is left");
        let loops = succeeds("losetup", &["-a"]);
        assert!(!loops.contains(&dir), "a loop device is left: {loops}");
        let left: Vec<_> = std::fs::read_dir(self.run_dir().join("loop-fuse")).map(Iterator::collect).unwrap_or_default();
        assert!(left.is_empty(), "files are left: {left:?}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for found in adopt(&self.run_dir()) {
            let _ = abandon(&self.run_dir(), found.volume);
        }
        let _ = Command::new("umount").arg("-l").arg(self.dir().join("fs")).stderr(Stdio::null()).status();
        self.holders().into_iter().for_each(kill);
        let stays = cleanup_orphans(&self.run_dir());
        if !stays.is_empty() {
            eprintln!("left behind: {stays:?}");
        }
        if let Some(dir) = self.dir.take() {
            let _ = dir.close();
        }
    }
}

/// A run directory that several namespaces see, with a keeper.
pub(crate) struct Shared {
    dir: PathBuf,
    keeper: Option<Child>,
}

impl Shared {
    pub(crate) fn start_keeper(&mut self, lab: &Lab) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg("keep").arg(lab.run_dir()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        self.keeper = Some(child);
    }

    /// All that it started ends too, as in a container.
    pub(crate) fn end_keeper(&mut self, lab: &Lab) {
        let mut keeper = self.keeper.take().unwrap();
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        lab.holders().into_iter().for_each(kill);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }
}

pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Without a server this hangs, and no signal ends it, until the lab aborts the session: never wait for long.
        if let Ok(mut unmounting) = Command::new("umount").arg(&self.0).spawn() {
            for _ in 0..500 {
                if unmounting.try_wait().is_ok_and(|status| status.is_some()) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

pub(crate) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) device: String,
}

impl Server {
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn tell(&mut self, order: &str) -> String {
        writeln!(self.input, "{order}").unwrap();
        self.hear()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn switches(&self) -> u64 {
        switches(self.pid())
    }

    /// Waits until requests have been read and can't be answered.
    pub(crate) fn wait_for_held(&mut self) {
        until("requests are held", || self.tell("held").parse::<u32>().unwrap() > 0);
    }

    /// Waits until so many more blocks are written.
    pub(crate) fn wait_for_writes(&mut self, blocks: u64) {
        let mut written = || self.tell("counts").split(' ').next().unwrap().parse::<u64>().unwrap();
        let begin = written();
        until("blocks are written", || written() >= begin + blocks * 4096);
    }

    pub(crate) fn stop(&self) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    }

    pub(crate) fn wait_for_end(&mut self) {
        until("the server ends", || self.ended());
    }

    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut rest = String::new();
        let _ = self.output.read_to_string(&mut rest);
    }
}
