//! The one binary of Basalt. Every daemon and every command for people is a subcommand of `basalt`; one image holds all.
//!
//! Contract: this crate parses flags, calls a room and prints. Whatever a daemon needs lives in the daemon's own room.

mod agent;
mod args;
mod cluster;
mod connect;
mod dev;
mod device;
mod drill;
mod failure;
mod output;
mod services;
mod size;
mod status;
mod upkeep;
mod volume;

use args::{Cli, Command};
use clap::Parser;
use cluster::MasterCommand;
use device::DeviceCommand;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before flags are parsed and long before a runtime starts: the holder must stay small, and must never fail on a
    // flag that a newer agent gave it.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "fuse-holder") {
        return services::fuse_holder(words.collect());
    }
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let format = cli.output;
    match cli.command {
        Command::Status(args) => services::block_on(status::run(args, format)),
        Command::Volume(command) => services::block_on(volume::run(command, format)),
        Command::Node(command) => services::block_on(cluster::node(command, format)),
        Command::Device(DeviceCommand::List { connection }) => services::block_on(cluster::devices(&connection, format)),
        Command::Device(DeviceCommand::Format(args)) => services::block_on_local(device::format(args, format)),
        Command::Device(DeviceCommand::Inspect { path }) => services::block_on_local(device::inspect(&path, format)),
        Command::Device(DeviceCommand::Evacuate(args)) => services::block_on(upkeep::evacuate(args, format)),
        Command::Device(DeviceCommand::Remove(args)) => services::block_on(upkeep::remove(args, format)),
        Command::Device(DeviceCommand::Slow(args)) => services::block_on(drill::slow(args, format)),
        Command::Master(MasterCommand::Run(args)) => services::master(*args),
        Command::Master(command) => services::block_on(cluster::member(command, format)),
        Command::Agent(args) => services::agent(args),
        Command::FuseKeeper(args) => services::fuse_keeper(args),
        Command::Csi(args) => services::csi(args),
        Command::Operator(args) => services::operator(args),
        Command::Crds => services::crds(),
        Command::Dev(args) => services::block_on(dev::run(args)),
    }
}
