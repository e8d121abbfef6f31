//! The server that is killed: serves a file as a volume, and obeys lines on its standard input.

use api_types::VolumeId;
use client_volume::BlockError;
use nodeagent_frontend::testing::{MemoryBlock, context};
use nodeagent_frontend::{Attachment, FrontEnd, HolderCommand, Keeper, KeeperOptions, LoopFuse, Spec, keeper_socket};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use tokio::io::{AsyncBufReadExt, BufReader};

/// `serve <run directory> <backing file> <size> [read-only] [keeper]`
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let run_dir = PathBuf::from(arguments.next().unwrap());
    let backing = PathBuf::from(arguments.next().unwrap());
    let size = arguments.next().unwrap().to_str().unwrap().parse().unwrap();
    let more: Vec<OsString> = arguments.collect();
    let has = |word: &str| more.iter().any(|one| one == word);
    let (read_only, kept) = (has("read-only"), has("keeper"));
    let block = MemoryBlock::file(&backing, size).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let holder = HolderCommand {
            program: std::env::current_exe().unwrap(),
            arguments: vec!["fuse-holder".into()],
            keeper: kept.then(|| keeper_socket(&run_dir)),
        };
        let front_end = LoopFuse::new(run_dir, holder, context());
        let spec = Spec { volume: VolumeId(7), name: "lab".to_owned(), read_only };
        match front_end.export(block.device(), spec).await {
            Ok(attachment) => {
                println!("{}", attachment.device_path());
                obey(block, attachment).await;
            }
            Err(error) => println!("error: {error}"),
        }
    });
    ExitCode::SUCCESS
}

/// `keep <run directory>`
pub(crate) fn keep(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let run_dir = PathBuf::from(arguments.next().unwrap());
    let program = std::env::current_exe().unwrap();
    let keeper = Keeper::start(KeeperOptions { run_dir, program, arguments: vec!["fuse-holder".into()] }).unwrap();
    println!("ready");
    keeper.run().unwrap();
    ExitCode::SUCCESS
}

async fn obey(block: MemoryBlock, attachment: Rc<dyn Attachment>) {
    let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut lines = BufReader::new(tokio::net::unix::pipe::Receiver::from_owned_fd(input).unwrap()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut words = line.split(' ');
        let answer = match (words.next().unwrap_or_default(), words.next()) {
            ("detach", _) => attachment.detach(false).await.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
            ("force", _) => attachment.detach(true).await.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
            ("release", _) => attachment.release().await.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
            ("grow", Some(size)) => {
                block.grow(size.parse().unwrap()).unwrap();
                attachment.resize().await.map_or_else(|error| error.to_string(), |size| format!("ok {size}"))
            }
            ("hold", _) => {
                block.hold(true);
                "ok".to_owned()
            }
            ("held", _) => block.waiting().to_string(),
            ("fail", Some(what)) => {
                block.fail(match what {
                    "nospace" => Some(BlockError::NoSpace),
                    "fenced" => Some(BlockError::Fenced),
                    _ => None,
                });
                "ok".to_owned()
            }
            ("trouble", _) => attachment.trouble().unwrap_or_else(|| "none".to_owned()),
            ("counts", _) => {
                let (written, discarded, zeroed) = block.counts();
                format!("{written} {discarded} {zeroed}")
            }
            _ => "unknown".to_owned(),
        };
        println!("{answer}");
    }
}
