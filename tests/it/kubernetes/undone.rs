//! Somebody who undoes at once what a process writes into its Pod.

use std::time::{Duration, Instant};

use super::replicas::{Replica, is_patch};
use crate::support;
use crate::support::kubernetes::{COST, Cluster, ROLE};

const WINDOW: Duration = Duration::from_secs(4);

/// One at once, the others after pauses that double from at least 25 ms to half a second.
const PATCHES: usize = 12;

/// The patches of a replica within the window that began then.
fn within(replica: &Replica, began: Instant) -> usize {
    let window = began..began + WINDOW;
    replica.proxy.calls().iter().filter(|call| is_patch(call) && window.contains(&call.at)).count()
}

/// Sets this again whenever it is otherwise, without end.
async fn insist(cluster: &Cluster, pod: &str, is_label: bool, key: &str, value: Option<&str>) {
    // One connection for all the looks.
    let pods = cluster.pods().await;
    loop {
        let metadata = pods.get(pod).await.unwrap().metadata;
        let entries = if is_label { metadata.labels } else { metadata.annotations };
        if entries.unwrap_or_default().get(key).map(String::as_str) != value {
            if is_label {
                cluster.set_label(pod, key, value).await
            } else {
                cluster.set_annotation(pod, key, value).await
            };
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_undoes_the_cost_is_not_fought_at_full_speed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    a.wait_for_label("set").await;
    let began = Instant::now();
    _ = tokio::time::timeout(WINDOW, insist(&cluster, "a", false, COST, Some("7"))).await;
    let tried = within(&a, began);
    assert!((1..=PATCHES).contains(&tried), "{tried} patches in {WINDOW:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_undoes_the_label_of_a_standby_is_not_fought_at_full_speed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    let b = Replica::start(&cluster, "b", &database, |_| {}).await;
    b.wait_for_label("set").await;
    let began = Instant::now();
    _ = tokio::time::timeout(WINDOW, insist(&cluster, "b", true, ROLE, None)).await;
    let tried = within(&b, began);
    let lines = b.collector.count_in_log("had been changed");
    assert!((1..=PATCHES).contains(&tried) && lines == 1, "{tried} patches, {lines} lines in {WINDOW:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_labels_a_sibling_is_not_fought_at_full_speed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("c").await;
    let a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    a.wait_for_label("set").await;
    let began = Instant::now();
    _ = tokio::time::timeout(WINDOW, insist(&cluster, "c", true, ROLE, Some("leader"))).await;
    let tried = within(&a, began);
    let lines = a.collector.count_in_log("was taken off another Pod");
    assert!((1..=PATCHES).contains(&tried) && lines == 1, "{tried} patches, {lines} lines in {WINDOW:?}");
}
