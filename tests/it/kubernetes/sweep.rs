//! A leader label on a Pod that does not lead.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use retsu_collector::election::ACQUIRED;
use serde_json::{Value, json};

use super::stage::{
    LIMIT, SKIPPED, WAITING, leader_and_standby, note_of_seven, repairs_and_sweeps, value, wait_for_leader,
};
use crate::support::kubernetes::{ApiProxy, COST, Call, Carried, Change, Cluster, Fault, Labels, ROLE, TERM};
use crate::support::{self, Collector, History, eventually, throughout};

const FENCE: Duration = Duration::from_secs(3);

/// Within which a changed label is right again.
const REPAIRED: Duration = Duration::from_secs(2);

const HELD: &str = "retsu_collector_election_attempts_total{outcome=\"held\"}";

const SWEPT: &str = "retsu_collector_label_sweeps_total";

/// A leader alone, which has its label.
async fn leader(cluster: &Cluster, labels: &Labels, database_url: &str) -> Collector {
    let a = cluster.collector("a", database_url, |_| {}).await;
    wait_for_leader(labels, "a").await;
    a
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_lost_loses_label_term_and_cost_when_the_next_leader_has_waited() {
    join_all([false, true].map(lose_node)).await;
}

/// A leader is killed, or stopped and continued; nobody tells of either.
async fn lose_node(killed: bool) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (a, b) = leader_and_standby(&cluster, &database.url()).await;
    wait_for_leader(&labels, "a").await;
    let history = History::watch(&[&a, &b]);
    let began = Instant::now();
    if killed {
        a.sigkill();
    } else {
        a.sigstop();
    }
    let acquired = b.wait_for_log(ACQUIRED, LIMIT).await;
    wait_for_leader(&labels, "b").await;
    let swept = labels.wait_for("a is swept", LIMIT, began, |change| change.pod == "a").await;
    let carried = swept.carried.unwrap();
    assert_eq!((carried.role, carried.term, carried.cost), (None, None, None), "in one patch");
    let waited = swept.at.saturating_duration_since(acquired);
    assert!(waited > FENCE - Duration::from_millis(500), "swept {waited:?} after the grant");
    assert_eq!((b.count_in_log(SKIPPED), repairs_and_sweeps(&b).await), (0, [0, 0, 1]));

    if killed {
        assert_eq!(history.finish("killed").overlaps(), []);
        return;
    }
    // It comes back, and finds that its term is over and its annotation gone. Where it knows of the sweep before it has
    // said that it withdraws, it says so then: that is true, and of a term that nobody waits for.
    let back = Instant::now();
    a.sigcont();
    a.wait_for_log("leadership lost", LIMIT).await;
    let changed = labels.wait_for("a is a standby", LIMIT, back, |change| change.pod == "a").await;
    let carried = changed.carried.unwrap();
    assert_eq!((carried.role.as_deref(), carried.cost), (Some("standby"), None));
    let withdrawn = |note: &str| note.ends_with(r#""withdrawn":true}"#);
    assert!(carried.term.as_deref().is_none_or(withdrawn), "{:?}", carried.term);
    throughout(Duration::from_millis(500), "b leads", async || labels.leaders() == ["b"]).await;
    assert_eq!(history.finish("node lost").overlaps(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_that_somebody_put_on_a_sibling_is_taken_off_and_other_instances_are_left_alone() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let foreign = |pod: &mut Pod| {
        let labels = pod.metadata.labels.as_mut().unwrap();
        labels.insert("app.kubernetes.io/instance".to_owned(), "foreign".to_owned());
        labels.insert(ROLE.to_owned(), "leader".to_owned());
        pod.metadata.annotations = Some([(COST.to_owned(), "100".to_owned())].into());
    };
    let untouched = cluster.pod_with("foreign", foreign).await.metadata.resource_version;
    for name in ["x", "y"] {
        cluster.pod(name).await;
    }
    let labels = Labels::watch(&cluster).await;
    let a = cluster.collector("a", &database.url(), |_| {}).await;
    eventually(LIMIT, "a has its label", async || labels.leaders() == ["a", "foreign"]).await;
    cluster.set_annotation("x", COST, Some("7")).await;
    cluster.set_annotation("x", TERM, Some("not a term")).await;
    let began = Instant::now();
    for name in ["x", "y"] {
        cluster.set_label(name, ROLE, Some("leader")).await;
    }
    eventually(LIMIT, "the siblings are swept", async || labels.leaders() == ["a", "foreign"]).await;
    println!("two labels were gone {:?} after they had been set", began.elapsed());
    let carried = &labels.carried()["x"];
    assert_eq!((&carried.role, &carried.term, &carried.cost), (&None, &None, &None));
    eventually(LIMIT, "the sweeps are counted", async || value(&a, SWEPT).await == Some(2)).await;
    // Whoever sets it again finds it swept again, and no other label is touched.
    cluster.set_label("y", ROLE, Some("leader")).await;
    eventually(LIMIT, "it is swept again", async || value(&a, SWEPT).await == Some(3)).await;
    cluster.set_label("x", ROLE, Some("standby")).await;
    eventually(LIMIT, "x is a standby", async || labels.now()["x"].as_deref() == Some("standby")).await;
    throughout(Duration::from_millis(500), "it stays", async || {
        labels.now()["x"].as_deref() == Some("standby") && labels.leaders() == ["a", "foreign"]
    })
    .await;
    assert_eq!(cluster.get("foreign").await.unwrap().metadata.resource_version, untouched);
    assert_eq!(repairs_and_sweeps(&a).await, [0, 0, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_that_is_refused_does_not_keep_the_own_label_from_its_repair() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("x").await;
    let labels = Labels::watch(&cluster).await;
    let api = ApiProxy::start(cluster.server()).await;
    let _a = cluster.collector_at(&api.url(), "a", &database.url(), |_| {}).await;
    wait_for_leader(&labels, "a").await;
    let sweeps = |call: &Call| call.is("patch", "pods") && call.name.as_deref() == Some("x");
    api.inject(sweeps, Fault::Status(403));
    cluster.set_label("x", ROLE, Some("leader")).await;
    eventually(LIMIT, "the sweep is refused", async || api.count(sweeps) > 0).await;
    let removed = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    let leads = |change: &Change| change.pod == "a" && change.carried.as_ref().is_some_and(Carried::leads);
    let repaired = labels.wait_for("a has its label again", LIMIT, removed, leads).await.at - removed;
    assert!(repaired < REPAIRED, "{repaired:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_leaves_the_label_to_a_later_term_until_that_is_gone() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.pod("x").await;
    let labels = Labels::watch(&cluster).await;
    let a = leader(&cluster, &labels, &database.url()).await;
    let later = json!({"term": "1/18446744073709551615", "container": null});
    let mut note = note_of_seven(&database.url(), None).await;
    note.as_object_mut().unwrap().extend(later.as_object().unwrap().clone());
    cluster.set_annotation("x", TERM, Some(&note.to_string())).await;
    let began = Instant::now();
    cluster.set_label("x", ROLE, Some("leader")).await;
    wait_for_leader(&labels, "x").await;
    println!("the label was left to the later term after {:?}", began.elapsed());
    assert_eq!(labels.carried()["a"].cost, None);
    throughout(Duration::from_secs(1), "x has the label, a exports", async || {
        labels.leaders() == ["x"] && a.exports().await
    })
    .await;
    assert_eq!(a.count_in_log("this one leaves the label to it"), 1, "one warning");
    let answer: Value = serde_json::from_str(&a.get("/leader").await.unwrap().1).unwrap();
    assert_eq!((&answer["label"]["state"], &answer["label"]["role"]), (&"pending".into(), &"standby".into()));

    cluster.set_label("x", ROLE, None).await;
    wait_for_leader(&labels, "a").await;
    assert_eq!(labels.carried()["a"].cost.as_deref(), Some("100"));
    assert_eq!(repairs_and_sweeps(&a).await, [0; 3], "neither a repair nor a sweep");

    // A later term that is over, and one of another server, are no reason.
    for (swept, change) in
        [json!({"withdrawn": true}), json!({"system": "7300000000000000001"})].into_iter().enumerate()
    {
        let mut over = note.clone();
        over.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        cluster.set_annotation("x", TERM, Some(&over.to_string())).await;
        cluster.set_label("x", ROLE, Some("leader")).await;
        let sweeps = swept as u64 + 1;
        eventually(LIMIT, "x is swept", async || value(&a, SWEPT).await == Some(sweeps)).await;
        eventually(LIMIT, "x has no label", async || labels.carried()["x"].role.is_none()).await;
        assert_eq!(labels.leaders(), ["a"]);
    }
    assert_eq!(repairs_and_sweeps(&a).await, [0, 0, 2]);
    assert_eq!(a.count_in_log("this one leaves the label to it"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_admission_policy_one_takes_over_from_the_other_by_claim_and_by_sweep() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    for name in ["a", "b", "c"] {
        cluster.pod(name).await;
    }
    cluster.enforce_admission_policy().await;
    let labels = Labels::watch(&cluster).await;
    let (mut a, b) = leader_and_standby(&cluster, &database.url()).await;
    wait_for_leader(&labels, "a").await;
    let c = cluster.collector("c", &database.url(), |_| {}).await;
    c.wait_for_log(WAITING, LIMIT).await;
    let history = History::watch(&[&a, &b, &c]);
    // The first hand-over is a claim.
    a.sigterm();
    assert!(a.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "one of the others exports", async || history.exporting().len() == 1).await;
    let (first, second, pod) = if history.exporting() == [1] { (b, c, "b") } else { (c, b, "c") };
    wait_for_leader(&labels, pod).await;
    first.wait_for_log(SKIPPED, LIMIT).await;
    // The second is a claim and a sweep: this one cannot take its own label off.
    let seen = value(&second, HELD).await;
    eventually(LIMIT, "the other has seen it hold the lock", async || value(&second, HELD).await > seen).await;
    first.sigkill();
    cluster.terminate(pod).await;
    let other = if pod == "b" { "c" } else { "b" };
    wait_for_leader(&labels, other).await;
    let carried = &labels.carried()[pod];
    assert_eq!((&carried.role, &carried.term, &carried.cost), (&None, &None, &None));
    assert_eq!(repairs_and_sweeps(&second).await, [0, 0, 1]);
    let metrics = second.metrics().await.unwrap();
    assert!(!metrics.contains("outcome=\"denied\""), "{metrics}");
    assert_eq!(history.finish("under the policy").overlaps(), []);
}
