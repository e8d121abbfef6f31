//! Flags of a master.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Flags of `basalt master`.
#[derive(Debug, Clone, clap::Args)]
pub struct MasterArgs {
    /// Number of this master: 1 or more, different from every other member's, and never given to another data directory.
    #[arg(long)]
    pub id: u64,
    /// Address for clients and for the other masters.
    #[arg(long, default_value = "0.0.0.0:7300")]
    pub listen: SocketAddr,
    /// host:port that the others reach this master at. Default: the address of --listen.
    #[arg(long)]
    pub advertise: Option<String>,
    /// Where the log and the snapshots are kept.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// The members of a new group, as id=host:port, the same for all of them. Only looked at while the data directory is
    /// empty. Without it an empty master waits to be added with `basalt master add`.
    #[arg(long, value_delimiter = ',', value_parser = parse_member)]
    pub initial: Vec<(u64, String)>,
    /// Seconds of silence after which a node's copies are made again elsewhere.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    pub lost_after: u64,
    /// Logs, metrics and traces.
    #[command(flatten)]
    pub telemetry: api_telemetry::TelemetryArgs,
}

/// A flag that can't be used; the text names it and the fix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgsError {
    /// Zero is no number of a master.
    #[error("--id must be 1 or more")]
    Id,
    /// Others can't reach it.
    #[error("--listen {0} names no address that others can reach: give --advertise")]
    Advertise(SocketAddr),
    /// Two members with one number.
    #[error("--initial names member {0} twice")]
    Twice(u64),
    /// This master isn't among them.
    #[error("--initial doesn't name this master: add {id}={address}")]
    Missing {
        /// This master's number.
        id: u64,
        /// Its address.
        address: String,
    },
}

impl MasterArgs {
    /// The address that others use.
    pub fn address(&self) -> Result<String, ArgsError> {
        match &self.advertise {
            Some(address) => Ok(address.clone()),
            None if self.listen.ip().is_unspecified() => Err(ArgsError::Advertise(self.listen)),
            None => Ok(self.listen.to_string()),
        }
    }

    /// The first members; `None` to wait until somebody adds this one.
    pub fn first_members(&self) -> Result<Option<BTreeMap<u64, String>>, ArgsError> {
        if self.id == 0 {
            return Err(ArgsError::Id);
        }
        let mut members = BTreeMap::new();
        for (id, address) in &self.initial {
            if members.insert(*id, address.clone()).is_some() {
                return Err(ArgsError::Twice(*id));
            }
        }
        if members.is_empty() {
            return Ok(None);
        }
        if !members.contains_key(&self.id) {
            return Err(ArgsError::Missing { id: self.id, address: self.address()? });
        }
        Ok(Some(members))
    }
}

fn parse_member(text: &str) -> Result<(u64, String), String> {
    let fail = || format!("`{text}` is not id=host:port");
    let (id, address) = text.split_once('=').ok_or_else(fail)?;
    let id = id.parse().ok().filter(|id| *id > 0).ok_or_else(fail)?;
    let is_address = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address { Ok((id, address.to_owned())) } else { Err(fail()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        master: MasterArgs,
    }

    fn parse(extra: &[&str]) -> Result<MasterArgs, clap::Error> {
        let base = ["basalt", "--id", "1", "--data-dir", "d", "--listen", "127.0.0.1:7300"];
        Line::try_parse_from(base.iter().chain(extra)).map(|line| line.master)
    }

    #[test]
    fn the_first_members_must_name_this_one_once() {
        assert_eq!(parse(&[]).unwrap().first_members(), Ok(None));
        let members = parse(&["--initial", "1=a:1,2=b:2"]).unwrap().first_members().unwrap().unwrap();
        assert_eq!(members, BTreeMap::from([(1, "a:1".to_owned()), (2, "b:2".to_owned())]));
        assert_eq!(parse(&["--initial", "1=a:1,1=b:2"]).unwrap().first_members(), Err(ArgsError::Twice(1)));
        let missing = parse(&["--initial", "2=b:2"]).unwrap().first_members().unwrap_err();
        assert_eq!(missing.to_string(), "--initial doesn't name this master: add 1=127.0.0.1:7300");
    }

    #[test]
    fn members_that_are_none_are_refused() {
        for wrong in ["a:1", "0=a:1", "x=a:1", "1=a", "1=:1", "1=a:99999"] {
            assert!(parse(&["--initial", wrong]).is_err(), "{wrong}");
        }
    }
}
