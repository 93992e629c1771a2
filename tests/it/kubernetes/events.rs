//! The Events of a term, as somebody reads them who describes the Pod.

use std::collections::BTreeSet;

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;

use super::stage::{LIMIT, execute, leader_and_standby, wait_for_leader};
use crate::support::keys::ON_FAILURE;
use crate::support::kubernetes::{Cluster, Labels};
use crate::support::{self, eventually, pooled, role};

/// Type, reason and the beginning of the note of every Event about a Pod, each of which is about it and nothing else.
async fn told(cluster: &Cluster, pod: &str) -> BTreeSet<String> {
    let events = cluster.api::<Event>(&cluster.admin().await).list(&ListParams::default()).await.unwrap();
    let uid = cluster.get(pod).await.unwrap().metadata.uid;
    let mut told = BTreeSet::new();
    for event in events {
        let about = event.regarding.unwrap();
        if about.name.as_deref() != Some(pod) {
            continue;
        }
        assert_eq!((about.kind.as_deref(), &about.uid), (Some("Pod"), &uid));
        assert_eq!(about.namespace.as_deref(), Some(cluster.namespace()));
        assert_eq!(event.reporting_controller.as_deref(), Some("retsu.io/collector"));
        assert_eq!(event.reporting_instance.as_deref(), Some(pod));
        told.insert(format!("{} {} {}", event.type_.unwrap(), event.reason.unwrap(), event.note.unwrap()));
    }
    told
}

async fn wait_for(cluster: &Cluster, pod: &str, beginnings: &[&str]) {
    eventually(LIMIT, &format!("Events about {pod}: {beginnings:?}"), async || {
        let told = told(cluster, pod).await;
        told.len() == beginnings.len()
            && beginnings.iter().all(|beginning| told.iter().any(|event| event.starts_with(beginning)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_is_told_when_it_is_acquired_and_with_its_reason_when_it_is_lost() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let name = format!("told_{}", database.name());
    let url = role(&database.url(), &name).await;
    let labels = Labels::watch(&cluster).await;
    let (mut a, b) = leader_and_standby(&cluster, &url).await;
    wait_for_leader(&labels, "a").await;
    wait_for(&cluster, "a", &["Normal LeadershipAcquired Leads in term 1/"]).await;
    assert_eq!(told(&cluster, "b").await, BTreeSet::new());
    a.sigterm();
    assert!(a.wait_exit(LIMIT).await.success());
    let stopped = ["Normal LeadershipAcquired Leads in term 1/", "Normal LeadershipLost Leads no longer: stopping"];
    wait_for(&cluster, "a", &stopped).await;
    // The process ends with the failed refresh, after it has told why.
    wait_for_leader(&labels, "b").await;
    execute(&database.url(), &format!("REVOKE pg_read_all_data FROM {name}")).await;
    b.wait_for_log("leadership lost", LIMIT).await;
    let failed =
        ["Normal LeadershipAcquired Leads in term 1/", "Warning LeadershipLost Leads no longer: missing_privilege"];
    wait_for(&cluster, "b", &failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_refused_is_told_with_its_reason() {
    let cluster = Cluster::new().await;
    let (_database, _observer, pooler) = pooled("transaction", &[]).await;
    let _a = cluster.collector("a", &pooler.url(), |config| _ = config.set(ON_FAILURE, "step_down")).await;
    wait_for(&cluster, "a", &["Warning LockRefused The database server is refused: transaction_pooler"]).await;
}
