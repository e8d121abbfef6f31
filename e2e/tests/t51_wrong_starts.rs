//! Daemons started wrongly end at once, with one sentence that says what is wrong and what to do.

use anyhow::{Result, ensure};
use e2e::{Cluster, Options, binary, can_run};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longer than any of these may take: locks and ports that are in use are waited for a while.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a daemon that must fail, and answers what it said.
fn fails(command: &mut Command) -> Result<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    let Ok(output) = told.recv_timeout(LIMIT) else {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
        anyhow::bail!("{command:?} did not end");
    };
    let output = output?;
    ensure!(!output.status.success(), "{command:?} succeeded");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout))
}

/// The flags of a running agent, some of them changed.
fn like_the_first_agent(cluster: &Cluster, changes: &[(&str, &str)]) -> Result<Command> {
    let mut args = cluster.process(&cluster.names("agent-")[0])?.program.args.clone();
    for (flag, value) in changes {
        match args.iter().position(|arg| arg == flag) {
            Some(place) => (*value).clone_into(&mut args[place + 1]),
            None => args.extend([(*flag).to_owned(), (*value).to_owned()]),
        }
    }
    let mut command = Command::new(binary()?);
    command.args(args);
    Ok(command)
}

#[test]
fn a_daemon_that_cannot_run_says_why_and_what_to_do() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 23_200, volume: None, ..Options::default() })?;
    let dir = cluster.dir().join("wrong");
    std::fs::create_dir(&dir)?;
    let elsewhere = dir.join("run");
    let elsewhere = elsewhere.to_str().unwrap_or_default();
    let socket = dir.join("attach.sock");
    let apart = [
        ("--run-dir", elsewhere),
        ("--attach-socket", socket.to_str().unwrap_or_default()),
        ("--listen", "127.0.0.1:23390"),
        ("--metrics-listen", "127.0.0.1:23391"),
        ("--node-name", "node-z"),
    ];

    let text = fails(&mut like_the_first_agent(&cluster, &[])?)?;
    ensure!(text.contains("--run-dir"), "the same agent twice: {text}");

    let text = fails(&mut like_the_first_agent(&cluster, &apart)?)?;
    ensure!(text.contains("in use"), "two agents on one device: {text}");

    let blank = dir.join("blank.img");
    std::fs::File::create(&blank)?.set_len(1 << 30)?;
    let with_blank = [&apart[..], &[("--device", blank.to_str().unwrap_or_default())]].concat();
    let text = fails(&mut like_the_first_agent(&cluster, &with_blank)?)?;
    ensure!(text.contains("blank.img") && text.contains("format"), "a device without a store: {text}");

    let foreign = [&with_blank[..], &[("--cluster", "00000000-0000-4000-8000-000000000001")]].concat();
    let device = cluster.dir().join("agents/node-b/device-0.img");
    cluster.kill("agent-node-b")?;
    let foreign = [&foreign[..], &[("--device", device.to_str().unwrap_or_default())]].concat();
    let text = fails(&mut like_the_first_agent(&cluster, &foreign)?)?;
    ensure!(text.contains("cluster"), "a device of another cluster: {text}");

    let text = fails(Command::new(binary()?).args(["agent", "--listen", "nowhere"]))?;
    ensure!(text.contains("--listen"), "an address that is none: {text}");

    let taken = &cluster.process("master-1")?.program.args;
    let place = taken.iter().position(|arg| arg == "--listen").map_or(0, |place| place + 1);
    let address = taken[place].clone();
    let data = dir.join("master");
    let data = data.to_str().unwrap_or_default();
    let text = fails(Command::new(binary()?).args(["master", "run", "--id", "9", "--data-dir", data, "--listen", &address]))?;
    ensure!(text.contains(&address) && text.contains("in use"), "an address that is taken: {text}");
    Ok(())
}

#[test]
fn without_root_the_kernels_door_is_closed_and_nbd_is_open() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let options = Options { base_port: 23_600, volume: None, ..Options::default() };
    let cluster = Cluster::start(options)?;
    // A user namespace without a mapping: nobody, with no privilege, who may read what root's files allow.
    let nobody = |args: &[String]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--"]).arg(binary()?).args(args);
        Ok::<_, anyhow::Error>(command)
    };
    let text = fails(&mut nobody(&["dev".into(), "--dir".into(), cluster.dir().join("other").display().to_string()])?)?;
    ensure!(text.contains("root"), "a cluster without root: {text}");

    cluster.kill("agent-node-d")?;
    let log = std::fs::File::create(cluster.dir().join("logs/unprivileged.log"))?;
    let mut agent = nobody(&cluster.process("agent-node-d")?.program.args)?;
    let mut agent = agent.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    let tried = try_both_doors(&cluster);
    agent.kill()?;
    agent.wait()?;
    tried
}

fn try_both_doors(cluster: &Cluster) -> Result<()> {
    cluster.basalt(&["volume", "create", "db-0", "--size", "64Mi"])?;
    let attach = |door| cluster.basalt(&["volume", "attach", "db-0", "--node", "node-d", "--front-end", door]);
    e2e::wait_for("the agent's socket", || {
        Ok(!matches!(attach("loop-fuse"), Err(error) if error.to_string().contains("could not reach")))
    })?;
    let refused = attach("loop-fuse").err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("root"), "the kernel's door without root: {refused}");
    let there = attach("nbd")?;
    ensure!(there.contains("nbd+unix"), "NBD without root: {there}");
    cluster.basalt(&["volume", "detach", "db-0", "--node", "node-d"])?;
    cluster.basalt(&["volume", "delete", "db-0"]).map(drop)
}
