//! What the server process and its parent say to each other: orders as lines on standard input, replies as
//! lines of JSON on standard output.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ServerError;

/// A server that accepts connections.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ready {
    /// URL of the superuser in the database `postgres`, with the password.
    pub url: String,
    /// TCP port on 127.0.0.1 and, where the machine has it, on ::1.
    pub port: u16,
    /// Process id of the postmaster.
    pub pid: u32,
    /// Directory of the cluster.
    pub data_dir: PathBuf,
    /// Directory of the Unix socket.
    pub socket_dir: PathBuf,
    /// Full version, such as `17.11.0`.
    pub version: String,
}

/// How to stop PostgreSQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShutdownMode {
    /// Sessions are ended in order.
    Fast,
    /// As in a crash: recovery follows at the next start.
    Immediate,
}

impl ShutdownMode {
    /// The name that `pg_ctl` knows it by.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }
}

/// A line on the standard input of the server process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    Start,
    Stop(ShutdownMode),
    Restart(ShutdownMode),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Stop(mode) => write!(f, "stop {}", mode.as_str()),
            Self::Restart(mode) => write!(f, "restart {}", mode.as_str()),
        }
    }
}

impl FromStr for Order {
    type Err = ServerError;

    fn from_str(line: &str) -> Result<Self, ServerError> {
        match line.trim() {
            "start" => Ok(Self::Start),
            "stop fast" => Ok(Self::Stop(ShutdownMode::Fast)),
            "stop immediate" => Ok(Self::Stop(ShutdownMode::Immediate)),
            "restart fast" => Ok(Self::Restart(ShutdownMode::Fast)),
            "restart immediate" => Ok(Self::Restart(ShutdownMode::Immediate)),
            other => Err(ServerError::Order(other.to_owned())),
        }
    }
}

/// A line on the standard output of the server process: one when it has started, one for each order.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Ready(Ready),
    Stopped,
    Failed(String),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed parse is the failure of the test")]

    use super::*;

    #[test]
    fn orders_survive_the_pipe_and_others_are_refused_by_name() {
        for order in [
            Order::Start,
            Order::Stop(ShutdownMode::Fast),
            Order::Stop(ShutdownMode::Immediate),
            Order::Restart(ShutdownMode::Fast),
            Order::Restart(ShutdownMode::Immediate),
        ] {
            assert_eq!(format!("{order}\n").parse::<Order>().unwrap(), order);
        }
        for other in ["restart smart", "stop", "restart"] {
            let error = other.parse::<Order>().unwrap_err();
            assert!(matches!(&error, ServerError::Order(order) if order == other), "{error}");
        }
    }
}
