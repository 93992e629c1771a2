//! A container that is started in a Pod which still says what the one before it was.

use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::stage::{Holder, LIMIT, note, note_of_seven, repairs_and_sweeps, wait_for_leader};
use crate::support::kubernetes::{ApiProxy, COST, Cluster, Fault, Labels, ROLE, TERM};
use crate::support::{self, Collector, eventually, throughout};

/// How long a process waits for its label before it serves all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// A Pod `a` in which a leader has crashed, and somebody else who holds the lock.
async fn crashed_leader() -> (Cluster, support::Database, Holder, String) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let holder = Holder::take(&database.url(), "").await;
    cluster.pod("a").await;
    let container = cluster.container("a").await.container_id;
    let note = note_of_seven(&database.url(), container.as_deref()).await.to_string();
    cluster.set_label("a", ROLE, Some("leader")).await;
    cluster.set_annotation("a", COST, Some("100")).await;
    cluster.set_annotation("a", TERM, Some(&note)).await;
    cluster.restart_container("a").await;
    (cluster, database, holder, note)
}

async fn status(collector: &Collector, path: &str) -> Option<u16> {
    collector.get(path).await.ok().map(|(status, _)| status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_container_clears_label_and_cost_before_it_serves() {
    let (cluster, database, _holder, left) = crashed_leader().await;
    let (api, labels) = (ApiProxy::start(cluster.server()).await, Labels::watch(&cluster).await);
    api.inject_times(1, |call| call.is("patch", "pods"), Fault::Hold);
    let a = cluster.collector_at(&api.url(), "a", &database.url(), |_| {}).await;
    eventually(LIMIT, "a patches its label", async || api.count(|call| call.is("patch", "pods")) > 0).await;
    assert_eq!(status(&a, "/health/serving").await, Some(503));
    assert_eq!(status(&a, "/health/live").await, Some(200));
    assert_eq!(status(&a, "/health/ready").await, Some(200));
    let released = Instant::now();
    api.release();
    eventually(LIMIT, "a serves", async || status(&a, "/health/serving").await == Some(200)).await;
    assert!(released.elapsed() < PATIENCE / 2, "{:?} after its label was off", released.elapsed());

    eventually(LIMIT, "the watch has told it", async || labels.leaders().is_empty()).await;
    let carried = &labels.carried()["a"];
    assert_eq!((carried.role.as_deref(), carried.cost.as_deref()), (Some("standby"), None));
    assert_eq!(carried.term.as_deref(), Some(left.as_str()), "the term of the old container is its own");
    assert_eq!(labels.history().len(), 2, "one patch");
    assert_eq!(repairs_and_sweeps(&a).await, [0; 3], "to begin anew is no repair");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_api_it_serves_after_two_seconds() {
    let (cluster, database, _holder, _) = crashed_leader().await;
    let api = ApiProxy::start(cluster.server()).await;
    api.freeze();
    let began = Instant::now();
    let a = cluster.collector_at(&api.url(), "a", &database.url(), |_| {}).await;
    a.wait_until_serving(LIMIT).await;
    let answered = Instant::now();
    assert_eq!(status(&a, "/health/serving").await, Some(503));
    eventually(LIMIT, "a serves", async || {
        assert_eq!(status(&a, "/health/live").await, Some(200));
        assert_eq!(status(&a, "/health/ready").await, Some(200));
        status(&a, "/health/serving").await == Some(200)
    })
    .await;
    assert!(began.elapsed() >= PATIENCE, "{:?} after its start", began.elapsed());
    assert!(answered.elapsed() < PATIENCE + Duration::from_secs(10), "{:?} after its start", answered.elapsed());
    throughout(Duration::from_millis(500), "it goes on", async || status(&a, "/health/serving").await == Some(200))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_that_is_late_never_names_the_container_before_as_that_of_the_term() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("a").await;
    let old = cluster.container("a").await.container_id.unwrap();
    cluster
        .update_container("a", |container| {
            let hour_ago = Timestamp::now() - SignedDuration::from_hours(1);
            container.state.as_mut().unwrap().running.as_mut().unwrap().started_at = Some(Time(hour_ago));
        })
        .await;
    let labels = Labels::watch(&cluster).await;
    let _a = cluster.unreported_collector("a", &database.url(), |_| {}).await;
    wait_for_leader(&labels, "a").await;
    assert!(note(&labels, "a")["container"].is_null() && note(&labels, "a")["exported"] == true);
    cluster.restart_container("a").await;
    let new = cluster.container("a").await.container_id.unwrap();
    eventually(LIMIT, "a names its container", async || note(&labels, "a")["container"] == *new).await;
    let notes: Vec<_> = labels.history().into_iter().filter_map(|change| change.carried?.term).collect();
    assert!(!notes.iter().any(|note| note.contains(&old)), "{notes:?}");
}
