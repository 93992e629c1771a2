//! What a Role does not permit: named once, and no reason to stop leading.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;

use super::replicas::{HELD_UP, LIMIT, RIGHT, Replica, is_patch, leader_and_standby, step_down, wait_until_only};
use crate::support::kubernetes::{COST, Call, Cluster, Fault, GRANTED, Labels, ROLE, TERM};
use crate::support::{self, eventually, throughout};

/// Within this time after a permission is given, it is used: after 4 s, or an Event after 10 s, and what a busy machine
/// adds to that. Everything is read once more only a minute after it was read last.
const GIVEN: Duration = Duration::from_secs(30);

const REFUSES: &str = "refuses what the Role has to permit";
const PERMITS: &str = "permits again";

/// The notes of the Events about a Pod that tell of a refusal.
async fn told(cluster: &Cluster, pod: &str) -> Vec<String> {
    let events = cluster.api::<Event>(&cluster.admin().await).list(&ListParams::default()).await.unwrap();
    let about = |event: &Event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(pod));
    let denied =
        events.items.into_iter().filter(|event| about(event) && event.reason.as_deref() == Some("LabelDenied"));
    denied.filter_map(|event| event.note).collect()
}

/// A process that starts without one permission, and gets it later.
async fn start_without(verb: &'static str, resource: &'static str) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    cluster.revoke(verb, resource).await;
    let labels = Labels::watch(&cluster).await;
    let a = Replica::start(&cluster, "a", &database, step_down).await;
    a.wait_until_it_exports().await;
    let series = format!("retsu_collector_kubernetes_denied_info{{resource=\"{resource}\",verb=\"{verb}\"}}");
    let denied = async || a.value(&series).await;
    let refused = |call: &Call| call.is(verb, resource) && call.status == Some(403);
    if (verb, resource) == ("patch", "events") {
        // It is needed when the same happens again.
        let observer = database.pool().await;
        eventually(LIMIT, "patch events is needed", async || {
            super::outage::terminate_holder(&observer).await;
            a.wait_until_it_exports().await;
            a.proxy.count(refused) > 0
        })
        .await;
    }
    eventually(LIMIT, &format!("{series} 1"), async || denied().await == Some(1.0)).await;
    eventually(LIMIT, "it was tried again", async || a.proxy.count(refused) >= 2).await;
    assert!(a.collector.exports().await);
    let line = format!("verb=\"{verb}\" resource=\"{resource}\"");
    let lines = || a.collector.log().into_iter().filter(|(_, text)| text.contains(&line)).map(|(_, text)| text);
    assert_eq!(lines().filter(|text| text.contains(REFUSES)).count(), 1, "{:#?}", lines().collect::<Vec<_>>());

    if (verb, resource) == ("patch", "pods") {
        let label = a.label().await;
        assert_eq!((&label["state"], &label["denied"]["verb"]), (&"denied".into(), &verb.into()), "{label}");
        assert_eq!(label["denied"]["resource"], resource);
        assert_eq!(labels.leaders(), Vec::<String>::new());
    } else {
        wait_until_only(&labels, "a", &[], RIGHT).await;
        eventually(RIGHT, &format!("without {verb} {resource} the label is set"), async || {
            let label = a.label().await;
            label["state"] == "set" && label["role"] == "leader"
        })
        .await;
    }
    if (verb, resource) == ("create", "events") {
        assert_eq!(told(&cluster, "a").await, Vec::<String>::new());
    } else {
        eventually(LIMIT, "an Event names it", async || !told(&cluster, "a").await.is_empty()).await;
        let notes = told(&cluster, "a").await;
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains(&format!("refuses to {verb} {resource} (403)")), "{notes:?}");
    }

    cluster.grant(verb, resource).await;
    let given = Instant::now();
    eventually(GIVEN, &format!("{verb} {resource} is used again"), async || denied().await.is_none()).await;
    println!("{verb} {resource}: used {:?} after it was given", given.elapsed());
    wait_until_only(&labels, "a", &[], RIGHT).await;
    a.wait_for_label("set").await;
    eventually(LIMIT, "the log tells it once", async || lines().filter(|text| text.contains(PERMITS)).count() == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refused_verb_is_named_once_does_not_stop_the_leader_and_is_used_when_it_is_given() {
    join_all(GRANTED.map(|(verb, resource)| start_without(verb, resource))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_may_not_be_told_is_not_held_up_by_that() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let [mut a, b] = leader_and_standby(&cluster, &database, |_| {}).await;
    cluster.revoke("patch", "pods").await;
    a.collector.sigterm();
    a.collector.wait_for_log("leadership released", LIMIT).await;
    assert_eq!(a.collector.count_in_log(HELD_UP), 0);
    assert!(a.collector.wait_exit(LIMIT).await.success());
    b.wait_until_it_exports().await;
    b.wait_for_label("denied").await;
    assert_eq!(labels.leaders(), ["a"]);
    throughout(Duration::from_secs(1), "b leads", async || b.collector.exports().await).await;
    let given = Instant::now();
    cluster.grant("patch", "pods").await;
    wait_until_only(&labels, "b", &[], GIVEN).await;
    println!("right {:?} after patch pods was given", given.elapsed());
    b.wait_for_label("set").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_patch_is_not_repeated_for_everything_that_happens_to_pods() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let [a, _b] = leader_and_standby(&cluster, &database, |_| {}).await;
    cluster.revoke("patch", "pods").await;
    let began = Instant::now();
    for _ in 0..20 {
        cluster.set_label("a", ROLE, None).await;
        cluster.set_annotation("b", "at", Some(&format!("{:?}", began.elapsed()))).await;
    }
    a.wait_for_label("denied").await;
    let patches = a.proxy.count_since(began, is_patch);
    assert!(began.elapsed() > Duration::from_secs(2) || patches <= 2, "{patches} patches in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_refused_before_still_tells_its_end_before_the_lock_is_free() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let mut a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    a.wait_for_label("set").await;
    a.proxy.inject(is_patch, Fault::Status(403));
    cluster.set_annotation("a", COST, None).await;
    a.wait_for_label("denied").await;
    a.proxy.clear();
    a.collector.sigterm();
    assert!(a.collector.wait_exit(LIMIT).await.success());
    let carried = cluster.get("a").await.unwrap().metadata;
    assert_eq!(carried.labels.unwrap()[ROLE], "standby");
    assert!(carried.annotations.unwrap()[TERM].contains(r#""withdrawn":true"#));
}
