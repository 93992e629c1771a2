//! A Pod that was deleted and made again under the same name while the old process goes on.

use std::time::{Duration, Instant};

use super::replicas::{HELD_UP, LIMIT, RIGHT, Replica, is_patch, step_down, wait_until_only};
use crate::support::kubernetes::{Cluster, Labels, ROLE};
use crate::support::{self, eventually, throughout};

/// Whether the Pod `a` that there is now has a role label.
async fn is_labelled(cluster: &Cluster) -> bool {
    cluster.get("a").await.unwrap().metadata.labels.unwrap().contains_key(ROLE)
}

/// A leader whose Pod is replaced, as seen with all permissions or with no other than `patch`.
async fn replaced(blind: bool) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("a").await;
    // One that is bound to the old Pod would be refused.
    let token = cluster.unbound_token().await;
    if blind {
        for verb in ["get", "list", "watch"] {
            cluster.revoke(verb, "pods").await;
        }
    }
    let labels = Labels::watch(&cluster).await;
    let a = Replica::start(&cluster, "a", &database, |config| {
        step_down(config);
        cluster.write_token("a", &token);
    })
    .await;
    a.wait_until_it_exports().await;
    wait_until_only(&labels, "a", &[], LIMIT).await;
    let old = cluster.get("a").await.unwrap().metadata.uid;
    cluster.delete("a", true).await;
    let new = cluster.pod("a").await.metadata.uid;
    assert_ne!(old, new);
    let began = Instant::now();
    if blind {
        // Only a patch can tell it.
        super::outage::terminate_holder(&database.pool().await).await;
    }
    let within = if blind { LIMIT } else { RIGHT };
    eventually(within, "it knows that its Pod was replaced", async || a.label().await["state"] == "replaced").await;
    println!("blind {blind}: known after {:?}", began.elapsed());
    a.wait_until_it_exports().await;
    let known = Instant::now();
    throughout(Duration::from_secs(2), "it exports, and leaves the new Pod alone", async || {
        a.collector.exports().await && !is_labelled(&cluster).await
    })
    .await;
    assert_eq!(a.proxy.count_since(known, is_patch), 0);
    let invalid = |code: u16| a.patches_since(began).iter().filter(|call| call.status == Some(code)).count();
    assert_eq!(invalid(422), usize::from(blind), "a wrong uid alone is 422");
    assert_eq!(a.value("retsu_collector_leader_label").await, None);
    assert_eq!(a.collector.count_in_log("was replaced by another of the same name"), 1);

    // A hand-over has nothing to tell, and waits for nobody.
    a.collector.sigterm();
    a.collector.wait_for_log("leadership released", LIMIT).await;
    assert_eq!(a.collector.count_in_log(HELD_UP), 0);
    assert!(!is_labelled(&cluster).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_of_the_same_name_is_left_alone_and_exporting_goes_on() {
    tokio::join!(replaced(false), replaced(true));
}
