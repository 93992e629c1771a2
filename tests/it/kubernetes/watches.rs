//! Watches that end in every way, and what is missed between them.

use std::time::{Duration, Instant};

use super::replicas::{LIMIT, RIGHT, Replica, leader_and_standby, wait_until_only};
use crate::support::kubernetes::{ApiServer, Call, Cluster, Fault, Labels, ROLE};
use crate::support::{self, eventually};

fn is_watch(call: &Call) -> bool {
    call.is("watch", "pods")
}

fn is_list(call: &Call) -> bool {
    call.is("list", "pods")
}

/// Verbs of the reads of the list of Pods since an instant.
fn reads_since(replica: &Replica, since: Instant) -> Vec<&'static str> {
    let calls = replica.proxy.calls();
    calls.iter().filter(|call| call.at >= since && (is_watch(call) || is_list(call))).map(|call| call.verb).collect()
}

async fn wait_until_watching(replica: &Replica, since: Instant) {
    eventually(LIMIT, "it watches again", async || {
        let watches = |call: &Call| call.at >= since && is_watch(call) && call.status == Some(200);
        replica.proxy.count(watches) > 0 && replica.proxy.open_watches() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_lost_is_begun_anew_from_a_list_and_nothing_is_missed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let [a, b] = leader_and_standby(&cluster, &database, |_| {}).await;
    for fault in [None, Some(Fault::Expired), Some(Fault::Status(410)), Some(Fault::Status(500)), Some(Fault::Reset)] {
        let began = Instant::now();
        for replica in [&a, &b] {
            if let Some(fault) = fault {
                replica.proxy.inject_times(1, is_watch, fault);
            }
            replica.proxy.reset_connections();
        }
        // While nobody looks.
        cluster.set_label("a", ROLE, Some("standby")).await;
        cluster.set_label("b", ROLE, Some("leader")).await;
        wait_until_only(&labels, "a", &["b"], RIGHT).await;
        println!("{fault:?}: right after {:?}", began.elapsed());
        for replica in [&a, &b] {
            wait_until_watching(replica, began).await;
            let reads = reads_since(replica, began);
            let expected: &[_] = if fault.is_some() { &["list", "watch", "list", "watch"] } else { &["list", "watch"] };
            assert_eq!(reads, expected, "{fault:?}");
        }
    }
    assert!(a.collector.exports().await && !b.collector.exports().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_ends_as_it_should_goes_on_without_a_list_and_one_whose_history_is_gone_lists_anew() {
    // With a watch cache it is that cache's history which counts, and no test can end that.
    let cluster = Cluster::on(ApiServer::own(&["--watch-cache=false"]).await).await;
    let database = support::queue_database().await;
    let labels = Labels::watch(&cluster).await;
    let a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    wait_until_only(&labels, "a", &[], LIMIT).await;
    // The next watches end after a second instead of a minute.
    let began = Instant::now();
    a.proxy.inject(is_watch, Fault::EndWatch(1));
    a.proxy.reset_connections();
    eventually(LIMIT, "it has watched three times", async || a.proxy.count_since(began, is_watch) >= 3).await;
    assert_eq!(reads_since(&a, began)[..4], ["list", "watch", "watch", "watch"]);

    // Another object moves the history on, and the version of the watch falls out of it.
    let compacted = Instant::now();
    cluster.server().compact().await;
    cluster.pods().await;
    create_elsewhere(&cluster).await;
    cluster.server().compact().await;
    eventually(LIMIT, "the version is refused", async || a.proxy.count_since(compacted, is_list) >= 1).await;
    a.proxy.clear();
    let drifted = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    wait_until_only(&labels, "a", &[], RIGHT).await;
    println!("right {:?} after it was changed", drifted.elapsed());
    let expired = "retsu_collector_kubernetes_requests_total{outcome=\"expired\",resource=\"pods\",verb=\"watch\"}";
    assert_eq!(a.value(expired).await, Some(1.0));
}

/// Changes something that no collector watches.
async fn create_elsewhere(cluster: &Cluster) {
    let other = Cluster::on(std::sync::Arc::clone(cluster.server())).await;
    other.pod("elsewhere").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_dead_without_a_sign_does_not_keep_the_label_from_being_read() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let [mut a, b] = leader_and_standby(&cluster, &database, |_| {}).await;
    let began = Instant::now();
    b.proxy.inject(is_watch, Fault::Silent);
    b.proxy.reset_connections();
    eventually(LIMIT, "the dead watch has begun", async || b.proxy.count_since(began, is_watch) > 0).await;
    // It sees no Pod any more, and takes over all the same.
    a.collector.sigkill();
    a.collector.wait_exit(LIMIT).await;
    b.wait_until_it_exports().await;
    labels.wait("b is labelled", RIGHT, |roles| roles["b"].as_deref() == Some("leader")).await;
    assert!(began.elapsed() < Duration::from_secs(40), "{:?} after the watch has begun", began.elapsed());
}
