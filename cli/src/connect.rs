//! Whom a command talks to: from flags, the environment, or the `basalt.json` that a development cluster keeps in its
//! directory.

use crate::failure::{Failure, Kind};
use anyhow::{Context, anyhow};
use api_wire::master_client::{ConnectionOptions, MasterConnection};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a person waits for masters that don't answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flags of every command that talks to masters or to an agent.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Connection {
    /// Masters, as host:port. Default: those in the file basalt.json of a development cluster.
    #[arg(long, env = "BASALT_MASTERS", value_delimiter = ',')]
    pub(crate) masters: Vec<String>,
    /// Directory of a development cluster. Default: the current one, then ./basalt-dev.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

/// The file `basalt.json`.
#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// `host:port` of each master.
    pub(crate) masters: Vec<String>,
    /// The cluster's id.
    #[serde(default)]
    pub(crate) cluster: Option<String>,
    /// Agents of the cluster.
    #[serde(default)]
    pub(crate) agents: Vec<KnownAgent>,
}

/// An agent in `basalt.json`.
#[derive(Deserialize, Debug, PartialEq, Eq)]
pub(crate) struct KnownAgent {
    /// Its node.
    pub(crate) node: String,
    /// Its attach socket.
    pub(crate) socket: PathBuf,
}

impl Connection {
    /// The development cluster's file, if one is there.
    pub(crate) fn known(&self) -> Result<Option<Known>, Failure> {
        let places = match &self.dir {
            Some(dir) => vec![dir.clone()],
            None => vec![PathBuf::from("."), PathBuf::from("basalt-dev")],
        };
        for place in &places {
            let path = place.join("basalt.json");
            match std::fs::read_to_string(&path) {
                Ok(text) => return Ok(Some(parse(&path, &text)?)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(anyhow::Error::from(error).context(format!("could not read {}", path.display())).into());
                }
            }
        }
        match &self.dir {
            Some(dir) => Err(Failure::new(Kind::NotFound, anyhow!("{} has no basalt.json", dir.display()))
                .fix("start a cluster there with `basalt dev --dir`, or name masters with --masters")),
            None => Ok(None),
        }
    }

    /// The way to the masters. Nothing is sent as yet.
    pub(crate) fn connect(&self) -> Result<MasterConnection, Failure> {
        let options = ConnectionOptions { call_limit: PATIENCE, ..ConnectionOptions::default() };
        MasterConnection::connect(self.masters()?, options).map_err(|error| Failure::new(Kind::Usage, error))
    }

    /// The masters to ask, never none.
    pub(crate) fn masters(&self) -> Result<Vec<String>, Failure> {
        if !self.masters.is_empty() {
            return Ok(self.masters.clone());
        }
        match self.known()? {
            Some(known) if !known.masters.is_empty() => Ok(known.masters),
            _ => Err(Failure::new(Kind::Usage, anyhow!("no masters are known")).fix(
                "give --masters host:port,… or BASALT_MASTERS, or run in the directory of a development cluster (or name it with --dir)",
            )),
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Known, Failure> {
    serde_json::from_str(text)
        .with_context(|| format!("{} is not the file of a development cluster", path.display()))
        .map_err(|error| Failure::new(Kind::Failed, error).fix("run `basalt dev` again: it writes the file anew"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(dir: &Path) -> Connection {
        Connection { masters: Vec::new(), dir: Some(dir.to_owned()) }
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("basalt.json"), r#"{"masters":["a:1"],"cluster":"x","agents":[]}"#).unwrap();
        assert_eq!(connection(dir.path()).masters().unwrap(), ["a:1"]);
        let flags = Connection { masters: vec!["b:2".to_owned()], ..connection(dir.path()) };
        assert_eq!(flags.masters().unwrap(), ["b:2"]);
    }

    #[test]
    fn a_directory_without_a_cluster_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let text = connection(dir.path()).masters().unwrap_err().text();
        assert!(text.contains("has no basalt.json") && text.contains("--masters"), "{text}");
        std::fs::write(dir.path().join("basalt.json"), "{").unwrap();
        assert!(connection(dir.path()).masters().unwrap_err().text().contains("run `basalt dev` again"));
    }
}
