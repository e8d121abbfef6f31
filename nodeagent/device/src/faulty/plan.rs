//! What is to go wrong, changeable from any thread while the device is used.

use api_types::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    /// [`Device::read`](crate::Device::read).
    Read,
    /// [`Device::write`](crate::Device::write).
    Write,
    /// [`Device::flush`](crate::Device::flush).
    Flush,
    /// [`Device::trim`](crate::Device::trim).
    Trim,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Trim];

    /// The name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Trim => "trim",
        }
    }
}

/// Whether the device answers at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Power {
    /// It does.
    #[default]
    On,
    /// Requests wait until it is on again.
    Hung,
    /// Every request fails at once, as after the device was pulled.
    Gone,
}

/// How long requests take, drawn evenly between two bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// The least.
    pub min: Duration,
    /// The most.
    pub max: Duration,
}

impl Latency {
    fn draw(self, rng: &dyn Rng) -> Duration {
        let spread = self.max.saturating_sub(self.min).as_nanos();
        match u64::try_from(spread) {
            Ok(0) => self.min,
            Ok(spread) => self.min + Duration::from_nanos(rng.below(spread.saturating_add(1).max(1))),
            Err(_) => self.max,
        }
    }
}

/// What happens to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fate {
    pub(crate) delay: Duration,
    pub(crate) error: bool,
}

#[derive(Debug, Default)]
struct Plan {
    latency: Latency,
    /// Additional time until a moment on the device's clock.
    slow: Option<(Duration, Duration)>,
    error_ppm: [u32; OpKind::ALL.len()],
    power: Power,
    /// Byte offset → bits that read back flipped, until the byte is written again.
    rot: BTreeMap<u64, u8>,
}

impl Plan {
    fn is_idle(&self) -> bool {
        self.latency == Latency::default()
            && self.slow.is_none()
            && self.error_ppm.iter().all(|ppm| *ppm == 0)
            && self.power == Power::On
            && self.rot.is_empty()
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The plan holds anything at all: the one thing that is looked at while nothing is to go wrong.
    active: AtomicBool,
    plan: Mutex<Plan>,
    powered: Notify,
}

/// What is to go wrong with one device. Clones share the plan and may be used from any thread, so that a running
/// process can be told to misbehave.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    shared: Arc<Shared>,
}

impl FaultPlan {
    /// Nothing goes wrong.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every request takes this long, in addition to what the device takes.
    pub fn set_latency(&self, latency: Latency) {
        self.change(|plan| plan.latency = latency);
    }

    /// Every request that starts before `until`, on the device's clock, takes `extra` more. A second call replaces the
    /// first; `extra` of zero ends it.
    pub fn slow(&self, extra: Duration, until: Duration) {
        self.change(|plan| plan.slow = (!extra.is_zero()).then_some((extra, until)));
    }

    /// So many of a million requests of this kind fail. A write that fails may have been done in part.
    pub fn set_errors(&self, kind: OpKind, ppm: u32) {
        self.change(|plan| plan.error_ppm[kind as usize] = ppm);
    }

    /// Flips bits of the byte stored at `offset`, until it is written again.
    pub fn rot(&self, offset: u64, bits: u8) {
        self.change(|plan| {
            let mask = plan.rot.entry(offset).or_default();
            *mask ^= bits;
            if *mask == 0 {
                plan.rot.remove(&offset);
            }
        });
    }

    /// Stops or starts the device.
    pub fn set_power(&self, power: Power) {
        self.change(|plan| plan.power = power);
        self.shared.powered.notify_waiters();
    }

    /// Ends everything that goes wrong; also heals rot.
    pub fn clear(&self) {
        self.change(|plan| *plan = Plan::default());
        self.shared.powered.notify_waiters();
    }

    fn change(&self, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.shared.plan.lock();
        change(&mut plan);
        self.shared.active.store(!plan.is_idle(), Ordering::Release);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.shared.active.load(Ordering::Acquire)
    }

    pub(crate) fn power(&self) -> Power {
        if self.is_active() { self.shared.plan.lock().power } else { Power::On }
    }

    /// Ready when the device isn't hung.
    pub(crate) async fn powered(&self) {
        loop {
            let changed = self.shared.powered.notified();
            if self.power() != Power::Hung {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn decide(&self, kind: OpKind, now: Duration, rng: &dyn Rng) -> Fate {
        if !self.is_active() {
            return Fate { delay: Duration::ZERO, error: false };
        }
        let mut plan = self.shared.plan.lock();
        let mut delay = plan.latency.draw(rng);
        match plan.slow {
            Some((extra, until)) if now < until => delay += extra,
            Some(_) => {
                plan.slow = None;
                self.shared.active.store(!plan.is_idle(), Ordering::Release);
            }
            None => {}
        }
        let ppm = plan.error_ppm[kind as usize];
        Fate { delay, error: ppm > 0 && rng.below(1_000_000) < u64::from(ppm) }
    }

    /// The rotten bytes within a range.
    pub(crate) fn rotten(&self, range: Range<u64>) -> Vec<(u64, u8)> {
        if !self.is_active() {
            return Vec::new();
        }
        self.shared.plan.lock().rot.range(range).map(|(offset, mask)| (*offset, *mask)).collect()
    }

    /// These bytes have been written again.
    pub(crate) fn healed(&self, range: Range<u64>) {
        if !self.is_active() {
            return;
        }
        let mut plan = self.shared.plan.lock();
        if plan.rot.range(range.clone()).next().is_some() {
            plan.rot.retain(|offset, _| !range.contains(offset));
            self.shared.active.store(!plan.is_idle(), Ordering::Release);
        }
    }
}
