//! `basalt device slow`: a drill, so that people see what their cluster does with a slow disk before they have one.

use crate::agent::{self, AgentFlags};
use crate::connect::Connection;
use crate::failure::{Failure, Kind};
use crate::output::{Format, print};
use anyhow::anyhow;
use api_types::DeviceId;
use api_wire::proto::attach::SlowDeviceRequest;
use std::time::Duration;

/// How long an agent may take to answer: it only takes note.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Flags of `basalt device slow`.
#[derive(clap::Args, Debug)]
pub(crate) struct SlowArgs {
    /// The device, such as d-1a. Default: every device of the agent.
    #[arg(long)]
    device: Option<DeviceId>,
    /// How much longer each request takes, in milliseconds.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    by_ms: u32,
    /// For how long, in milliseconds.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    for_ms: u32,
    #[command(flatten)]
    agent: AgentFlags,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `basalt device slow`.
pub(crate) async fn slow(args: SlowArgs, format: Format) -> Result<(), Failure> {
    let socket = args.agent.find(&args.connection, None)?;
    let device = args.device.map_or(0, |device| device.0);
    let request = SlowDeviceRequest { device, extra_ms: args.by_ms, duration_ms: args.for_ms };
    let answer = agent::connect(&socket, ANSWER_LIMIT).await?.slow_device(request).await;
    let slowed = answer.map_err(|status| Failure::from(status).context("could not slow the device"))?.into_inner().devices;
    if slowed == 0 {
        return Err(Failure::new(Kind::NotFound, anyhow!("the agent at {} has no such device", socket.display()))
            .fix("`basalt device list` shows which node has it"));
    }
    let json = serde_json::json!({ "devices": slowed, "by_ms": args.by_ms, "for_ms": args.for_ms });
    Ok(print(format, &json, |_| format!("{slowed} devices take {} ms longer for {} ms", args.by_ms, args.for_ms))?)
}
