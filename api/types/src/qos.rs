//! What may wait for what, and how long bytes are expected to live.

use serde::{Deserialize, Serialize};

/// Who asks. A lower class never delays a higher one beyond the request already at the device. Ordered from the most
/// to the least urgent; the number is the one on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum QosClass {
    /// A user waits for it.
    #[default]
    Foreground = 0,
    /// Restores lost redundancy.
    Repair = 1,
    /// Moves live bytes so that chunks can be freed; writes map leaves.
    Reclaim = 2,
    /// Reads everything to find rot.
    Scrub = 3,
}

impl QosClass {
    /// All classes, most urgent first.
    pub const ALL: [QosClass; 4] = [QosClass::Foreground, QosClass::Repair, QosClass::Reclaim, QosClass::Scrub];

    /// The class with this number on the wire.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Foreground => "foreground",
            QosClass::Repair => "repair",
            QosClass::Reclaim => "reclaim",
            QosClass::Scrub => "scrub",
        }
    }
}

/// How long the bytes of a chunk are expected to live; becomes an FDP placement handle or a write-life hint.
/// The number is the one in the footer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum LifetimeClass {
    /// Hot data: what the user has just written.
    #[default]
    Short = 0,
    /// Map leaves and checkpoints.
    Medium = 1,
    /// What survived one reclaim.
    Long = 2,
    /// What survived several.
    Extreme = 3,
}

impl LifetimeClass {
    /// The class with this number in a footer.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(LifetimeClass::Short),
            1 => Some(LifetimeClass::Medium),
            2 => Some(LifetimeClass::Long),
            3 => Some(LifetimeClass::Extreme),
            _ => None,
        }
    }
}
