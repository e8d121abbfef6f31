//! `basalt device …`: what a disk holds, and making one ours.

use crate::connect::Connection;
use crate::drill::SlowArgs;
use crate::failure::{Failure, Kind};
use crate::output::{Format, print};
use crate::size;
use crate::upkeep::{EvacuateArgs, RemoveArgs};
use anyhow::{Context, anyhow};
use api_types::{Clock, ClusterId};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use nodeagent_device::{Device, FileDevice, file};
use nodeagent_engine::{Contents, FormatError, FormatOptions, Superblock};
use nodeagent_reactor::disk::{self, Executor};
use nodeagent_reactor::{BufferPool, PoolOptions, RealClock, RealRng};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// `basalt device …`
#[derive(Subcommand, Debug)]
pub(crate) enum DeviceCommand {
    /// List the devices that the masters know.
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Make a block device or a file ours. Refused while it holds anything, unless that is named by its exact id.
    Format(FormatArgs),
    /// Show what a block device or a file holds; changes nothing.
    Inspect {
        /// The block device or file.
        path: PathBuf,
    },
    /// Move all copies off a device, so that it can be removed.
    Evacuate(EvacuateArgs),
    /// Strike a device off for good. Refused while any chunk has a copy on it.
    Remove(RemoveArgs),
    /// Make an agent's device slow for a while, as a drill. Refused unless the agent runs with --allow-faults.
    Slow(SlowArgs),
}

/// Flags of `basalt device format`.
#[derive(clap::Args, Debug)]
pub(crate) struct FormatArgs {
    /// The block device or file.
    path: PathBuf,
    /// The cluster it is for (a UUID). Default: that of the masters.
    #[arg(long, env = "BASALT_CLUSTER")]
    cluster: Option<ClusterId>,
    /// Make a file of this size first, such as 20Gi.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Format although it holds what has this id, as `basalt device inspect` prints it. Its data is lost.
    #[arg(long, value_name = "ID")]
    overwrite: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `basalt device format`.
pub(crate) async fn format(args: FormatArgs, format: Format) -> Result<(), Failure> {
    let cluster = match args.cluster {
        Some(cluster) => cluster,
        None => args.connection.connect()?.cluster().await.map_err(|error| {
            Failure::from(error).context("could not ask the masters for their cluster").fix("name it with --cluster")
        })?,
    };
    if let Some(bytes) = args.size {
        make_file(&args.path, bytes)?;
    }
    let device = open(&args.path)?;
    let contents = look(&device).await?;
    // Asked again when the store is written; here so that nothing is written through for nothing.
    if !contents.is_blank() && args.overwrite.as_deref() != Some(contents.to_string().as_str()) {
        return Err(refused(&args.path, &contents, args.overwrite.as_deref()));
    }
    write_through(&device, &args.path, format).await?;
    let options = FormatOptions {
        overwrite: args.overwrite.clone(),
        created_ms: RealClock::new().wall_ms(),
        ..FormatOptions::new(cluster)
    };
    let made = nodeagent_engine::format(Rc::new(device), options, &RealRng::new()).await;
    let superblock = made.map_err(|error| match error {
        FormatError::NotBlank { contents, .. } => refused(&args.path, &contents, None),
        FormatError::OtherContents { contents, given, .. } => refused(&args.path, &contents, Some(&given)),
        FormatError::TooSmall { .. } => Failure::new(Kind::Usage, error),
        FormatError::Inspect(_) | FormatError::Io { .. } => Failure::new(Kind::Failed, error),
    })?;
    Ok(print(format, &superblock_json(&superblock), |_| {
        format!(
            "{} is device {} of cluster {}: {}",
            args.path.display(),
            superblock.device,
            superblock.cluster,
            size::show(superblock.size_bytes)
        )
    })?)
}

/// Runs `basalt device inspect`.
pub(crate) async fn inspect(path: &Path, format: Format) -> Result<(), Failure> {
    let device = open(path)?;
    let contents = look(&device).await?;
    let info = device.info();
    let json = serde_json::json!({
        "path": path,
        "name": info.name,
        "size_bytes": info.size_bytes,
        "block_bytes": info.block_bytes,
        "media": info.media.as_str(),
        "volatile_cache": info.volatile_cache,
        "trims": info.trims,
        "blank": contents.is_blank(),
        "contents": contents.to_string(),
        "superblock": contents.superblock.as_ref().map(superblock_json),
    });
    Ok(print(format, &json, |_| {
        let cache = if info.volatile_cache { "volatile" } else { "none that forgets" };
        let kind = format!("{}, blocks of {} bytes, write cache: {cache}", info.media.as_str(), info.block_bytes);
        format!("{}: {} ({kind})\nholds: {contents}", info.name, size::show(info.size_bytes))
    })?)
}

fn superblock_json(superblock: &Superblock) -> serde_json::Value {
    serde_json::json!({
        "cluster": superblock.cluster.to_string(),
        "device": superblock.device.to_string(),
        "size_bytes": superblock.size_bytes,
        "block_bytes": superblock.block_bytes,
        "created_ms": superblock.created_ms,
    })
}

fn refused(path: &Path, contents: &Contents, given: Option<&str>) -> Failure {
    let what = match given {
        None => anyhow!("{} holds {contents}: nothing was written", path.display()),
        Some(given) => anyhow!("{} holds {contents}, not `{given}`: nothing was written", path.display()),
    };
    Failure::new(Kind::Conflict, what)
        .fix(format!("use another device; or, to lose what it holds, give --overwrite '{contents}'"))
}

/// Must run in a `LocalSet`: the disk's driver lives there.
fn open(path: &Path) -> Result<FileDevice, Failure> {
    let executor = Executor::start(disk::Options::default()).context("could not start disk I/O")?;
    let pool = BufferPool::new(PoolOptions::default());
    FileDevice::open(path, executor, pool, file::Options::default()).map_err(|error| {
        let kind = match &error {
            file::OpenError::InUse { .. } => Kind::Conflict,
            file::OpenError::Io { source, .. } if source.kind() == ErrorKind::NotFound => Kind::NotFound,
            file::OpenError::Io { .. } => Kind::Failed,
            _ => Kind::Usage,
        };
        let failure = Failure::new(kind, error);
        if kind == Kind::NotFound { failure.fix("`basalt device format --size` makes a file") } else { failure }
    })
}

async fn look(device: &FileDevice) -> Result<Contents, Failure> {
    Ok(nodeagent_engine::inspect(device).await.map_err(anyhow::Error::from)?)
}

/// A file that is there with another size stays as it is.
fn make_file(path: &Path, bytes: u64) -> Result<(), Failure> {
    let failed = |error: std::io::Error| anyhow::Error::from(error).context(format!("could not make {}", path.display()));
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => Ok(file.set_len(bytes).map_err(failed)?),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = std::fs::metadata(path).map_err(failed)?;
            if there.is_file() && there.len() == bytes {
                return Ok(());
            }
            let what = anyhow!("{} is there already and is no file of {bytes} bytes", path.display());
            Err(Failure::new(Kind::Conflict, what).fix("leave --size out to format what is there, or choose another path"))
        }
        Err(error) => Err(failed(error).into()),
    }
}

