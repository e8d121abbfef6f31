//! An agent whose volumes are files and whose devices are loop devices over them.

use super::MemoryMasters;
use api_types::VolumeId;
use api_wire::proto::attach::attach_server::{Attach, AttachServer};
use api_wire::proto::attach::{
    AttachVolumeRequest, AttachVolumeResponse, Attached, DetachVolumeRequest, DetachVolumeResponse, ListAttachedRequest,
    ListAttachedResponse, ResizeVolumeRequest, ResizeVolumeResponse, SlowDeviceRequest, SlowDeviceResponse, TraceVolumeRequest,
    TraceVolumeResponse,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

pub(crate) struct LoopAgent {
    dir: PathBuf,
    masters: Arc<MemoryMasters>,
    devices: Mutex<BTreeMap<u64, String>>,
}

struct Door(Arc<LoopAgent>);

impl LoopAgent {
    pub(crate) fn new(dir: &Path, masters: Arc<MemoryMasters>) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        LoopAgent { dir: dir.to_owned(), masters, devices: Mutex::default() }
    }

    pub(crate) async fn serve(self: Arc<Self>, socket: PathBuf, stopped: oneshot::Receiver<()>) {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(AttachServer::new(Door(self)));
        server
            .serve_with_incoming_shutdown(incoming, async {
                stopped.await.ok();
            })
            .await
            .unwrap();
    }

    pub(crate) fn attached(&self) -> usize {
        self.devices.lock().len()
    }

    /// The file behind a volume.
    pub(crate) fn file(&self, volume: &str) -> PathBuf {
        self.dir.join(volume)
    }

    pub(crate) fn device(&self, volume: &str) -> Option<String> {
        let id: VolumeId = volume.parse().unwrap();
        self.devices.lock().get(&id.0).cloned()
    }

    /// The node was restarted: devices are gone, whatever is mounted on them.
    pub(crate) fn forget(&self) {
        self.detach_all();
    }

    pub(crate) fn detach_all(&self) {
        for device in std::mem::take(&mut *self.devices.lock()).into_values() {
            Command::new("losetup").args(["-d", &device]).status().ok();
        }
    }

    fn describe(&self, volume: u64, device: &str) -> Attached {
        let size_bytes = self.file(&VolumeId(volume).to_string()).metadata().map_or(0, |meta| meta.len());
        Attached { volume, device_path: device.to_owned(), size_bytes, ..Default::default() }
    }
}

fn losetup(args: &[&str]) -> Result<String, Status> {
    let output = Command::new("losetup").args(args).output().map_err(|error| Status::internal(error.to_string()))?;
    if !output.status.success() {
        return Err(Status::internal(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn in_use(device: &str) -> bool {
    let table = std::fs::read("/proc/self/mountinfo").unwrap();
    let name = device.strip_prefix("/dev").unwrap();
    csi::mounts::parse(&table).iter().any(|mount| mount.source == Path::new(device) || mount.root == Path::new(name))
}

#[tonic::async_trait]
impl Attach for Door {
    async fn attach_volume(&self, request: Request<AttachVolumeRequest>) -> Result<Response<AttachVolumeResponse>, Status> {
        let id = request.into_inner().volume;
        let volume = VolumeId(id);
        let size = self.0.masters.size_of(volume).ok_or_else(|| Status::not_found(format!("volume {volume} does not exist")))?;
        let mut devices = self.0.devices.lock();
        if let Entry::Vacant(place) = devices.entry(id) {
            let path = self.0.file(&volume.to_string());
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            file.set_len(size)?;
            place.insert(losetup(&["--find", "--show", path.to_str().unwrap()])?);
        }
        let attached = self.0.describe(id, &devices[&id]);
        Ok(Response::new(AttachVolumeResponse { attached: Some(attached) }))
    }

    async fn detach_volume(&self, request: Request<DetachVolumeRequest>) -> Result<Response<DetachVolumeResponse>, Status> {
        let id = request.into_inner().volume;
        let mut devices = self.0.devices.lock();
        if let Some(device) = devices.get(&id) {
            if in_use(device) {
                return Err(Status::failed_precondition(format!("{device} is mounted")));
            }
            losetup(&["-d", device])?;
            devices.remove(&id);
        }
        Ok(Response::new(DetachVolumeResponse {}))
    }

    async fn list_attached(&self, _: Request<ListAttachedRequest>) -> Result<Response<ListAttachedResponse>, Status> {
        let devices = self.0.devices.lock();
        let attached = devices.iter().map(|(id, device)| self.0.describe(*id, device)).collect();
        Ok(Response::new(ListAttachedResponse { attached }))
    }

    async fn resize_volume(&self, request: Request<ResizeVolumeRequest>) -> Result<Response<ResizeVolumeResponse>, Status> {
        let volume = VolumeId(request.into_inner().volume);
        let device =
            self.0.device(&volume.to_string()).ok_or_else(|| Status::not_found(format!("volume {volume} does not exist")))?;
        let size_bytes = self.0.masters.size_of(volume).unwrap_or(0);
        File::options().write(true).open(self.0.file(&volume.to_string()))?.set_len(size_bytes)?;
        losetup(&["-c", &device])?;
        Ok(Response::new(ResizeVolumeResponse { size_bytes }))
    }

    async fn trace_volume(&self, _: Request<TraceVolumeRequest>) -> Result<Response<TraceVolumeResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn slow_device(&self, _: Request<SlowDeviceRequest>) -> Result<Response<SlowDeviceResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
