//! The label through the life of a term: from the start of a process over every way out of leadership.

use std::time::{Duration, Instant};

use retsu_collector::election::ACQUIRED;
use serde_json::Value;

use crate::support::kubernetes::{Cluster, Labels};
use crate::support::{self, Collector, eventually, throughout};

const LIMIT: Duration = Duration::from_secs(20);

/// A leader `a` and a standby `b`, each in its Pod.
async fn leader_and_standby(cluster: &Cluster, database_url: &str) -> (Collector, Collector) {
    let a = cluster.collector("a", database_url, |_| {}).await;
    eventually(LIMIT, "a exports", async || a.exports().await).await;
    let b = cluster.collector("b", database_url, |_| {}).await;
    b.wait_for_log("another session holds the advisory lock", LIMIT).await;
    (a, b)
}

fn note(labels: &Labels, pod: &str) -> Value {
    labels.carried()[pod].term.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_says_label_cost_and_term_and_a_standby_its_label_only() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (a, b) = leader_and_standby(&cluster, &database.url()).await;
    labels
        .wait("both are labelled", LIMIT, |now| {
            now.get("a").cloned().flatten().as_deref() == Some("leader")
                && now.get("b").cloned().flatten().as_deref() == Some("standby")
        })
        .await;
    let carried = labels.carried();
    assert_eq!((carried["a"].cost.as_deref(), carried["b"].cost.as_deref()), (Some("100"), None));
    assert_eq!(carried["b"].term, None);
    let note = note(&labels, "a");
    let leader: Value = serde_json::from_str(&a.get("/leader").await.unwrap().1).unwrap();
    let term = format!("{}/{}", leader["term"]["timeline"], leader["term"]["number"]);
    assert_eq!((&note["term"], &note["system"]), (&Value::from(term), &leader["system_identifier"]));
    assert_eq!((&note["exported"], &note["withdrawn"]), (&true.into(), &false.into()));
    let container = cluster.container("a").await.container_id.unwrap();
    assert_eq!(note["container"], container);
    assert_eq!((&leader["label"]["state"], &leader["label"]["role"]), (&"set".into(), &"leader".into()));
    assert_eq!(b.get("/health/serving").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_takes_the_label_off_before_the_lock_is_free_and_hands_over_at_once() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (mut a, b) = leader_and_standby(&cluster, &database.url()).await;
    let began = Instant::now();
    a.sigterm();
    let acquired = b.wait_for_log(ACQUIRED, LIMIT).await;
    eventually(LIMIT, "b exports", async || b.exports().await).await;
    println!("b exports {:?} after the signal", began.elapsed());
    assert!(a.wait_exit(LIMIT).await.success());
    let off = labels.history().into_iter().find(|change| change.at >= began && change.pod == "a").unwrap();
    let carried = off.carried.clone().unwrap();
    assert_eq!((carried.role.as_deref(), carried.cost.as_deref()), (Some("standby"), None));
    let marked: Value = serde_json::from_str(&carried.term.unwrap()).unwrap();
    assert_eq!((&marked["exported"], &marked["withdrawn"]), (&true.into(), &true.into()));
    assert!(
        off.at < acquired + Duration::from_millis(50),
        "{:?} after the grant",
        off.at.saturating_duration_since(acquired)
    );
    labels.wait("b leads", LIMIT, |now| now["b"].as_deref() == Some("leader")).await;
    b.wait_for_log("the last holder of the lock has ended", LIMIT).await;
    labels.assert_no_contradiction();
    throughout(Duration::from_secs(1), "one Pod has the label", async || labels.leaders() == ["b"]).await;
}
