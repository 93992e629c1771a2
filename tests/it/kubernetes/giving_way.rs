//! A process that has just started leaves the lock to who stands by: the Pod `a` says that it does, and the real program
//! starts in the Pod `b`.

use std::time::Duration;

use retsu_collector::election::ACQUIRED;
use serde_json::json;

use super::stage::LIMIT;
use crate::support::keys;
use crate::support::kubernetes::{Cluster, ROLE};
use crate::support::{self, Collector, Config, Database, throughout};

/// How long `b` must not try a lock that is free.
const WINDOW: Duration = Duration::from_secs(2);

/// A fence and a retry interval for what has to happen before a turn is over, on a machine that is busy.
const AMPLE: u64 = 3 * LIMIT.as_secs();

/// `b`, where `a` says that it stands by.
async fn beside_a_standby(retry: u64, fence: u64) -> (Cluster, Database, Collector) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("a").await;
    cluster.set_label("a", ROLE, Some("standby")).await;
    let configure = |config: &mut Config| _ = config.set(keys::RETRY, retry).set(keys::FENCE, fence);
    let b = cluster.collector("b", &database.url(), configure).await;
    (cluster, database, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_just_started_leaves_the_lock_to_who_stands_by_until_nobody_does() {
    let (cluster, _database, b) = beside_a_standby(AMPLE, AMPLE).await;
    throughout(WINDOW, "b leaves the lock to a", async || b.count_in_log(ACQUIRED) == 0).await;
    let conditions = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    cluster.merge_status("a", conditions).await;
    b.wait_for_log(ACQUIRED, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_so_for_one_retry_interval() {
    let (_cluster, _database, b) = beside_a_standby(1, AMPLE).await;
    b.wait_for_log(ACQUIRED, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_so_for_no_longer_than_a_take_over_wait() {
    let (_cluster, _database, b) = beside_a_standby(AMPLE, 3).await;
    b.wait_for_log(ACQUIRED, LIMIT).await;
}
