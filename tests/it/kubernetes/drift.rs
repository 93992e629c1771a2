//! Somebody else changes what a Pod says of its process.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::replicas::RIGHT;
use super::stage::{LIMIT, leader_and_standby, repairs_and_sweeps, value, wait_for_leader};
use crate::support::keys::ON_FAILURE;
use crate::support::kubernetes::{ApiProxy, COST, Call, Cluster, Labels, ROLE, TERM, Webhook};
use crate::support::{self, Proxy, eventually, throughout};

/// Until what was changed has to be right again. A busy machine may take longer for some of the changes.
const REPAIR: Duration = Duration::from_secs(2);

fn patches(call: &Call) -> bool {
    call.is("patch", "pods")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hand_changes_on_leader_or_standby_is_right_again_within_two_seconds() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (a, b) = leader_and_standby(&cluster, &database.url()).await;
    wait_for_leader(&labels, "a").await;
    let container = cluster.container("a").await.container_id.unwrap();
    eventually(LIMIT, "a names its container", async || {
        labels.carried()["a"].term.as_ref().is_some_and(|term| term.contains(&container))
    })
    .await;
    let right = labels.carried();
    let mut repairs = Vec::new();
    let mut restored = async |what: &str| {
        let began = Instant::now();
        eventually(RIGHT, what, async || labels.carried() == right).await;
        println!("{what}: right again after {:?}", began.elapsed());
        repairs.push(began.elapsed());
    };
    for (count, role) in (1..).zip([None, Some("standby"), Some("other")]) {
        cluster.set_label("a", ROLE, role).await;
        labels.wait("it is gone", LIMIT, |now| now["a"].as_deref() != Some("leader")).await;
        restored("the label of the leader").await;
        eventually(LIMIT, "it is counted", async || repairs_and_sweeps(&a).await == [count, 0, 0]).await;
    }
    for (count, role) in (1..).zip([Some("leader"), None]) {
        let began = Instant::now();
        cluster.set_label("b", ROLE, role).await;
        labels.wait_for("it is changed", LIMIT, began, |change| change.pod == "b").await;
        restored("the label of the standby").await;
        eventually(LIMIT, "it is counted", async || repairs_and_sweeps(&b).await == [0, count, 0]).await;
    }
    for (pod, key, text) in [
        ("a", COST, None),
        ("a", COST, Some("-7")),
        ("b", COST, Some("100")),
        ("a", TERM, None),
        ("a", TERM, Some("{}")),
    ] {
        let began = Instant::now();
        cluster.set_annotation(pod, key, text).await;
        labels.wait_for("it is changed", LIMIT, began, |change| change.pod == pod).await;
        restored(&format!("{key} of {pod}")).await;
    }
    repairs.sort();
    assert!(repairs[repairs.len() / 2] < REPAIR, "{repairs:?}");
    assert_eq!((repairs_and_sweeps(&a).await[0], repairs_and_sweeps(&b).await[1]), (3, 2), "labels only");
    assert!(a.exports().await && a.count_in_log("leadership lost") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_cannot_prove_its_lease_does_not_take_the_label_back() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (proxy, through) = Proxy::start(&database.url()).await;
    let labels = Labels::watch(&cluster).await;
    let a = cluster.collector("a", &through, |config| _ = config.set(ON_FAILURE, "step_down")).await;
    wait_for_leader(&labels, "a").await;
    proxy.deafen();
    let began = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    a.wait_for_log("leadership lost", LIMIT).await;
    labels.wait("a is a standby", LIMIT, |now| now["a"].as_deref() == Some("standby")).await;
    let since = |change: &&crate::support::kubernetes::Change| change.at >= began;
    let roles: Vec<_> =
        labels.history().iter().filter(since).map(|change| change.carried.clone().unwrap().role).collect();
    assert_eq!(roles, [None, Some("standby".to_owned())]);
    assert_eq!(repairs_and_sweeps(&a).await, [0; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_adds_to_the_pod_is_no_reason_for_a_second_patch() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("a").await;
    let _webhook = Webhook::start(&cluster, &[("team", "queues")], &[("touched", "{count}")]).await;
    let (api, labels) = (ApiProxy::start(cluster.server()).await, Labels::watch(&cluster).await);
    let a = cluster.collector_at(&api.url(), "a", &database.url(), |_| {}).await;
    wait_for_leader(&labels, "a").await;
    let container = cluster.container("a").await.container_id.unwrap();
    eventually(LIMIT, "a names its container", async || {
        labels.carried()["a"].term.as_ref().is_some_and(|term| term.contains(&container))
    })
    .await;
    let settled = api.count(patches);
    assert!(settled <= 5, "standby, the term, its container and the leader are {settled} patches");
    throughout(Duration::from_secs(2), "no more", async || api.count(patches) == settled).await;
    assert_eq!(repairs_and_sweeps(&a).await, [0; 3]);
    let pod = cluster.get("a").await.unwrap().metadata;
    assert!(pod.labels.unwrap().contains_key("team") && pod.annotations.unwrap().contains_key("touched"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_sets_the_label_itself_is_not_fought_at_full_speed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("a").await;
    let webhook = Webhook::start(&cluster, &[(ROLE, "standby")], &[("touched", "{count}")]).await;
    let (api, labels) = (ApiProxy::start(cluster.server()).await, Labels::watch(&cluster).await);
    let a = cluster.collector_at(&api.url(), "a", &database.url(), |_| {}).await;
    eventually(LIMIT, "a exports", async || a.exports().await).await;
    eventually(LIMIT, "a patches its label", async || api.count(patches) > 8).await;
    // From then on each pause is half a second to a second.
    let window = Duration::from_secs(3);
    let began = Instant::now();
    throughout(window, "it exports", async || a.exports().await).await;
    let tried = api.calls().iter().filter(|call| patches(call) && (began..began + window).contains(&call.at)).count();
    assert!((1..=7).contains(&tried), "{tried} patches in {window:?}");
    assert_eq!(labels.leaders(), Vec::<String>::new());
    let answer: Value = serde_json::from_str(&a.get("/leader").await.unwrap().1).unwrap();
    assert_eq!(answer["label"]["state"], "pending");
    webhook.remove(&cluster).await;
    wait_for_leader(&labels, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_refuses_is_named_once_and_costs_the_label_only() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.enforce_admission_policy().await;
    let api = ApiProxy::start(cluster.server()).await;
    let a = cluster.unbound_collector_at(&api.url(), "a", &database.url()).await;
    eventually(LIMIT, "a exports", async || a.exports().await).await;
    let refused = |call: &Call| patches(call) && call.status == Some(403);
    eventually(LIMIT, "a has tried again", async || api.count(refused) >= 3).await;
    assert_eq!(a.count_in_log("refuses what the Role has to permit"), 1);
    assert!(a.count_in_log("the token of a collector must be bound to its Pod") > 0, "the log has the reason");
    let denied = "retsu_collector_kubernetes_denied_info{resource=\"pods\",verb=\"patch\"}";
    assert_eq!(value(&a, denied).await, Some(1));
    let answer: Value = serde_json::from_str(&a.get("/leader").await.unwrap().1).unwrap();
    assert_eq!((&answer["role"], &answer["label"]["state"]), (&"leader".into(), &"denied".into()));
    assert_eq!(answer["label"]["denied"], serde_json::json!({"verb": "patch", "resource": "pods"}));
}
