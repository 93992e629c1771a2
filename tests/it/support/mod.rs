//! What every test stands on: databases, servers, collectors, scrapes, conditions.
//!
//! The PostgreSQL version is `RETSU_TEST_POSTGRESQL_VERSION`, by default the newest.

use std::time::SystemTime;

use retsu_collector::election::{Tenure, Term};

pub(crate) mod keys;
pub(crate) mod kubernetes;
mod log;
mod pgbouncer;
mod postgres;
mod process;
mod proxy;
mod replication;
mod scrape;
mod secure;
mod wait;

pub(crate) use log::Log;
pub(crate) use pgbouncer::{PgBouncer, pooled};
pub(crate) use postgres::{
    Database, Server, database, exit_without_lock, lock_holders, open, postgresql_version, queue_database, role,
    server, slow_down, speed_up,
};
pub(crate) use process::{Collector, Config, EXECUTABLE, free_port, processes_with};
pub(crate) use proxy::Proxy;
pub(crate) use replication::{Replication, ServerIdentity, make_standby, server_identity};
pub(crate) use scrape::{History, documented_metrics, promtool, promtool_check, promtool_run};
pub(crate) use secure::Secure;
pub(crate) use wait::{eventually, throughout};

/// The tenure of a leader that exports.
pub(crate) fn tenure(term: Term) -> Tenure {
    Tenure {
        term,
        system_identifier: 7_300_000_000_000_000_001,
        granted: SystemTime::UNIX_EPOCH,
        exported: true,
        ended: None,
    }
}
