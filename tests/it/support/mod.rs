//! What every test stands on: databases, servers, collectors, scrapes, conditions.
//!
//! The PostgreSQL version is `RETSU_TEST_POSTGRESQL_VERSION`, by default the newest.

mod postgres;
mod process;
mod proxy;
mod scrape;
mod wait;

pub(crate) use postgres::{Database, Server, database, lock_holders, postgresql_version, queue_database, server};
pub(crate) use process::{Collector, Config, EXECUTABLE, free_port, processes_with};
pub(crate) use proxy::Proxy;
pub(crate) use scrape::{History, promtool, promtool_check};
pub(crate) use wait::{eventually, throughout};
