//! The way to the masters: finds the one that leads, asks it, and asks again while nobody leads.
//!
//! A moment without a leader is normal (an election, a slow disk), so every call goes on until its bound; all its tries
//! carry one request id, so that the masters do the work once. A connection belongs to the tokio runtime that it was
//! first used on.

mod calls;

pub use calls::CreateVolume;

use crate::convert::{Answer, read_status};
use crate::proto::master::master_client::MasterClient as Rpc;
use api_types::RequestId;
use api_types::master::Error;
use backon::BackoffBuilder;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Bounds of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The longest a call may take, tries and waits together.
    pub call_limit: Duration,
    /// The longest one try may take.
    pub try_limit: Duration,
    /// The longest a connection may take to be made.
    pub connect_limit: Duration,
    /// Time between two HTTP/2 pings, and the longest wait for their answer: without them a client doesn't notice that
    /// the other end is gone behind a partition.
    pub keep_alive: Duration,
    /// The wait after the first failed round over all masters; doubles up to sixteen times this.
    pub retry_wait: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            call_limit: Duration::from_secs(20),
            try_limit: Duration::from_secs(3),
            connect_limit: Duration::from_secs(1),
            keep_alive: Duration::from_secs(5),
            retry_wait: Duration::from_millis(20),
        }
    }
}

/// Masters that can't be asked: a programmer's or a user's error, found before any call.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody was named.
    #[error("no masters were named: give at least one host:port")]
    NoEndpoints,
    /// One isn't an address.
    #[error("`{0}` is not the address of a master: expected host:port")]
    Invalid(String),
}

/// See the module. Cheap to clone; clones share connections and what is known of the leader.
#[derive(Clone)]
pub struct MasterConnection {
    inner: Arc<Inner>,
}

struct Inner {
    endpoints: Vec<String>,
    options: ConnectionOptions,
    channels: Mutex<BTreeMap<String, Channel>>,
    leader: Mutex<Option<String>>,
}

impl MasterConnection {
    /// A connection to the masters at these `host:port` addresses. Nothing is sent before the first call.
    pub fn connect(endpoints: Vec<String>, options: ConnectionOptions) -> Result<Self, ConnectError> {
        if endpoints.is_empty() {
            return Err(ConnectError::NoEndpoints);
        }
        for endpoint in &endpoints {
            let is_address =
                endpoint.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if !is_address || to_endpoint(endpoint, &options).is_none() {
                return Err(ConnectError::Invalid(endpoint.clone()));
            }
        }
        let inner = Inner { endpoints, options, channels: Mutex::default(), leader: Mutex::default() };
        Ok(MasterConnection { inner: Arc::new(inner) })
    }

    /// The addresses it was made with.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.inner.endpoints
    }

    /// The address that led when last heard of.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.inner.leader.lock().clone()
    }

    /// Sends one request to the leader, as often as needed within the bound.
    async fn call<Q, A, F, Fut>(&self, request: Q, send: F) -> Result<A, Error>
    where
        Q: Clone,
        F: Fn(Rpc<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let deadline = tokio::time::Instant::now() + self.inner.options.call_limit;
        let mut waits = backon::ExponentialBuilder::default()
            .with_min_delay(self.inner.options.retry_wait)
            .with_max_delay(self.inner.options.retry_wait * 16)
            .with_jitter()
            .without_max_times()
            .build();
        let mut last = "no try was made".to_owned();
        loop {
            // One round: the leader that is believed in, those it names, then everybody.
            for address in self.round() {
                match self.try_one(&address, request.clone(), &send, deadline).await {
                    Ok(answer) => {
                        *self.inner.leader.lock() = Some(address);
                        return Ok(answer);
                    }
                    Err(Answer::Decided(error)) => return Err(error),
                    Err(Answer::NotLeader(Some(leader))) if leader != address => {
                        *self.inner.leader.lock() = Some(leader.clone());
                        match self.try_one(&leader, request.clone(), &send, deadline).await {
                            Ok(answer) => return Ok(answer),
                            Err(Answer::Decided(error)) => return Err(error),
                            Err(other) => last = self.forget(&leader, other),
                        }
                    }
                    Err(other) => last = self.forget(&address, other),
                }
                if tokio::time::Instant::now() >= deadline {
                    return Err(Error::Unavailable(last));
                }
            }
            let wait = waits.next().unwrap_or(self.inner.options.retry_wait);
            if tokio::time::Instant::now() + wait >= deadline {
                return Err(Error::Unavailable(last));
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn try_one<Q, A, F, Fut>(
        &self,
        address: &str,
        request: Q,
        send: &F,
        deadline: tokio::time::Instant,
    ) -> Result<A, Answer>
    where
        F: Fn(Rpc<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let channel = self.channel(address).ok_or_else(|| Answer::Unknown(format!("`{address}` is not an address")))?;
        let limit = deadline.min(tokio::time::Instant::now() + self.inner.options.try_limit);
        match tokio::time::timeout_at(limit, send(Rpc::new(channel), request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(match read_status(&status) {
                Answer::Unknown(text) => Answer::Unknown(format!("{address}: {text}")),
                other => other,
            }),
            Err(_) => Err(Answer::Unknown(format!("{address}: no answer in time"))),
        }
    }

    /// Whom to ask in this order.
    fn round(&self) -> Vec<String> {
        let leader = self.leader();
        let others = self.inner.endpoints.iter().filter(|address| Some(*address) != leader.as_ref()).cloned();
        leader.iter().cloned().chain(others).collect()
    }

    fn forget(&self, address: &str, answer: Answer) -> String {
        let mut leader = self.inner.leader.lock();
        if leader.as_deref() == Some(address) {
            *leader = None;
        }
        match answer {
            Answer::Unknown(text) => text,
            Answer::NotLeader(_) => format!("{address} does not lead, and knows nobody who does"),
            Answer::Decided(error) => error.to_string(),
        }
    }

    fn channel(&self, address: &str) -> Option<Channel> {
        let mut channels = self.inner.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Some(channel.clone());
        }
        let channel = to_endpoint(address, &self.inner.options)?.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Some(channel)
    }
}

fn to_endpoint(address: &str, options: &ConnectionOptions) -> Option<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    Some(
        endpoint
            .connect_timeout(options.connect_limit)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(options.keep_alive)
            .keep_alive_timeout(options.keep_alive)
            .keep_alive_while_idle(true),
    )
}

fn new_request_id() -> RequestId {
    RequestId(rand::random::<u128>() | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused_at_once() {
        let connect = |list: &[&str]| MasterConnection::connect(list.iter().map(|&a| a.to_owned()).collect(), Default::default());
        assert!(matches!(connect(&[]), Err(ConnectError::NoEndpoints)));
        for wrong in ["master", "master:", ":1", "master:70000", "a b:1"] {
            assert!(matches!(connect(&[wrong]), Err(ConnectError::Invalid(_))), "{wrong}");
        }
        assert!(connect(&["master-0.masters:7300", "127.0.0.1:1"]).is_ok());
    }

    #[tokio::test]
    async fn a_call_to_nobody_ends_within_its_bound() {
        let options = ConnectionOptions { call_limit: Duration::from_millis(300), ..ConnectionOptions::default() };
        // Port 1 of loopback refuses.
        let connection = MasterConnection::connect(vec!["127.0.0.1:1".to_owned()], options).unwrap();
        let error = connection.devices().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
    }
}
