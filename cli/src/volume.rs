//! `basalt volume …`: volumes at the masters, and their way into the kernel of this node.

use crate::agent::{self, AgentFlags};
use crate::connect::Connection;
use crate::failure::{Failure, Kind};
use crate::output::{Format, print, table};
use crate::size;
use anyhow::anyhow;
use api_types::VolumeId;
use api_types::master::{Error as MasterError, QosLimits, VolumeRecord};
use api_wire::master_client::{CreateVolume, MasterConnection};
use api_wire::proto::attach::{
    AttachVolumeRequest, Attached, DetachVolumeRequest, FrontEnd, ResizeVolumeRequest, TraceVolumeRequest,
};
use clap::Subcommand;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest an agent may take to attach: the recovery of a crashed writer's tail included.
const ATTACH_LIMIT: Duration = Duration::from_secs(120);

/// `basalt volume …`
#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// Make a volume. The same again answers the volume that is there.
    Create {
        /// Its name, unique in the cluster.
        name: String,
        /// Its size, such as 10Gi.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// The pool it lives in.
        #[arg(long, default_value = "default")]
        pool: String,
        /// The most requests a second. 0: no limit.
        #[arg(long, default_value_t = 0)]
        iops: u64,
        /// The most bytes a second, such as 200Mi. 0: no limit.
        #[arg(long, default_value = "0", value_parser = size::parse)]
        bandwidth: u64,
        /// Seconds of unused allowance that may be spent at once.
        #[arg(long, default_value_t = 0)]
        burst: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// List the volumes.
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Show one volume.
    Show {
        /// Name, or id such as v-1a.
        volume: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Open a volume on this node and give it a kernel device. An attached one answers what it has.
    Attach {
        /// Name, or id such as v-1a.
        volume: String,
        /// Door into the kernel.
        #[arg(long, value_enum, default_value_t = Door::Best)]
        front_end: Door,
        /// Refuse writes.
        #[arg(long)]
        read_only: bool,
        /// Take it from the node that has it now: that node's writer is fenced for ever.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        agent: AgentFlags,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take the kernel device away and close the volume. One that isn't attached is no error.
    Detach {
        /// Name, or id such as v-1a.
        volume: String,
        /// Although something still has the device open.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        agent: AgentFlags,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete a volume with all its data. One that is gone is no error.
    Delete {
        /// Name, or id such as v-1a.
        volume: String,
        /// Although it is attached.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make a volume larger; an attached one at once. A filesystem on it is grown by CSI, or by resize2fs or xfs_growfs.
    Expand {
        /// Name, or id such as v-1a.
        volume: String,
        /// Its new size, such as 20Gi.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        #[command(flatten)]
        agent: AgentFlags,
        #[command(flatten)]
        connection: Connection,
    },
    /// Record every operation of an attached volume for a while, from front end to device, and show the slow ones.
    Trace {
        /// Name, or id such as v-1a.
        volume: String,
        /// How long to record, in seconds.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=300))]
        seconds: u32,
        /// Show only operations that took at least so many microseconds.
        #[arg(long, default_value_t = 0)]
        threshold_us: u32,
        #[command(flatten)]
        agent: AgentFlags,
        #[command(flatten)]
        connection: Connection,
    },
}

/// A door into the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Door {
    /// The best one that this kernel has.
    Best,
    /// A loop device over FUSE.
    LoopFuse,
    /// A socket for NBD clients; no kernel device.
    Nbd,
}

/// A volume, and its JSON.
#[derive(Serialize, Debug)]
pub(crate) struct Volume {
    volume: String,
    name: String,
    size_bytes: u64,
    pool: String,
    epoch: u64,
    attached: Option<String>,
    published: Option<String>,
    iops: u64,
    bytes_per_second: u64,
    parameters: BTreeMap<String, String>,
}

impl From<&VolumeRecord> for Volume {
    fn from(record: &VolumeRecord) -> Self {
        Volume {
            volume: record.volume.to_string(),
            name: record.name.clone(),
            size_bytes: record.size_bytes,
            pool: record.pool.clone(),
            epoch: record.epoch.0,
            attached: record.attached.as_ref().map(|node| node.0.clone()),
            published: record.published.as_ref().map(|node| node.0.clone()),
            iops: record.qos.iops,
            bytes_per_second: record.qos.bytes_per_second,
            parameters: record.parameters.clone(),
        }
    }
}

/// Runs `basalt volume …`.
pub(crate) async fn run(command: VolumeCommand, format: Format) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create { name, size, pool, iops, bandwidth, burst, connection } => {
            let what = format!("could not create volume {name}");
            let qos = QosLimits { iops, bytes_per_second: bandwidth, burst_seconds: burst };
            let wanted = CreateVolume { name, size_bytes: size, pool, qos, parameters: BTreeMap::new() };
            let record = connection.connect()?.create_volume(wanted).await;
            show(&record.map_err(|error| Failure::from(error).context(what))?, format)
        }
        VolumeCommand::List { connection } => {
            let records = connection.connect()?.volumes().await;
            let records = records.map_err(|error| Failure::from(error).context("could not list the volumes"))?;
            let volumes: Vec<Volume> = records.iter().map(Into::into).collect();
            Ok(print(format, &volumes, |volumes| volumes_table(volumes))?)
        }
        VolumeCommand::Show { volume, connection } => show(&find(&connection.connect()?, &volume).await?, format),
        VolumeCommand::Attach { volume, front_end, read_only, take_over, agent, connection } => {
            let door = match front_end {
                Door::Best => FrontEnd::Unspecified,
                Door::LoopFuse => FrontEnd::LoopFuse,
                Door::Nbd => FrontEnd::Nbd,
            };
            let record = find(&connection.connect()?, &volume).await?;
            let request = AttachVolumeRequest { volume: record.volume.0, front_end: door.into(), read_only, take_over };
            attach(request, &record, &agent, &connection, format).await
        }
        VolumeCommand::Detach { volume, force, agent, connection } => {
            let record = find(&connection.connect()?, &volume).await?;
            let socket = agent.find(&connection, record.attached.as_ref())?;
            let request = DetachVolumeRequest { volume: record.volume.0, force };
            let detached = agent::connect(&socket, ATTACH_LIMIT).await?.detach_volume(request).await;
            detached.map_err(|status| Failure::from(status).context(format!("could not detach volume {}", record.name)))?;
            done(&record, "detached", format)
        }
        VolumeCommand::Delete { volume, force, connection } => delete(&connection.connect()?, &volume, force, format).await,
        VolumeCommand::Expand { volume, size, agent, connection } => expand(&volume, size, &agent, &connection, format).await,
        VolumeCommand::Trace { volume, seconds, threshold_us, agent, connection } => {
            let record = find(&connection.connect()?, &volume).await?;
            let socket = agent.find(&connection, record.attached.as_ref())?;
            let limit = Duration::from_secs(u64::from(seconds)) + ATTACH_LIMIT;
            let request = TraceVolumeRequest { volume: record.volume.0, duration_ms: seconds * 1000, threshold_us };
            let traced = agent::connect(&socket, limit).await?.trace_volume(request).await;
            let what = format!("could not trace volume {}", record.name);
            let traced = traced.map_err(|status| Failure::from(status).context(what))?.into_inner();
            let json = serde_json::json!({ "operations": traced.operations, "text": traced.text });
            Ok(print(format, &json, |_| format!("{}\n{} operations", traced.text.trim_end(), traced.operations))?)
        }
    }
}

/// The volume of that name, or of that id when no volume is named so.
async fn find(masters: &MasterConnection, text: &str) -> Result<VolumeRecord, Failure> {
    let found = match (masters.volume_named(text).await, text.parse::<VolumeId>()) {
        (Err(MasterError::NotFound { .. }), Ok(id)) => masters.volume(id).await,
        (found, _) => found,
    };
    found.map_err(|error| match error {
        MasterError::NotFound { .. } => {
            Failure::new(Kind::NotFound, anyhow!("there is no volume {text}")).fix("`basalt volume list` shows those there are")
        }
        other => Failure::from(other).context(format!("could not look up volume {text}")),
    })
}

async fn attach(
    request: AttachVolumeRequest,
    record: &VolumeRecord,
    flags: &AgentFlags,
    connection: &Connection,
    format: Format,
) -> Result<(), Failure> {
    let socket = flags.find(connection, None)?;
    let answer = agent::connect(&socket, ATTACH_LIMIT).await?.attach_volume(request).await.map_err(|status| {
        let failure = Failure::from(status).context(format!("could not attach volume {}", record.name));
        match record.attached.as_ref().filter(|_| !request.take_over) {
            Some(node) => failure.fix(format!("detach it on node {node}, or take it with --take-over (that fences {node})")),
            None => failure,
        }
    })?;
    let attached = answer.into_inner().attached.unwrap_or_default();
    let text = |_: &serde_json::Value| {
        let trouble = if attached.trouble.is_empty() { String::new() } else { format!("\ntrouble: {}", attached.trouble) };
        format!("{} is {} ({}){trouble}", record.name, attached.device_path, size::show(attached.size_bytes))
    };
    Ok(print(format, &attached_json(&attached), text)?)
}

fn attached_json(attached: &Attached) -> serde_json::Value {
    let door = match attached.front_end() {
        FrontEnd::Unspecified => "unknown",
        FrontEnd::LoopFuse => "loop-fuse",
        FrontEnd::Nbd => "nbd",
    };
    serde_json::json!({
        "volume": VolumeId(attached.volume).to_string(),
        "name": attached.name,
        "device_path": attached.device_path,
        "front_end": door,
        "size_bytes": attached.size_bytes,
        "epoch": attached.epoch,
        "read_only": attached.read_only,
        "trouble": attached.trouble,
    })
}

async fn delete(masters: &MasterConnection, volume: &str, force: bool, format: Format) -> Result<(), Failure> {
    let record = match find(masters, volume).await {
        Ok(record) => record,
        Err(failure) if failure.kind() == Kind::NotFound => {
            return Ok(print(format, &serde_json::json!({ "deleted": volume }), |_| format!("there is no volume {volume}"))?);
        }
        Err(failure) => return Err(failure),
    };
    masters.delete_volume(record.volume, force).await.map_err(|error| {
        let failure = Failure::from(error).context(format!("could not delete volume {}", record.name));
        match record.attached {
            Some(ref node) => failure.fix(format!("detach it on node {node}, or give --force: its data is lost either way")),
            None => failure,
        }
    })?;
    done(&record, "deleted", format)
}

async fn expand(
    volume: &str,
    size_bytes: u64,
    flags: &AgentFlags,
    connection: &Connection,
    format: Format,
) -> Result<(), Failure> {
    let masters = connection.connect()?;
    let record = find(&masters, volume).await?;
    let grown = masters.grow_volume(record.volume, size_bytes).await;
    let grown = grown.map_err(|error| Failure::from(error).context(format!("could not expand volume {}", record.name)))?;
    if let Some(node) = &grown.attached {
        let what = format!("the masters have the new size of {}, but the device on node {node} has not", record.name);
        let resized = async {
            let socket = flags.find(connection, Some(node))?;
            let request = ResizeVolumeRequest { volume: record.volume.0 };
            agent::connect(&socket, ATTACH_LIMIT).await?.resize_volume(request).await.map_err(Failure::from)
        };
        resized.await.map_err(|failure| failure.context(what).fix(format!("run it again on node {node}")))?;
    }
    show(&grown, format)
}

fn done(record: &VolumeRecord, what: &str, format: Format) -> Result<(), Failure> {
    let json = serde_json::json!({ what: record.name, "volume": record.volume.to_string() });
    Ok(print(format, &json, |_| format!("{} is {what}", record.name))?)
}

fn show(record: &VolumeRecord, format: Format) -> Result<(), Failure> {
    Ok(print(format, &Volume::from(record), |volume| {
        let mut rows = vec![
            ["volume".to_owned(), volume.volume.clone()],
            ["name".to_owned(), volume.name.clone()],
            ["size".to_owned(), format!("{} ({} bytes)", size::show(volume.size_bytes), volume.size_bytes)],
            ["pool".to_owned(), volume.pool.clone()],
            ["attached".to_owned(), or_dash(volume.attached.as_ref())],
            ["published".to_owned(), or_dash(volume.published.as_ref())],
            ["epoch".to_owned(), volume.epoch.to_string()],
            ["iops limit".to_owned(), limit(volume.iops, |iops| iops.to_string())],
            ["bandwidth limit".to_owned(), limit(volume.bytes_per_second, |bytes| format!("{}/s", size::show(bytes)))],
        ];
        rows.extend(volume.parameters.iter().map(|(key, value)| [format!("parameter {key}"), value.clone()]));
        table(["WHAT", "VALUE"], rows)
    })?)
}

pub(crate) fn volumes_table(volumes: &[Volume]) -> String {
    table(
        ["VOLUME", "NAME", "SIZE", "POOL", "ATTACHED", "EPOCH"],
        volumes.iter().map(|volume| {
            [
                volume.volume.clone(),
                volume.name.clone(),
                size::show(volume.size_bytes),
                volume.pool.clone(),
                or_dash(volume.attached.as_ref()),
                volume.epoch.to_string(),
            ]
        }),
    )
}

fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".to_owned())
}

fn limit(value: u64, show: impl FnOnce(u64) -> String) -> String {
    if value == 0 { "none".to_owned() } else { show(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_an_attachment_has_the_names_that_scripts_rely_on() {
        let attached =
            Attached { volume: 26, device_path: "/dev/loop3".into(), size_bytes: 4096, epoch: 2, ..Default::default() };
        let json = attached_json(&attached);
        assert_eq!(json["volume"], "v-1a");
        assert_eq!(json["device_path"], "/dev/loop3");
        assert_eq!((json["size_bytes"].as_u64(), json["epoch"].as_u64()), (Some(4096), Some(2)));
        assert_eq!((json["trouble"].as_str(), json["name"].as_str()), (Some(""), Some("")));
    }
}
