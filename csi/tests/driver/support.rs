//! A driver with everything around it.

mod agent;
mod host;
mod masters;

pub(crate) use agent::LoopAgent;
pub(crate) use host::{BrokenHost, Moment};
pub(crate) use masters::MemoryMasters;

use api_types::NodeName;
use csi::agent::SocketAgent;
use csi::host::LinuxHost;
use csi::node::NodeService;
use csi::proto::controller_client::ControllerClient;
use csi::proto::identity_client::IdentityClient;
use csi::proto::node_client::NodeClient;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::proto::{
    CapacityRange, CreateVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};
use csi::record::Records;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub(crate) const NODE: &str = "node-a";
pub(crate) const MIB: u64 = 1 << 20;

/// A driver that serves, and what it works with.
pub(crate) struct Driver {
    pub(crate) masters: Arc<MemoryMasters>,
    pub(crate) agent: Arc<LoopAgent>,
    pub(crate) host: Arc<BrokenHost>,
    pub(crate) dir: TempDir,
    channel: Channel,
    stop: Vec<oneshot::Sender<()>>,
}

impl Driver {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let masters = Arc::new(MemoryMasters::new(&[NODE, "node-b"]));
        let agent = Arc::new(LoopAgent::new(&dir.path().join("volumes"), Arc::clone(&masters)));
        let (agent_stop, agent_stopped) = oneshot::channel();
        tokio::spawn(Arc::clone(&agent).serve(dir.path().join("attach.sock"), agent_stopped));
        let host = Arc::new(BrokenHost::new(LinuxHost));
        let channel = connect(&dir.path().join("csi.sock")).await;
        let mut driver = Driver { masters, agent, host, dir, channel, stop: vec![agent_stop] };
        driver.serve();
        driver
    }

    /// Ends the driver, as kill -9 would, and starts another one on the same machine.
    pub(crate) async fn restart(&mut self) {
        // The last one is the driver's own.
        drop(self.stop.pop());
        self.serve();
        self.channel = connect(&self.socket()).await;
    }

    fn serve(&mut self) {
        let socket = self.socket();
        std::fs::remove_file(&socket).ok();
        let agent = Arc::new(SocketAgent::new(&self.dir.path().join("attach.sock")));
        let records = Records::open(&self.dir.path().join("state")).unwrap();
        let labels = BTreeMap::from([("zone".to_owned(), "z1".to_owned())]);
        let host: Arc<BrokenHost> = Arc::clone(&self.host);
        let node = NodeService::new(NodeName::from(NODE), labels, agent, host, records);
        let masters: Arc<MemoryMasters> = Arc::clone(&self.masters);
        let services = csi::Services { masters: Some(masters), node: Some(node) };
        let (stop, stopped) = oneshot::channel::<()>();
        self.stop.push(stop);
        tokio::spawn(async move {
            tokio::select! {
                served = csi::serve(&socket, services, std::future::pending()) => served.unwrap(),
                _ = stopped => {}
            }
        });
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.dir.path().join("staging")
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.dir.path().join("pods/target")
    }

    /// Makes a volume and answers its handle.
    pub(crate) async fn create(&self, name: &str, bytes: u64) -> String {
        let created = self.controller().create_volume(create_request(name, bytes)).await.unwrap().into_inner();
        created.volume.unwrap().volume_id
    }

    pub(crate) async fn stage(&self, volume: &str, capability: VolumeCapability) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: text(&self.staging()),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.node().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, volume: &str, capability: VolumeCapability, readonly: bool) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: text(&self.staging()),
            target_path: text(&self.target()),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: text(&self.target()) };
        self.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, volume: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: text(&self.staging()) };
        self.node().node_unstage_volume(request).await.map(drop)
    }

    /// Takes everything of a volume off this node, and checks that nothing is left.
    pub(crate) async fn take_away(&self, volume: &str) {
        self.unpublish(volume).await.unwrap();
        self.unstage(volume).await.unwrap();
        self.assert_clean();
    }

    /// No mount, no attachment, no note and no target is left.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new(), "mounts are left");
        assert_eq!(self.agent.attached(), 0, "attachments are left");
        assert_eq!(self.dir.path().join("state").read_dir().unwrap().count(), 0, "notes are left");
        assert!(!self.target().exists(), "the target is left");
    }

    /// Mount points below the driver's folder.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        csi::mounts::parse(&table).into_iter().map(|mount| mount.target).filter(|at| at.starts_with(self.dir.path())).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A failed test leaves no mounts behind.
        for mount in self.mounts().into_iter().rev() {
            nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH).ok();
        }
        self.agent.detach_all();
    }
}

/// Waits for nothing: the channel connects when it is used, and again after a restart.
pub(crate) async fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            loop {
                match tokio::net::UnixStream::connect(&socket).await {
                    Ok(stream) => return Ok::<_, std::io::Error>(TokioIo::new(stream)),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        }
    });
    Endpoint::from_static("http://csi").connect_with_connector_lazy(connector)
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn filesystem(kind: &str) -> VolumeCapability {
    let mount = MountVolume { fs_type: kind.to_owned(), ..Default::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

pub(crate) fn block() -> VolumeCapability {
    VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), ..filesystem("") }
}

pub(crate) fn create_request(name: &str, bytes: u64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
        volume_capabilities: vec![filesystem("ext4")],
        ..Default::default()
    }
}

#[track_caller]
pub(crate) fn assert_code<T: std::fmt::Debug>(result: Result<T, Status>, code: Code) {
    match result {
        Ok(value) => panic!("{value:?} instead of {code:?}"),
        Err(status) => assert_eq!(status.code(), code, "{}", status.message()),
    }
}

/// Mounting needs root and loop devices. Prints why when it can't be tested here.
pub(crate) fn can_mount() -> bool {
    let reason = if !nix::unistd::geteuid().is_root() {
        "this test mounts: run it as root"
    } else if !Path::new("/dev/loop-control").exists() {
        "this test needs loop devices"
    } else {
        return true;
    };
    eprintln!("skipped: {reason}");
    false
}

/// The kernel lets a mounted ext4 grow only with CAP_SYS_RESOURCE (bit 24), which containers often lack.
pub(crate) fn can_grow(kind: &str) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let can = kind != "ext4" || u64::from_str_radix(effective, 16).unwrap() & (1 << 24) != 0;
    if !can {
        eprintln!("skipped: growing a mounted {kind} needs CAP_SYS_RESOURCE");
    }
    can
}
