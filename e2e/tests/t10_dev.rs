//! The path of a newcomer: a cluster, a mounted volume, files that are there after everything was stopped and started.

use anyhow::{Result, ensure};
use e2e::{Cluster, Options, can_run};

#[test]
fn files_are_there_after_the_whole_cluster_was_stopped_and_started() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let mut cluster = Cluster::start(Options { base_port: 21_000, ..Options::default() })?;
    let file = cluster.mount().join("hello");
    std::fs::write(&file, vec![7u8; 10 << 20])?;
    let volumes = cluster.basalt_json(&["volume", "list"])?;
    ensure!(volumes.as_array().is_some_and(|list| list.len() == 1), "one volume was expected: {volumes}");
    cluster.basalt(&["dev", "down"])?;
    ensure!(!file.exists(), "still mounted after `dev down`");
    cluster.up()?;
    ensure!(std::fs::read(&file)? == vec![7u8; 10 << 20], "the file changed");
    // Running it again changes nothing.
    cluster.up()?;
    ensure!(file.exists(), "the mount went away");
    Ok(())
}

#[test]
fn an_xfs_volume_works_too() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let cluster = Cluster::start(Options { base_port: 21_200, fs: "xfs", ..Options::default() })?;
    std::fs::write(cluster.mount().join("hello"), vec![9u8; 1 << 20])?;
    Ok(())
}
