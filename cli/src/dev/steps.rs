//! The steps of `basalt dev`, each of which looks first whether it is done.

use super::layout::{AgentSite, Cluster, Layout, MasterSite};
use super::process::{Program, tail};
use super::{claim, prove};
use crate::agent;
use anyhow::{Context, Result, anyhow, bail};
use api_wire::master_client::MasterConnection;
use api_wire::proto::attach::{DetachVolumeRequest, ListAttachedRequest};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a step waits for processes that have just been started.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks.
const POLL: Duration = Duration::from_millis(100);

/// What all steps need.
pub(crate) struct Steps {
    layout: Layout,
}

impl Steps {
    pub(crate) fn new(layout: Layout) -> Self {
        Steps { layout }
    }

    /// Starts the masters that don't run and waits until one of them leads.
    pub(crate) async fn masters(&self, cluster: &mut Cluster) -> Result<MasterConnection> {
        let bar = spinner("masters");
        let sites = self.layout.masters(&cluster.plan);
        for site in &sites {
            let name = format!("master-{}", site.id);
            if !cluster.processes.contains_key(&name) && std::net::TcpListener::bind(&site.listen).is_err() {
                bail!("{} is taken, perhaps by another cluster: choose another --base-port", site.listen);
            }
            self.start(cluster, &name, master_flags(site, &sites))?;
        }
        let connection = self.connection(cluster)?;
        let mut waited = Duration::ZERO;
        let id = loop {
            match connection.cluster().await {
                Ok(id) => break id,
                Err(error) => {
                    self.all_alive(cluster, "master")?;
                    if waited >= PATIENCE {
                        return Err(error).context("no master leads after 60 s");
                    }
                }
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
        };
        let id = id.to_string();
        if cluster.cluster.as_ref().is_some_and(|known| *known != id) {
            bail!("the masters belong to cluster {id}, not to the one this directory was made for");
        }
        cluster.cluster = Some(id.clone());
        self.layout.save(cluster)?;
        done(&bar, &format!("{} masters, cluster {id}", sites.len()));
        Ok(connection)
    }

    /// Makes and formats the agents' devices. A file that an interrupted run left half-made is made anew.
    pub(crate) fn devices(&self, cluster: &Cluster) -> Result<()> {
        let id = cluster.cluster.clone().context("the masters gave no cluster id")?;
        for site in self.layout.agents(&cluster.plan) {
            let made = site.run_dir.join("formatted");
            if made.exists() {
                continue;
            }
            std::fs::create_dir_all(&site.run_dir).with_context(|| format!("could not make {}", site.run_dir.display()))?;
            let _ = std::fs::remove_file(&site.device);
            let status = std::process::Command::new(std::env::current_exe()?)
                .args(["device", "format", "--cluster", &id, "--size", &cluster.plan.device_bytes.to_string()])
                .arg(&site.device)
                .status()
                .context("could not run the format command")?;
            if !status.success() {
                bail!("could not format {} for {}", site.device.display(), site.node);
            }
            std::fs::write(&made, b"").with_context(|| format!("could not write {}", made.display()))?;
        }
        Ok(())
    }

    /// Starts the agents that don't run and waits until the masters count all of them.
    pub(crate) async fn agents(&self, cluster: &mut Cluster, more_flags: &[String]) -> Result<()> {
        let bar = spinner("agents");
        let id = cluster.cluster.clone().context("the masters gave no cluster id")?;
        let masters = self.masters_flag(cluster);
        let sites = self.layout.agents(&cluster.plan);
        for site in &sites {
            let mut flags = agent_flags(site, &masters, &id);
            flags.extend_from_slice(more_flags);
            self.start(cluster, &format!("agent-{}", site.node), flags)?;
        }
        let connection = self.connection(cluster)?;
        let mut waited = Duration::ZERO;
        loop {
            let up = connection.devices().await.map_or(0, |devices| devices.len());
            if up >= sites.len() && sites.iter().all(|site| std::os::unix::net::UnixStream::connect(&site.socket).is_ok()) {
                break;
            }
            self.all_alive(cluster, "agent")?;
            if waited >= PATIENCE {
                bail!(
                    "only {up} of {} agents have registered after 60 s; {}",
                    sites.len(),
                    tail(&self.layout.log("agent-node-a"))
                );
            }
            bar.set_message(format!("agents: {up} of {} registered", sites.len()));
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        done(&bar, &format!("{} agents, one device of {} each", sites.len(), api_types::size::show(cluster.plan.device_bytes)));
        Ok(())
    }

    /// Starts the CSI driver, beside the first agent.
    pub(crate) async fn csi(&self, cluster: &mut Cluster) -> Result<()> {
        let bar = spinner("csi driver");
        let socket = self.layout.csi_socket();
        let agents = self.layout.agents(&cluster.plan);
        let agent = agents.first().context("a cluster has at least one agent")?;
        let flags = [
            "csi".to_owned(),
            "--endpoint".to_owned(),
            format!("unix://{}", socket.display()),
            "--mode".to_owned(),
            "all".to_owned(),
            "--node-name".to_owned(),
            agent.node.clone(),
            "--masters".to_owned(),
            self.masters_flag(cluster),
            "--agent-socket".to_owned(),
            agent.socket.display().to_string(),
            "--state-dir".to_owned(),
            self.layout.dir.join("csi/state").display().to_string(),
        ];
        self.start(cluster, "csi", flags.to_vec())?;
        let mut waited = Duration::ZERO;
        while let Err(error) = claim::probe(&socket).await {
            self.all_alive(cluster, "csi")?;
            if waited >= PATIENCE {
                return Err(error).context("the CSI driver is not ready after 60 s");
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        done(&bar, "CSI driver");
        Ok(())
    }

    /// Claims the volume and mounts it, as kubelet would.
    pub(crate) async fn mount(&self, cluster: &mut Cluster, volume: &str, bytes: u64, fs: &str) -> Result<PathBuf> {
        let bar = spinner("volume");
        let mount = self.layout.mount(volume);
        let claim = claim::Claim { name: volume.to_owned(), bytes, fs: fs.to_owned() };
        let socket = self.layout.csi_socket();
        bar.set_message("volume: claiming");
        let created = claim::create(&socket, &claim).await?;
        bar.set_message("volume: attaching and mounting");
        let node = self.layout.agents(&cluster.plan)[0].node.clone();
        claim::mount(&socket, &claim, &created, &node, &self.layout.staging(volume), &mount).await?;
        cluster.mounted.insert(volume.to_owned(), created.id.clone());
        self.layout.save(cluster)?;
        done(&bar, &format!("volume {} ({}, {}) mounted in {}", volume, api_types::size::show(bytes), fs, mount.display()));
        Ok(mount)
    }

    /// Copies a tree in, mounts the volume again, and compares.
    pub(crate) async fn tree(&self, cluster: &mut Cluster, volume: &str, tree: Option<&Path>, wanted: u64) -> Result<()> {
        let source = match tree {
            Some(tree) => tree.to_owned(),
            None => prove::find_tree(wanted)?,
        };
        let (files, bytes) = prove::choose(&source, wanted);
        let mount = self.layout.mount(volume);
        let aside = mount.join("tree.new");
        if aside.exists() {
            std::fs::remove_dir_all(&aside).with_context(|| format!("could not clear {}", aside.display()))?;
        }
        let bar = byte_bar(bytes, &format!("copying {} files of {}", files.len(), source.display()));
        let sums = prove::copy(&source, &files, &aside, &bar)?;
        // This filesystem alone: a sync of everything would wait for whatever else hangs on the machine.
        let synced = std::process::Command::new("sync").arg("-f").arg(&mount).status().context("could not run sync")?;
        anyhow::ensure!(synced.success(), "sync of {} failed", mount.display());
        done(&bar, &format!("copied {} files, {}", sums.len(), api_types::size::show(bar.position())));
        let bar = spinner("mounting again");
        let (id, fs) = (cluster.mounted.get(volume).cloned().context("the volume is not mounted")?, "");
        claim::unmount(&self.layout.csi_socket(), &id, &self.node(cluster), &self.layout.staging(volume), &mount).await?;
        let claim = claim::Claim { name: volume.to_owned(), bytes: 0, fs: fs.to_owned() };
        let created = claim::Created { id, context: Default::default() };
        claim::mount(&self.layout.csi_socket(), &claim, &created, &self.node(cluster), &self.layout.staging(volume), &mount)
            .await?;
        done(&bar, "mounted again");
        let bar = byte_bar(bytes, "comparing");
        prove::compare(&aside, &sums, &bar)?;
        done(&bar, &format!("all {} files are as they were", sums.len()));
        std::fs::rename(&aside, mount.join("tree")).context("could not name the copied tree")
    }

    /// Unmounts what is mounted.
    pub(crate) async fn unmount_all(&self, cluster: &mut Cluster) -> Result<()> {
        let socket = self.layout.csi_socket();
        let node = self.node(cluster);
        for (volume, id) in cluster.mounted.clone() {
            let bar = spinner(&format!("unmounting {volume}"));
            if cluster.processes.get("csi").is_none_or(|csi| !csi.is_alive()) {
                self.csi(cluster).await.context("the CSI driver is needed to unmount, and does not start")?;
            }
            claim::unmount(&socket, &id, &node, &self.layout.staging(&volume), &self.layout.mount(&volume)).await?;
            cluster.mounted.remove(&volume);
            self.layout.save(cluster)?;
            done(&bar, &format!("{volume} unmounted"));
        }
        Ok(())
    }

    /// Takes what people attached by hand away again: without its agent nobody would answer for it.
    pub(crate) async fn detach_all(&self, cluster: &Cluster) -> Result<()> {
        for site in self.layout.agents(&cluster.plan) {
            let process = cluster.processes.get(&format!("agent-{}", site.node));
            if !process.is_some_and(super::process::Running::is_alive) {
                continue;
            }
            let failed = |what: &str| format!("{what} on {}", site.node);
            let client = agent::connect(&site.socket, PATIENCE).await.map_err(|failure| anyhow!(failure.text()));
            let mut client = client.with_context(|| failed("could not ask for attached volumes"))?;
            let attached =
                client.list_attached(ListAttachedRequest {}).await.with_context(|| failed("could not list volumes"))?;
            for volume in attached.into_inner().attached {
                let request = DetachVolumeRequest { volume: volume.volume, force: false };
                let what = format!("could not detach {} ({}): unmount or close it first", volume.name, volume.device_path);
                client.detach_volume(request).await.with_context(|| failed(&what))?;
            }
        }
        Ok(())
    }

    /// Says what there is now and what can be done with it.
    pub(crate) fn farewell(&self, cluster: &Cluster) {
        let me = std::env::args().next().unwrap_or_else(|| "basalt".to_owned());
        let dir = self.layout.dir.display();
        println!();
        for volume in cluster.mounted.keys() {
            println!("  mounted   {}", self.layout.mount(volume).display());
        }
        println!("  look      {me} status --watch --dir {dir}");
        println!("  logs      {}", self.layout.dir.join("logs").display());
        println!("  metrics   http://{}/metrics", self.layout.agents(&cluster.plan)[0].metrics);
        println!("  stop      {me} dev down --dir {dir}");
    }

    fn node(&self, cluster: &Cluster) -> String {
        self.layout.agents(&cluster.plan)[0].node.clone()
    }

    fn masters_flag(&self, cluster: &Cluster) -> String {
        self.layout.masters(&cluster.plan).into_iter().map(|master| master.listen).collect::<Vec<_>>().join(",")
    }

    fn connection(&self, cluster: &Cluster) -> Result<MasterConnection> {
        let endpoints = self.layout.masters(&cluster.plan).into_iter().map(|master| master.listen).collect();
        MasterConnection::connect(endpoints, Default::default()).context("could not make a connection to the masters")
    }

    /// Starts a process unless it runs, and remembers it at once.
    fn start(&self, cluster: &mut Cluster, name: &str, args: Vec<String>) -> Result<()> {
        if cluster.processes.get(name).is_some_and(super::process::Running::is_alive) {
            return Ok(());
        }
        let program = Program { name: name.to_owned(), args, log: self.layout.log(name) };
        cluster.processes.insert(name.to_owned(), program.start()?);
        self.layout.save(cluster)
    }

    /// Fails with the end of its log when a process of this kind has ended.
    fn all_alive(&self, cluster: &Cluster, kind: &str) -> Result<()> {
        match cluster.processes.iter().find(|(name, running)| name.starts_with(kind) && !running.is_alive()) {
            None => Ok(()),
            Some((name, _)) => bail!("{name} has ended; {}", tail(&self.layout.log(name))),
        }
    }
}

fn master_flags(site: &MasterSite, all: &[MasterSite]) -> Vec<String> {
    let initial: Vec<String> = all.iter().map(|other| format!("{}={}", other.id, other.listen)).collect();
    vec![
        "master".to_owned(),
        "run".to_owned(),
        "--id".to_owned(),
        site.id.to_string(),
        "--listen".to_owned(),
        site.listen.clone(),
        "--data-dir".to_owned(),
        site.data_dir.display().to_string(),
        "--initial".to_owned(),
        initial.join(","),
        "--metrics-listen".to_owned(),
        site.metrics.clone(),
    ]
}

fn agent_flags(site: &AgentSite, masters: &str, cluster: &str) -> Vec<String> {
    vec![
        "agent".to_owned(),
        "--node-name".to_owned(),
        site.node.clone(),
        "--cluster".to_owned(),
        cluster.to_owned(),
        "--masters".to_owned(),
        masters.to_owned(),
        "--device".to_owned(),
        site.device.display().to_string(),
        "--listen".to_owned(),
        site.listen.clone(),
        "--run-dir".to_owned(),
        site.run_dir.display().to_string(),
        "--metrics-listen".to_owned(),
        site.metrics.clone(),
    ]
}

fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn byte_bar(bytes: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg:40} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// Ends a bar with a line that stays, also where there is no terminal.
fn done(bar: &ProgressBar, text: &str) {
    bar.finish_and_clear();
    println!("  done      {text}");
}
