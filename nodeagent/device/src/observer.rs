//! Who wants to know how long requests take.

use crate::faulty::OpKind;
use api_types::QosClass;
use std::time::Duration;

/// One finished request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// What it was.
    pub kind: OpKind,
    /// Who asked.
    pub qos: QosClass,
    /// How long it was, in bytes.
    pub bytes: u32,
    /// From the call to the kernel.
    pub queued: Duration,
    /// From the kernel to its completion, the flush of a group included.
    pub device: Duration,
    /// It succeeded.
    pub ok: bool,
}

/// Told of each finished request, on the device's thread; must be quick.
pub trait Observer {
    /// One more.
    fn observe(&self, observation: &Observation);
}
