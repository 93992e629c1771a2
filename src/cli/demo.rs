//! The flags of the demo.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use secrecy::SecretString;

use super::seconds;

/// The flags of `demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Connection URL of a throwaway database to use instead of an embedded PostgreSQL
    #[arg(long, value_name = "URL", conflicts_with = "postgresql_version")]
    pub database_url: Option<SecretString>,
    /// Version of the embedded PostgreSQL, such as 17 or 17.5.0
    #[arg(long, value_name = "VERSION", default_value = "18")]
    pub postgresql_version: String,
    /// Seconds until the leader is killed
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    pub kill_after: Duration,
    /// Seconds until the demo ends; without it, Ctrl-C ends it
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Ports of the two collectors
    #[arg(long, value_name = "PORT,PORT", default_value = "24350,24351")]
    pub ports: Ports,
    /// Number of queues
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub queues: u32,
}

/// The flags of the hidden command that serves the demo's PostgreSQL.
#[derive(Args, Clone, Debug)]
pub struct DemoServerArgs {
    /// Version, such as 17.5.0
    #[arg(long)]
    pub postgresql_version: String,
    /// Directory of the binaries
    #[arg(long)]
    pub install_dir: PathBuf,
    /// Directory of the data
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Settings of the server; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub configuration: Vec<(String, String)>,
}

/// The flags of the hidden command that runs a collector which ends with the demo.
#[derive(Args, Clone, Copy, Debug)]
pub struct DemoCollectorArgs {
    /// Process id of the demo
    #[arg(long)]
    pub parent: u32,
}

/// Two different TCP ports, written `24350,24351`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ports(pub u16, pub u16);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0);
        text.split_once(',')
            .and_then(|(first, second)| Some(Self(port(first)?, port(second)?)))
            .filter(|Self(first, second)| first != second)
            .ok_or_else(|| "must be two different ports from 1 to 65535, such as 24350,24351".into())
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("must be written key=value".into()),
    }
}
