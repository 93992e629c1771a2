//! Whether the lock and the label are with the same replica, as every replica sees it.

use super::stage::{Holder, LIMIT, WAITING, agreement, wait_for_leader};
use crate::support::keys::ON_FAILURE;
use crate::support::kubernetes::{Cluster, Labels, ROLE, TERM};
use crate::support::{self, Collector, Proxy, eventually};

async fn all_say(replicas: [&Collector; 2], state: Option<&str>) {
    eventually(LIMIT, &format!("every replica says {state:?}"), async || {
        for replica in replicas {
            if agreement(replica).await != state {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_says_whether_lock_and_label_are_with_the_same_one_also_when_nobody_leads() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    // Retsu's own collector, for example.
    let holder = Holder::take(&database.url(), "retsu-worker").await;
    for name in ["x", "y"] {
        cluster.pod(name).await;
    }
    let (proxy, through) = Proxy::start(&database.url()).await;
    let a = cluster.collector("a", &database.url(), |_| {}).await;
    let b = cluster.collector("b", &through, |config| _ = config.set(ON_FAILURE, "step_down")).await;
    for replica in [&a, &b] {
        replica.wait_for_log(WAITING, LIMIT).await;
    }
    all_say([&a, &b], Some("none")).await;
    cluster.set_label("x", ROLE, Some("leader")).await;
    all_say([&a, &b], Some("wrong")).await;
    // It holds the lock of nobody, whatever it says.
    cluster.set_annotation("x", TERM, Some("{}")).await;
    cluster.set_label("y", ROLE, Some("leader")).await;
    all_say([&a, &b], Some("two")).await;
    cluster.set_label("y", ROLE, None).await;
    all_say([&a, &b], Some("wrong")).await;
    cluster.set_label("x", ROLE, None).await;
    all_say([&a, &b], Some("none")).await;

    let labels = Labels::watch(&cluster).await;
    proxy.cut();
    b.wait_for_log("trying until they work", LIMIT).await;
    holder.release().await;
    wait_for_leader(&labels, "a").await;
    eventually(LIMIT, "the leader agrees with itself", async || agreement(&a).await == Some("one")).await;
    eventually(LIMIT, "who cannot see the lock does not know", async || agreement(&b).await.is_none()).await;
    proxy.mend();
    all_say([&a, &b], Some("one")).await;
    assert_eq!(a.metrics().await.unwrap().matches("\nretsu_collector_label_agreement{").count(), 4, "one-hot");
}
