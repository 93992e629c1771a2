//! The API away, in every way in which it can be: leadership goes on, and nothing old is told when it is back.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use retsu_collector::election::ACQUIRED;
use sqlx::PgPool;

use super::replicas::{LIMIT, RIGHT, Replica, is_patch, leader_and_standby, roles_since, step_down, wait_until_only};
use crate::support::kubernetes::{ApiProxy, Call, Change, Cluster, Fault, Labels, ROLE};
use crate::support::{self, eventually, keys, lock_holders, throughout};

/// The longest that a stop waits for the API, a second, and what a busy machine adds to it. A request would be given
/// up after 5 s.
const HAND_OVER: Duration = Duration::from_secs(4);

/// Ends the session of the lock's holder, as soon as there is one.
pub(super) async fn terminate_holder(observer: &PgPool) {
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually(LIMIT, "a session that holds the lock is ended", async || {
        let ended: Vec<bool> = sqlx::query_scalar(terminate).fetch_all(observer).await.unwrap();
        ended == [true]
    })
    .await;
}

/// The version of a Pod, which is another one after every write.
async fn version(cluster: &Cluster, pod: &str) -> Option<String> {
    cluster.get(pod).await.unwrap().metadata.resource_version
}

/// A graceful hand-over and two lost terms while `way` keeps the API away; what was wanted meanwhile is never told.
async fn hand_overs_without_the_api(way: fn(&ApiProxy)) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let observer = database.pool().await;
    let labels = Labels::watch(&cluster).await;
    let [mut a, b] = leader_and_standby(&cluster, &database, step_down).await;
    let c = Replica::start(&cluster, "c", &database, step_down).await;
    c.wait_for_label("set").await;
    for replica in [&a, &b, &c] {
        way(&replica.proxy);
    }
    let versions = async || join_all(["a", "b", "c"].map(|pod| version(&cluster, pod))).await;
    let told = versions().await;

    a.collector.sigterm();
    let signalled = Instant::now();
    let released = a.collector.wait_for_log("leadership released", LIMIT).await;
    assert!(released - signalled <= HAND_OVER, "the lock was kept for {:?}", released - signalled);
    assert!(a.collector.wait_exit(LIMIT).await.success());
    let exporting = async |but: &str| {
        let mut found = None;
        eventually(LIMIT, "another replica exports", async || {
            for replica in [&b, &c].into_iter().filter(|replica| replica.pod != but) {
                if replica.collector.exports().await {
                    found = Some(replica);
                }
            }
            found.is_some()
        })
        .await;
        found.unwrap()
    };
    let second = exporting("").await;
    assert_eq!(second.label().await["state"], "pending");
    // Each goes back and forth, which makes intents that are old when the API is back.
    let mut leader = second;
    for _ in 0..2 {
        terminate_holder(&observer).await;
        leader = exporting(&leader.pod.clone()).await;
    }
    assert_eq!(leader.pod, second.pod);
    throughout(Duration::from_millis(500), "leadership goes on", async || leader.collector.exports().await).await;
    assert_eq!(lock_holders(&observer).await, 1);
    assert_eq!(labels.leaders(), ["a"], "nobody can have told anything else");
    assert_eq!(versions().await, told);

    let back = Instant::now();
    for replica in [&a, &b, &c] {
        replica.proxy.mend();
    }
    wait_until_only(&labels, &leader.pod, &[], RIGHT).await;
    println!("right {:?} after the API was back", back.elapsed());
    leader.wait_for_label("set").await;
    let other = if leader.pod == "b" { "c" } else { "b" };
    throughout(Duration::from_secs(1), "nothing old is told", async || labels.leaders() == [leader.pod.clone()]).await;
    assert_eq!(roles_since(&labels, &leader.pod, back), ["leader"]);
    assert!(roles_since(&labels, other, back).iter().all(|role| role == "standby"));
    labels.assert_no_contradiction();
    assert_eq!(leader.value("retsu_collector_label_sweeps_total").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_go_on_without_the_api_and_only_the_last_leader_is_told_when_it_is_back() {
    tokio::join!(hand_overs_without_the_api(ApiProxy::cut), hand_overs_without_the_api(ApiProxy::freeze));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_of_an_old_leader_that_arrives_late_changes_nothing() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let mut a = Replica::start(&cluster, "a", &database, |config| {
        // So that its first term has begun before anything is held.
        config.set("worker.queue.state_metrics_collector.leadership_retry_interval_seconds", 2);
    })
    .await;
    let makes_leader =
        |call: &Call| is_patch(call) && String::from_utf8_lossy(&call.body).contains(&format!(r#""{ROLE}":"leader""#));
    a.proxy.inject_times(1, makes_leader, Fault::Hold);
    a.wait_until_it_exports().await;
    eventually(LIMIT, "its label is on the way", async || a.proxy.count(makes_leader) == 1).await;
    let b = Replica::start(&cluster, "b", &database, |_| {}).await;
    b.wait_for_label("set").await;
    a.collector.sigterm();
    assert!(a.collector.wait_exit(LIMIT).await.success());
    b.wait_until_it_exports().await;
    let taken = wait_until_only(&labels, "b", &["a"], LIMIT).await.unwrap();

    a.proxy.release();
    let late = async || a.proxy.calls().into_iter().find(makes_leader).unwrap().status;
    eventually(LIMIT, "the old patch is answered", async || late().await.is_some()).await;
    assert_eq!(late().await, Some(409));
    throughout(Duration::from_secs(1), "b alone has the label", async || labels.leaders() == ["b"]).await;
    assert_eq!(roles_since(&labels, "a", taken), Vec::<String>::new());
    assert!(!roles_since(&labels, "a", a.proxy.calls()[0].at).contains(&"leader".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_loses_its_term_while_its_patch_hangs_is_no_leader_for_kubernetes() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let observer = database.pool().await;
    let labels = Labels::watch(&cluster).await;
    let [a, b] = leader_and_standby(&cluster, &database, |config| {
        step_down(config);
        // The next leader is `b`, at once, and nobody is told because a request has taken too long.
        config.set(keys::RETRY, 60).set("kubernetes.request_timeout_seconds", 60);
    })
    .await;
    // The label is to be set again, and that never arrives.
    a.proxy.inject_times(1, is_patch, Fault::Hang);
    let drifted = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    eventually(LIMIT, "the patch hangs", async || a.proxy.count_since(drifted, is_patch) == 1).await;
    let lost = Instant::now();
    terminate_holder(&observer).await;
    let tells =
        |change: &Change| change.carried.as_ref().is_some_and(|carried| carried.role.as_deref() == Some("standby"));
    let marked =
        labels.wait_for("the end of the term is told", RIGHT, lost, |change| change.pod == "a" && tells(change)).await;
    println!("told {:?} after the end", marked.at - lost);
    b.collector.wait_for_log(ACQUIRED, LIMIT).await;
    wait_until_only(&labels, "b", &["a"], LIMIT).await;
    assert!(!roles_since(&labels, "a", lost).contains(&"leader".to_owned()));
}
