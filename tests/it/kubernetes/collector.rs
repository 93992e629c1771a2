//! The program as the container of a Pod.

use std::time::{Duration, Instant};

use crate::support::kubernetes::{ApiProxy, Cluster, Labels};
use crate::support::{eventually, queue_database};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_has_the_identity_of_its_pod_and_reaches_the_api_server_where_it_is_told() {
    let (cluster, database) = (Cluster::new().await, queue_database().await);
    let proxy = ApiProxy::start(cluster.server()).await;
    let began = Instant::now();
    let mut first = cluster.collector_at(&proxy.url(), "a", &database.url(), |_| {}).await;
    let labels = Labels::watch(&cluster).await;
    labels.wait("a leads", LIMIT, |roles| roles["a"].as_deref() == Some("leader")).await;
    let second = cluster.collector("b", &database.url(), |_| {}).await;
    let standby = |role: &Option<String>| role.as_deref() == Some("standby");
    labels.wait("b is a standby", LIMIT, |roles| roles.get("b").is_some_and(standby)).await;

    let token = std::fs::read_to_string(cluster.token_file("a")).unwrap();
    assert!(proxy.calls().iter().all(|call| call.token == token));
    assert!(proxy.count_since(began, |call| call.is("patch", "pods") && call.name.as_deref() == Some("a")) > 0);
    assert_eq!(proxy.count_since(Instant::now(), |_| true), 0);

    let told = Instant::now();
    first.sigterm();
    let withdrawn = labels.wait_for("a has withdrawn", LIMIT, told, |change| {
        change.pod == "a" && change.carried.as_ref().is_some_and(|carried| !carried.leads())
    });
    withdrawn.await;
    assert!(first.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "b leads", async || labels.leaders() == ["b"]).await;
    labels.assert_no_contradiction();
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_finds_the_files_of_its_service_account_without_being_told() {
    let (cluster, database) = (Cluster::new().await, queue_database().await);
    let url = cluster.server().url();
    let mut collector = cluster.collector_in_cluster(&url, "a", &database.url(), |_| {}).await;
    let labels = Labels::watch(&cluster).await;
    labels.wait("a leads", LIMIT, |roles| roles["a"].as_deref() == Some("leader")).await;
    collector.sigterm();
    assert!(collector.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "a has withdrawn", async || labels.leaders().is_empty()).await;
}
