//! The label of the leader on a real API server: how soon a change of role is seen in another client's watch, and what a
//! standby keeps resident with Kubernetes on, with its API there and away.
//!
//! `cargo bench --bench kubernetes`. Exits with 1 when a bound is missed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]

#[path = "../support/mod.rs"]
mod bounds;
mod hand_over;
mod memory;
#[allow(dead_code, unused_imports, reason = "tests/it uses all of it")]
#[path = "../../tests/it/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use bounds::Bounds;
use support::kubernetes::{ApiProxy, Cluster};
use support::{Collector, Database, eventually};

const LIMIT: Duration = Duration::from_secs(60);

/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// The line of a process that begins to export.
const EXPORTS: &str = "queue state is exported";

/// The line of a process that finds the lock held.
const WAITS: &str = "another session holds the advisory lock";

#[tokio::main]
async fn main() -> ExitCode {
    let mut bounds = Bounds::default();
    memory::measure(&mut bounds).await;
    hand_over::measure(&mut bounds).await;
    bounds.report()
}

/// A collector in the Pod `pod`, which is there or is made.
async fn start(cluster: &Cluster, database: &Database, pod: &str, proxy: Option<&ApiProxy>) -> Collector {
    let url = proxy.map_or_else(|| cluster.server().url(), ApiProxy::url);
    let collector = cluster.collector_at(&url, pod, &database.url(), |_| {}).await;
    eventually(LIMIT, "its label is set", async || {
        collector.get("/leader").await.is_ok_and(|(_, answer)| answer.contains(r#""label":{"state":"set""#))
    })
    .await;
    collector
}