/// Writes a file through once, so that later durable writes don't pay for the filesystem's bookkeeping.
async fn write_through(device: &FileDevice, path: &Path, format: Format) -> Result<(), Failure> {
    let bar = if format == Format::Table { ProgressBar::new(device.info().size_bytes) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{msg:30} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(format!("writing {}", path.file_name().unwrap_or_default().display()));
    let written = device.write_through(|progress| {
        bar.set_position(progress.done_bytes);
        ControlFlow::Continue(())
    });
    let result = written.await;
    bar.finish_and_clear();
    result.map_err(|error| {
        let kind = if error.kind() == ErrorKind::StorageFull { Kind::NoSpace } else { Kind::Failed };
        Failure::new(kind, error).context(format!("could not write {} through", path.display()))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not /tmp: that may be a filesystem without direct I/O.
    fn place() -> tempfile::TempDir {
        tempfile::tempdir_in(".").unwrap()
    }

    fn args(path: &Path, overwrite: Option<String>) -> FormatArgs {
        let connection = Connection { masters: Vec::new(), dir: None };
        FormatArgs { path: path.to_owned(), cluster: Some(ClusterId(7)), size: Some(64 << 20), overwrite, connection }
    }

    async fn contents(path: &Path) -> Contents {
        look(&open(path).unwrap()).await.unwrap()
    }

    #[tokio::test(flavor = "local")]
    async fn a_device_is_formatted_once_and_then_only_by_its_exact_id() {
        let dir = place();
        let path = dir.path().join("disk.img");
        format(args(&path, None), Format::Json).await.unwrap();
        let id = contents(&path).await.to_string();
        let failure = format(args(&path, None), Format::Json).await.unwrap_err();
        assert_eq!(failure.kind(), Kind::Conflict);
        assert!(failure.text().contains(&format!("--overwrite '{id}'")), "{}", failure.text());
        format(args(&path, Some("ext4:other".into())), Format::Json).await.unwrap_err();
        assert_eq!(contents(&path).await.to_string(), id);
        format(args(&path, Some(id.clone())), Format::Json).await.unwrap();
        assert_ne!(contents(&path).await.to_string(), id);
    }
}
