//! May a StorageCluster that somebody deleted go?

use crate::Seen;

/// The name that keeps a StorageCluster until this module lets it go.
pub const FINALIZER: &str = "basalt.storage/no-volumes";

/// What stands against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// Data would be lost.
    #[error("{0} volumes exist: delete their claims, or volumes by `basalt volume delete`")]
    Volumes(u64),
    /// Nobody knows.
    #[error("the masters don't answer, so nobody knows whether volumes exist: bring a majority of them back")]
    Unknown,
    /// Those that answer are others.
    #[error("the masters are of cluster {0}, not of the recorded one: bring the right ones back")]
    Foreign(String),
}

/// Whether it may go: once its masters say that they know no volume. One that never had a recorded cluster never had an
/// agent, and so no volume.
pub fn judge(recorded: Option<&str>, seen: Option<&Seen>) -> Result<(), Blocked> {
    match (recorded, seen) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(Blocked::Unknown),
        (Some(recorded), Some(seen)) if recorded != seen.cluster => Err(Blocked::Foreign(seen.cluster.clone())),
        (Some(_), Some(seen)) if !seen.led => Err(Blocked::Unknown),
        (Some(_), Some(seen)) if seen.volumes > 0 => Err(Blocked::Volumes(seen.volumes)),
        (Some(_), Some(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(volumes: u64) -> Seen {
        Seen { cluster: "a".to_owned(), led: true, volumes, ..Seen::default() }
    }

    #[test]
    fn it_goes_only_when_its_own_masters_know_no_volume() {
        assert_eq!(judge(Some("a"), Some(&seen(0))), Ok(()));
        assert_eq!(judge(Some("a"), Some(&seen(2))), Err(Blocked::Volumes(2)));
        assert_eq!(judge(Some("a"), None), Err(Blocked::Unknown));
        assert_eq!(judge(Some("a"), Some(&Seen { led: false, ..seen(0) })), Err(Blocked::Unknown));
        assert_eq!(judge(Some("b"), Some(&seen(0))), Err(Blocked::Foreign("a".to_owned())));
    }

    #[test]
    fn one_that_never_had_agents_goes_at_once() {
        assert_eq!(judge(None, None), Ok(()));
    }
}
