//! The door for the CSI node service and for people: gRPC over a unix socket, answered by the core that has the volume.

use crate::attachments::{Door, Entry};
use crate::cores::Cores;
use crate::volumes::{Attached, Error};
use api_types::{DeviceId, VolumeId};
use api_wire::proto::attach as pb;
use api_wire::proto::attach::attach_server::Attach;
use client_volume::OpenError;
use nodeagent_frontend::FrontEndError;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// The longest trace of a volume.
const TRACE_MS_MAX: u32 = 60_000;

/// See the module.
pub(crate) struct Service {
    pub(crate) cores: Cores,
    pub(crate) allow_faults: bool,
}

#[tonic::async_trait]
impl Attach for Service {
    async fn attach_volume(
        &self,
        request: Request<pb::AttachVolumeRequest>,
    ) -> Result<Response<pb::AttachVolumeResponse>, Status> {
        let request = request.into_inner();
        let door = match pb::FrontEnd::try_from(request.front_end) {
            Ok(pb::FrontEnd::Unspecified | pb::FrontEnd::LoopFuse) => Door::LoopFuse,
            Ok(pb::FrontEnd::Nbd) => Door::Nbd,
            Err(_) => return Err(Status::invalid_argument(format!("field `front_end` is unknown: {}", request.front_end))),
        };
        let volume = VolumeId(request.volume);
        let entry = Entry { door, read_only: request.read_only };
        let attached = self
            .cores
            .of_volume(volume, move |side| async move { side.host.attach(volume, entry, request.take_over).await })
            .await?
            .map_err(|error| to_status(&error))?;
        Ok(Response::new(pb::AttachVolumeResponse { attached: Some(attached.into()) }))
    }

    async fn detach_volume(
        &self,
        request: Request<pb::DetachVolumeRequest>,
    ) -> Result<Response<pb::DetachVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId(request.volume);
        self.cores
            .of_volume(volume, move |side| async move { side.host.detach(volume, request.force).await })
            .await?
            .map_err(|error| to_status(&error))?;
        Ok(Response::new(pb::DetachVolumeResponse {}))
    }

    async fn list_attached(&self, _: Request<pb::ListAttachedRequest>) -> Result<Response<pb::ListAttachedResponse>, Status> {
        let lists = self.cores.each(|side| async move { side.host.list() }).await?;
        let attached = lists.into_iter().flatten().map(Into::into).collect();
        Ok(Response::new(pb::ListAttachedResponse { attached }))
    }

    async fn resize_volume(
        &self,
        request: Request<pb::ResizeVolumeRequest>,
    ) -> Result<Response<pb::ResizeVolumeResponse>, Status> {
        let volume = VolumeId(request.into_inner().volume);
        let size_bytes = self
            .cores
            .of_volume(volume, move |side| async move { side.host.resize(volume).await })
            .await?
            .map_err(|error| to_status(&error))?;
        Ok(Response::new(pb::ResizeVolumeResponse { size_bytes }))
    }

    async fn trace_volume(&self, request: Request<pb::TraceVolumeRequest>) -> Result<Response<pb::TraceVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.duration_ms == 0 || request.duration_ms > TRACE_MS_MAX {
            return Err(Status::invalid_argument(format!("field `duration_ms` must be 1 to {TRACE_MS_MAX}")));
        }
        let volume = VolumeId(request.volume);
        let duration = Duration::from_millis(request.duration_ms.into());
        let threshold = Duration::from_micros(request.threshold_us.into());
        let trace = self
            .cores
            .of_volume(volume, move |side| async move { side.trace(volume, duration, threshold).await })
            .await?
            .map_err(|error| to_status(&error))?;
        Ok(Response::new(pb::TraceVolumeResponse { operations: trace.operations, text: trace.text }))
    }

    async fn slow_device(&self, request: Request<pb::SlowDeviceRequest>) -> Result<Response<pb::SlowDeviceResponse>, Status> {
        if !self.allow_faults {
            return Err(Status::permission_denied("this agent takes no faults: start it with --allow-faults"));
        }
        let request = request.into_inner();
        let device = (request.device != 0).then_some(DeviceId(request.device));
        let extra = Duration::from_millis(request.extra_ms.into());
        let duration = Duration::from_millis(request.duration_ms.into());
        let slowed = self.cores.each(move |side| async move { side.slow(device, extra, duration) }).await?;
        Ok(Response::new(pb::SlowDeviceResponse { devices: slowed.into_iter().sum() }))
    }
}

impl From<Attached> for pb::Attached {
    fn from(attached: Attached) -> Self {
        pb::Attached {
            volume: attached.volume.0,
            name: attached.name,
            device_path: attached.device_path,
            front_end: match attached.door {
                Door::LoopFuse => pb::FrontEnd::LoopFuse,
                Door::Nbd => pb::FrontEnd::Nbd,
            } as i32,
            size_bytes: attached.size_bytes,
            epoch: attached.epoch.0,
            read_only: attached.read_only,
            trouble: attached.trouble.unwrap_or_default(),
        }
    }
}

/// The one place where errors of attaching get their gRPC codes.
fn to_status(error: &Error) -> Status {
    let text = chain(error);
    match error {
        Error::Busy => Status::aborted(text),
        Error::NotFound(_) => Status::not_found(text),
        Error::Elsewhere(_) | Error::NotAttached => Status::failed_precondition(text),
        Error::Otherwise(_) => Status::already_exists(text),
        Error::Master(error) => api_wire::convert::to_status(error),
        Error::Open(OpenError::Unavailable(_)) => Status::unavailable(text),
        Error::Open(OpenError::Fenced) => Status::aborted(text),
        Error::Open(OpenError::Damaged(_)) => Status::data_loss(text),
        Error::Open(OpenError::Invalid(_)) => Status::invalid_argument(text),
        Error::Open(OpenError::NoSpace(_)) => Status::resource_exhausted(text),
        Error::FrontEnd(FrontEndError::Busy { .. }) => Status::failed_precondition(text),
        Error::FrontEnd(FrontEndError::Unsupported(_)) => Status::unimplemented(text),
        Error::FrontEnd(_) | Error::Remember(_) => Status::internal(text),
        Error::Timeout => Status::deadline_exceeded(text),
    }
}

/// An error with everything beneath it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
