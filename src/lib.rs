//! One exporter of Retsu queue state.
//!
//! Every replica competes for one PostgreSQL session advisory lock. The winner, the *leader*, reads
//! queue state on the session that owns the lock and exports it; the *standbys* wait. A refresh flows
//! one way: [`election`] holds the lock session, [`collection`] reads a snapshot on it,
//! [`exposition`] renders and publishes it, [`http`] serves the bytes.

pub mod cli;
pub mod clock;
pub mod collection;
pub mod config;
pub mod database;
#[cfg(feature = "demo")]
pub mod demo;
pub mod election;
pub mod exposition;
pub mod http;
pub mod kubernetes;
pub mod schema;
pub mod supervisor;
pub mod telemetry;
pub mod verify;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "../tests/it/support/log.rs"]
mod test_log;

/// The commit that this program was built from, as `RETSU_COMMIT` told the compiler; `unknown` without it.
pub const COMMIT: &str = match option_env!("RETSU_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
