//! `basalt master|node|device list`, and changes of who belongs to the cluster.

use crate::connect::Connection;
use crate::failure::Failure;
use crate::output::{Format, print, table};
use crate::status::{self, devices_table, members_table, nodes_table};
use crate::upkeep::{self, MaintenanceArgs, MayStopArgs};
use api_types::NodeName;
use api_wire::proto::master as pb;
use clap::Subcommand;

/// Who belongs to the group of masters.
#[derive(Subcommand, Debug)]
pub(crate) enum MasterCommand {
    /// Run a master until a signal ends it.
    Run(Box<master_server::MasterArgs>),
    /// List the masters, who leads, and how far the others are behind.
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a master that has been started without --initial. It votes once it has caught up.
    Add {
        /// Its number, as given to `basalt master --id`.
        id: u64,
        /// Its address, as host:port.
        address: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take a master out of the group for good.
    Remove {
        /// Its number.
        id: u64,
        #[command(flatten)]
        connection: Connection,
    },
}

/// `basalt node …`
#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// List the nodes.
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Take a node out for a while: it gets no new chunks, and nothing is rebuilt for its silence.
    Maintenance(MaintenanceArgs),
    /// Say whether a node's agent may stop now, and what is in the way.
    MayStop(MayStopArgs),
    /// Forget a node that is gone for good, with its devices: their copies are made again elsewhere at once.
    Forget {
        /// Its name.
        node: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// Runs `basalt master …`.
/// Answers what is asked of a running group; a master itself runs on runtimes of its own and is started by `main`.
pub(crate) async fn member(command: MasterCommand, format: Format) -> Result<(), Failure> {
    match command {
        MasterCommand::Run(_) => Ok(()),
        MasterCommand::List { connection } => {
            let masters = connection.connect()?;
            let members = status::fetch_members(&masters).await?;
            Ok(print(format, &members, |members| members_table(members))?)
        }
        MasterCommand::Add { id, address, connection } => {
            let members = connection.connect()?.add_member(id, &address).await;
            let what = format!("could not add master {id} at {address}");
            show_members(members.map_err(|error| Failure::from(error).context(what))?, format)
        }
        MasterCommand::Remove { id, connection } => {
            let members = connection.connect()?.remove_member(id).await;
            let what = format!("could not remove master {id}");
            show_members(members.map_err(|error| Failure::from(error).context(what))?, format)
        }
    }
}

fn show_members(members: Vec<pb::Member>, format: Format) -> Result<(), Failure> {
    let json: Vec<_> = members
        .iter()
        .map(|member| serde_json::json!({ "id": member.id, "address": member.address, "voter": member.voter }))
        .collect();
    Ok(print(format, &json, |_| {
        let role = |voter| if voter { "voter" } else { "learner" };
        let rows = members.iter().map(|member| [member.id.to_string(), member.address.clone(), role(member.voter).to_owned()]);
        table(["MASTER", "ADDRESS", "ROLE"], rows)
    })?)
}

/// Runs `basalt node …`.
pub(crate) async fn node(command: NodeCommand, format: Format) -> Result<(), Failure> {
    match command {
        NodeCommand::List { connection } => {
            let status = status::fetch(&connection.connect()?).await?;
            Ok(print(format, &status.nodes, |nodes| nodes_table(nodes))?)
        }
        NodeCommand::Maintenance(args) => upkeep::maintenance(args, format).await,
        NodeCommand::MayStop(args) => upkeep::may_stop(args, format).await,
        NodeCommand::Forget { node, connection } => {
            let name = NodeName(node);
            let forgotten = connection.connect()?.forget_node(&name).await;
            forgotten.map_err(|error| Failure::from(error).context(format!("could not forget node {name}")))?;
            let json = serde_json::json!({ "forgotten": name.as_str() });
            Ok(print(format, &json, |_| format!("node {name} is forgotten"))?)
        }
    }
}

/// Runs `basalt device list`.
pub(crate) async fn devices(connection: &Connection, format: Format) -> Result<(), Failure> {
    let status = status::fetch(&connection.connect()?).await?;
    Ok(print(format, &status.nodes, |nodes| devices_table(nodes))?)
}
