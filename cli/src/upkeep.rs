//! `basalt node maintenance|may-stop` and `basalt device evacuate|remove`: what is done before a node or a disk goes.

use crate::connect::Connection;
use crate::failure::{Failure, Kind};
use crate::output::{Format, print};
use anyhow::anyhow;
use api_types::{DeviceId, NodeName, VolumeId};
use clap::ValueEnum;

/// Whether something shall be so.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    /// From now on.
    On,
    /// Not any more.
    Off,
}

/// Flags of `basalt node maintenance`.
#[derive(clap::Args, Debug)]
pub(crate) struct MaintenanceArgs {
    /// Its name.
    node: String,
    /// Take it out, or back in.
    switch: Switch,
    #[command(flatten)]
    connection: Connection,
}

/// Flags of `basalt node may-stop`.
#[derive(clap::Args, Debug)]
pub(crate) struct MayStopArgs {
    /// Its name.
    node: String,
    #[command(flatten)]
    connection: Connection,
}

/// Flags of `basalt device evacuate`.
#[derive(clap::Args, Debug)]
pub(crate) struct EvacuateArgs {
    /// The device, such as d-1a.
    device: DeviceId,
    /// Stop moving copies away, and use it again.
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Flags of `basalt device remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct RemoveArgs {
    /// The device, such as d-1a.
    device: DeviceId,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `basalt node maintenance`.
pub(crate) async fn maintenance(args: MaintenanceArgs, format: Format) -> Result<(), Failure> {
    let (node, on) = (NodeName(args.node), args.switch == Switch::On);
    let done = args.connection.connect()?.set_maintenance(&node, on).await;
    done.map_err(|error| Failure::from(error).context(format!("could not change the maintenance of node {node}")))?;
    let json = serde_json::json!({ "node": node.as_str(), "maintenance": on });
    Ok(print(format, &json, |_| match on {
        true => format!("node {node} is in maintenance: it gets no new chunks, and nothing is rebuilt for it"),
        false => format!("node {node} is back in use"),
    })?)
}

/// Runs `basalt node may-stop`. That it may not is a conflict, so that scripts can wait for it.
pub(crate) async fn may_stop(args: MayStopArgs, format: Format) -> Result<(), Failure> {
    let node = NodeName(args.node);
    let asked = args.connection.connect()?.check_stop(&node).await;
    let check = asked.map_err(|error| Failure::from(error).context(format!("could not ask about node {node}")))?;
    if !check.may_stop {
        return Err(Failure::new(
            Kind::Conflict,
            anyhow!("the agent of node {node} may not stop: {}", check.blockers.join("; ")),
        )
        .fix("wait until `basalt status` shows no silent device and no under-replicated chunk"));
    }
    let attached: Vec<String> = check.attached.into_iter().map(|volume| VolumeId(volume).to_string()).collect();
    let json = serde_json::json!({ "node": node.as_str(), "may_stop": true, "attached": attached });
    Ok(print(format, &json, |_| match attached.len() {
        0 => format!("the agent of node {node} may stop"),
        count => format!("the agent of node {node} may stop; requests to {count} volumes served there wait meanwhile"),
    })?)
}

/// Runs `basalt device evacuate`.
pub(crate) async fn evacuate(args: EvacuateArgs, format: Format) -> Result<(), Failure> {
    let (device, on) = (args.device, !args.cancel);
    let done = args.connection.connect()?.evacuate_device(device, on).await;
    done.map_err(|error| Failure::from(error).context(format!("could not change the evacuation of device {device}")))?;
    let json = serde_json::json!({ "device": device.to_string(), "evacuating": on });
    Ok(print(format, &json, |_| match on {
        true => format!("device {device} is being emptied: `basalt device list` shows how many chunks are left"),
        false => format!("device {device} is in use again"),
    })?)
}

/// Runs `basalt device remove`.
pub(crate) async fn remove(args: RemoveArgs, format: Format) -> Result<(), Failure> {
    let device = args.device;
    let done = args.connection.connect()?.remove_device(device).await;
    done.map_err(|error| Failure::from(error).context(format!("could not remove device {device}")))?;
    let json = serde_json::json!({ "removed": device.to_string() });
    Ok(print(format, &json, |_| format!("device {device} is removed; only formatting makes it usable again"))?)
}
