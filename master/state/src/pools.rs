//! Pools, and how much user data they can take.

use crate::command::{NewPool, Reply};
use crate::nodes::Device;
use crate::placement::Reserve;
use crate::state::State;
use api_types::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, REPLICAS_MAX};
use api_types::master::{Error, PoolRecord, Replication};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most pools.
const POOLS_MAX: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) replication: Replication,
    pub(crate) chunk_bytes: u32,
    pub(crate) failure_domain: String,
}

pub(crate) fn check_pool(new: &NewPool) -> Result<(), Error> {
    crate::namespace::check_name("pool", &new.name)?;
    let Replication { max_copy, min_copy } = new.replication;
    if max_copy == 0 || usize::from(max_copy) > REPLICAS_MAX {
        return Err(Error::Invalid(format!("max_copy: {max_copy} is not between 1 and {REPLICAS_MAX}")));
    }
    if min_copy > max_copy || u32::from(min_copy) * 2 <= u32::from(max_copy) {
        return Err(Error::Invalid(format!("min_copy: {min_copy} must be more than half of max_copy {max_copy}, at most all")));
    }
    if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&new.chunk_bytes) || !new.chunk_bytes.is_multiple_of(CHUNK_BYTES_MIN) {
        return Err(Error::Invalid(format!(
            "chunk_bytes: {} must be a multiple of {CHUNK_BYTES_MIN} and at most {CHUNK_BYTES_MAX}",
            new.chunk_bytes
        )));
    }
    crate::namespace::check_name("failure_domain", &new.failure_domain)
}

impl State {
    pub(crate) fn create_pool(&mut self, new: &NewPool) -> Result<Reply, Error> {
        check_pool(new)?;
        let pool =
            Pool { replication: new.replication, chunk_bytes: new.chunk_bytes, failure_domain: new.failure_domain.clone() };
        match self.pools.get(&new.name) {
            Some(known) if *known != pool => {
                return Err(Error::Conflict(format!("pool `{}` exists with other properties", new.name)));
            }
            Some(_) => {}
            None if self.pools.len() >= POOLS_MAX => return Err(Error::Invalid(format!("there are {POOLS_MAX} pools already"))),
            None => {
                self.pools.insert(new.name.clone(), pool);
            }
        }
        Ok(Reply::Pool(self.pool(&new.name)?))
    }

    /// The name that is meant: `default` when none is given.
    pub(crate) fn pool_named<'a>(&self, name: &'a str) -> Result<(&'a str, &Pool), Error> {
        let name = if name.is_empty() { "default" } else { name };
        let pool = self.pools.get(name).ok_or_else(|| Error::NotFound { what: format!("pool `{name}`") })?;
        Ok((name, pool))
    }

    /// A pool with its capacity now.
    pub fn pool(&self, name: &str) -> Result<PoolRecord, Error> {
        let (name, pool) = self.pool_named(name)?;
        let reserve = |device: &Device| Reserve::Twice.bytes(device, u64::from(pool.chunk_bytes));
        Ok(PoolRecord {
            name: name.to_owned(),
            replication: pool.replication,
            chunk_bytes: pool.chunk_bytes,
            failure_domain: pool.failure_domain.clone(),
            available_bytes: self.user_bytes(pool, |device| device.available_bytes().saturating_sub(reserve(device))),
            capacity_bytes: self.user_bytes(pool, |device| device.capacity_bytes.saturating_sub(reserve(device))),
        })
    }

    /// All pools with their capacity now.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolRecord> {
        self.pools.keys().filter_map(|name| self.pool(name).ok()).collect()
    }

    fn user_bytes(&self, pool: &Pool, of: impl Fn(&Device) -> u64) -> u64 {
        let mut domains: BTreeMap<String, u64> = BTreeMap::new();
        for device in
            self.devices.values().filter(|device| !device.lost(&self.upkeep) && !self.upkeep.evacuates(device.address.device))
        {
            if let Some(domain) = self.domain_of(&pool.failure_domain, device) {
                let bytes = domains.entry(domain).or_default();
                *bytes = bytes.saturating_add(of(device));
            }
        }
        usable_bytes(domains.into_values().collect(), usize::from(pool.replication.max_copy))
    }
}

/// How many bytes can be kept `copies` times, each time in another domain. A domain much larger than the others can't
/// be used up: with the `j` largest taken as holding a copy of everything, the rest must hold the other copies.
fn usable_bytes(mut domains: Vec<u64>, copies: usize) -> u64 {
    if domains.len() < copies || copies == 0 {
        return 0;
    }
    domains.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let rest = |from: usize| domains[from..].iter().map(|bytes| u128::from(*bytes)).sum::<u128>() / (copies - from) as u128;
    (0..copies).map(rest).min().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::usable_bytes;

    #[test]
    fn a_large_domain_is_limited_by_the_others() {
        assert_eq!(usable_bytes(vec![100, 100, 100], 3), 100);
        assert_eq!(usable_bytes(vec![1000, 10, 10], 3), 10);
        assert_eq!(usable_bytes(vec![1000, 10, 10], 2), 20);
        assert_eq!(usable_bytes(vec![10, 10, 10, 10], 3), 13);
        assert_eq!(usable_bytes(vec![10, 10], 3), 0);
    }
}
