//! What every test stands on: databases, servers, collectors, scrapes, conditions.
//!
//! The PostgreSQL version is `RETSU_TEST_POSTGRESQL_VERSION`, by default the newest.

pub(crate) mod keys;
mod pgbouncer;
mod postgres;
mod process;
mod proxy;
mod replication;
mod scrape;

use std::time::{Duration, Instant};

pub(crate) use pgbouncer::{PgBouncer, pooled};
pub(crate) use postgres::{
    Database, Server, database, lock_holders, open, postgresql_version, queue_database, role, server, slow_down,
    speed_up,
};
pub(crate) use process::{Collector, Config, EXECUTABLE, free_port, processes_with};
pub(crate) use proxy::Proxy;
pub(crate) use replication::{Replication, ServerIdentity, make_standby, server_identity};
pub(crate) use scrape::{History, promtool, promtool_check};

/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// Waits until `condition` holds, and fails the test with `what` when it does not within `limit`.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Fails the test with `what` as soon as `condition` does not hold, for the whole of `window`.
pub(crate) async fn throughout(window: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while began.elapsed() < window {
        assert!(condition().await, "after {:?}, not throughout {window:?}: {what}", began.elapsed());
        tokio::time::sleep(POLL).await;
    }
}
