//! What a StorageClass may say, as a typed request.

use crate::error::Error;
use api_types::master::QosLimits;
use api_types::size;
use std::collections::{BTreeMap, HashMap};

/// Parameters a StorageClass may have, for people.
const KNOWN: &str = "pool, fsType, iops, bandwidth, burst";

/// Kubernetes adds names of claim and volume under this prefix; they change nothing.
const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";

/// The pool of a volume that names none.
const DEFAULT_POOL: &str = "default";

/// The most seconds of unused allowance that may be kept.
const BURST_SECONDS_MAX: u32 = 3600;

/// A filesystem this driver can make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filesystem {
    /// The default.
    #[default]
    Ext4,
    /// For those who want it.
    Xfs,
}

impl Filesystem {
    /// The kernel's name of it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
        }
    }

    /// Reads `ext4` or `xfs`; `field` is named when it is neither.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Error> {
        match text {
            "ext4" => Ok(Filesystem::Ext4),
            "xfs" => Ok(Filesystem::Xfs),
            other => Err(Error::Invalid(format!("{field} `{other}` can't be made: choose ext4 or xfs"))),
        }
    }
}

/// A StorageClass, understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// `pool`
    pub pool: String,
    /// `fsType`; a volume capability that names one wins.
    pub filesystem: Option<Filesystem>,
    /// `iops`, `bandwidth` (bytes a second, as a size), `burst` (seconds).
    pub qos: QosLimits,
}

impl Parameters {
    /// Reads the parameters of a request. An unknown one is refused by name: a typing error must not become a volume
    /// without its limits.
    pub fn parse(parameters: &HashMap<String, String>) -> Result<Self, Error> {
        let mut parsed = Parameters { pool: DEFAULT_POOL.to_owned(), filesystem: None, qos: QosLimits::default() };
        let sorted: BTreeMap<_, _> = parameters.iter().collect();
        for (key, value) in sorted {
            match key.as_str() {
                "pool" if value.is_empty() => {
                    return Err(Error::Invalid("parameter pool is empty: name a pool or leave it out".into()));
                }
                "pool" => parsed.pool.clone_from(value),
                "fsType" => parsed.filesystem = Some(Filesystem::parse("parameter fsType", value)?),
                "iops" => parsed.qos.iops = number("iops", value)?,
                "bandwidth" => parsed.qos.bytes_per_second = bandwidth(value)?,
                "burst" => parsed.qos.burst_seconds = burst(value)?,
                other if other.starts_with(KUBERNETES_PREFIX) => {}
                other => return Err(Error::Invalid(format!("parameter `{other}` is not known; known are {KNOWN}"))),
            }
        }
        Ok(parsed)
    }

    /// What is remembered at the masters, to tell a retry from a conflict: every value, so that `iops: 0100` equals
    /// `iops: 100`, and a default equals its absence.
    #[must_use]
    pub fn canonical(&self) -> BTreeMap<String, String> {
        let mut known = BTreeMap::new();
        if let Some(filesystem) = self.filesystem {
            known.insert("fsType".to_owned(), filesystem.as_str().to_owned());
        }
        let numbers =
            [("iops", self.qos.iops), ("bandwidth", self.qos.bytes_per_second), ("burst", u64::from(self.qos.burst_seconds))];
        known.extend(numbers.into_iter().filter(|(_, value)| *value > 0).map(|(key, value)| (key.to_owned(), value.to_string())));
        known
    }
}

fn number(field: &str, text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| Error::Invalid(format!("parameter {field} `{text}` is not a whole number: write one, such as 5000")))
}

fn bandwidth(text: &str) -> Result<u64, Error> {
    size::parse(text).map_err(|error| Error::Invalid(format!("parameter bandwidth, in bytes a second: {error}")))
}

fn burst(text: &str) -> Result<u32, Error> {
    match number("burst", text)? {
        seconds if seconds <= u64::from(BURST_SECONDS_MAX) => Ok(seconds as u32),
        seconds => Err(Error::Invalid(format!("parameter burst {seconds} is above {BURST_SECONDS_MAX} seconds"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, Error> {
        Parameters::parse(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_storage_class_becomes_a_typed_request() {
        let parsed =
            parse(&[("pool", "fast"), ("fsType", "xfs"), ("iops", "0500"), ("bandwidth", "100Mi"), ("burst", "30")]).unwrap();
        assert_eq!(parsed.pool, "fast");
        assert_eq!(parsed.filesystem, Some(Filesystem::Xfs));
        assert_eq!(parsed.qos, QosLimits { iops: 500, bytes_per_second: 100 << 20, burst_seconds: 30 });
        assert_eq!(parsed.canonical()["iops"], "500");
    }

    #[test]
    fn what_kubernetes_adds_changes_nothing() {
        let plain = parse(&[]).unwrap();
        assert_eq!(parse(&[("csi.storage.k8s.io/pvc/name", "data")]).unwrap(), plain);
        assert_eq!(plain.pool, "default");
        assert!(plain.canonical().is_empty());
    }

    #[test]
    fn an_unknown_parameter_is_named_with_the_known_ones() {
        let error = parse(&[("iop", "5")]).unwrap_err();
        assert_eq!(error.to_string(), "parameter `iop` is not known; known are pool, fsType, iops, bandwidth, burst");
    }

    #[test]
    fn a_value_out_of_shape_is_named() {
        for (key, value) in
            [("iops", "-1"), ("iops", "many"), ("bandwidth", "fast"), ("burst", "9999"), ("fsType", "ntfs"), ("pool", "")]
        {
            let error = parse(&[(key, value)]).unwrap_err();
            assert!(matches!(&error, Error::Invalid(text) if text.contains(key)), "{key}={value}: {error}");
        }
    }
}
