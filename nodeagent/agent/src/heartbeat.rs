//! The node's sign of life: what it has, what it did, and in return what it shall do.

use crate::config::Config;
use crate::cores::Cores;
use crate::meters::CoreMeters;
use api_types::master::{Error, NodeOrders, NodeReport, OrderResult, PoolRecord};
use api_wire::master_client::MasterConnection;
use std::time::Duration;
use tokio::sync::watch;

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// Between two beats while orders are being done: their results hasten the next ones.
const BEAT_BUSY: Duration = Duration::from_millis(200);
/// Beats between two looks at how full the pools are.
const POOLS_EVERY: u32 = 5;

/// What the agent's health tells: when the masters last answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beat {
    /// Registered, and the last beat was answered.
    pub(crate) answered: bool,
    /// Why not, for people.
    pub(crate) trouble: String,
}

/// Registers the node and beats until `stop` changes.
pub(crate) async fn run(
    config: Config,
    cores: Cores,
    connection: MasterConnection,
    health: watch::Sender<Beat>,
    mut stop: watch::Receiver<bool>,
) {
    let meters = CoreMeters::new();
    let mut registered = false;
    let mut pools: Vec<PoolRecord> = Vec::new();
    let mut count = 0u32;
    loop {
        cores.refresh(&meters);
        let busy = match beat(&config, &cores, &connection, &mut registered, &pools).await {
            Ok(busy) => {
                health.send_replace(Beat { answered: true, trouble: String::new() });
                busy
            }
            Err(error) => {
                if !matches!(&error, Error::Unavailable(_)) {
                    tracing::error!(%error, "the masters refuse this node");
                }
                health.send_replace(Beat { answered: false, trouble: error.to_string() });
                false
            }
        };
        if count.is_multiple_of(POOLS_EVERY)
            && let Ok(fresh) = connection.pools().await
        {
            pools = fresh;
        }
        count = count.wrapping_add(1);
        tokio::select! {
            biased;
            _ = stop.changed() => return,
            () = tokio::time::sleep(if busy { BEAT_BUSY } else { BEAT }) => {}
        }
    }
}

/// One beat. `true`: there is work under way.
async fn beat(
    config: &Config,
    cores: &Cores,
    connection: &MasterConnection,
    registered: &mut bool,
    pools: &[PoolRecord],
) -> Result<bool, Error> {
    let sides = cores
        .each(|side| async move { side.report() })
        .await
        .map_err(|status| Error::Unavailable(status.message().to_owned()))?;
    let done: Vec<Vec<OrderResult>> = sides.iter().map(|(_, _, done)| done.clone()).collect();
    let report = NodeReport {
        node: config.node.clone(),
        cluster: config.cluster,
        labels: config.labels.clone(),
        devices: sides.iter().flat_map(|(devices, _, _)| devices.clone()).collect(),
        volumes: sides.iter().flat_map(|(_, volumes, _)| volumes.clone()).collect(),
        done: done.concat(),
    };
    let answer = if *registered { connection.heartbeat(report).await } else { connection.register_node(report).await };
    match answer {
        Ok(orders) => {
            *registered = true;
            let busy = !orders.orders.is_empty() || done.iter().any(|done| !done.is_empty());
            give(cores, orders, pools).await?;
            Ok(busy)
        }
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                *registered = false;
            }
            put_back(cores, done).await?;
            Err(error)
        }
    }
}

async fn give(cores: &Cores, orders: NodeOrders, pools: &[PoolRecord]) -> Result<(), Error> {
    let pools = pools.to_vec();
    cores
        .each(move |side| {
            let (orders, pools) = (orders.clone(), pools.clone());
            async move { side.obey(orders, &pools) }
        })
        .await
        .map(drop)
        .map_err(|status| Error::Unavailable(status.message().to_owned()))
}

/// Each core gets its own results back, for the next beat.
async fn put_back(cores: &Cores, done: Vec<Vec<OrderResult>>) -> Result<(), Error> {
    for (index, results) in done.into_iter().enumerate() {
        if !results.is_empty() {
            cores
                .on(index, move |side| async move { side.put_back(results) })
                .await
                .map_err(|status| Error::Unavailable(status.message().to_owned()))?;
        }
    }
    Ok(())
}
