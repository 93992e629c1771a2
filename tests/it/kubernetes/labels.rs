//! The observer of the labels.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::kubernetes::{ApiServer, COST, Carried, Change, Cluster, Labels, ROLE, TERM, led};

const LIMIT: Duration = Duration::from_secs(30);

fn carries(role: &str) -> Option<Carried> {
    Some(Carried { role: Some(role.to_owned()), ..Carried::default() })
}

#[tokio::test]
async fn every_change_of_what_a_pod_carries_is_seen_once_and_in_order() {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    let labels = Labels::watch(&cluster).await;
    cluster.set_label("a", ROLE, Some("standby")).await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    let written = Instant::now();
    labels.wait("a leads", LIMIT, |roles| roles["a"].as_deref() == Some("leader")).await;
    cluster.set_annotation("a", COST, Some("100")).await;
    cluster.set_annotation("a", TERM, Some(r#"{"withdrawn":false}"#)).await;
    // Of no interest.
    cluster.set_label("a", "colour", Some("red")).await;
    cluster.terminate("a").await;
    cluster.set_label("a", ROLE, None).await;
    cluster.pod("b").await;
    cluster.delete("a", true).await;
    labels.wait("b alone is there", LIMIT, |roles| *roles == BTreeMap::from([("b".to_owned(), None)])).await;

    let role = |role: Option<&str>, cost: Option<&str>, term: Option<&str>| {
        Some(Carried { role: role.map(str::to_owned), cost: cost.map(str::to_owned), term: term.map(str::to_owned) })
    };
    let term = Some(r#"{"withdrawn":false}"#);
    let seen: Vec<_> = labels.history().into_iter().map(|change| (change.pod, change.carried)).collect();
    let expected = [
        ("a", role(None, None, None)),
        ("a", role(Some("standby"), None, None)),
        ("a", role(Some("leader"), None, None)),
        ("a", role(Some("leader"), Some("100"), None)),
        ("a", role(Some("leader"), Some("100"), term)),
        ("a", role(None, Some("100"), term)),
        ("b", role(None, None, None)),
        ("a", None),
    ];
    assert_eq!(seen, expected.map(|(pod, carried)| (pod.to_owned(), carried)));
    let led = labels.history()[2].at.saturating_duration_since(written);
    assert!(led < Duration::from_secs(10), "seen {led:?} after it was written");
    labels.assert_no_contradiction();
}

#[tokio::test]
async fn nothing_is_lost_while_the_api_server_is_away() {
    let cluster = Cluster::on(ApiServer::own(&[]).await).await;
    cluster.pod("a").await;
    cluster.pod("b").await;
    let labels = Labels::watch(&cluster).await;
    cluster.server().stop();
    cluster.server().start().await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    cluster.delete("b", true).await;
    labels.wait("a alone is there", LIMIT, |roles| roles.len() == 1 && roles["a"].is_some()).await;
    assert_eq!(labels.leaders(), ["a"]);
}

#[test]
fn the_time_for_which_a_pod_led_counts_between_two_instants_only() {
    let zero = Instant::now();
    let at = |seconds| zero + Duration::from_secs(seconds);
    let change =
        |seconds, pod: &str, carried| Change { at: at(seconds), pod: pod.to_owned(), uid: String::new(), carried };
    let history = [
        change(0, "a", carries("leader")),
        change(1, "b", carries("leader")),
        change(3, "a", carries("standby")),
        change(5, "a", carries("leader")),
        change(9, "a", None),
    ];
    for (from, until, seconds) in [(0, 3, 3), (2, 4, 1), (3, 5, 0), (2, 6, 2), (0, 20, 7), (9, 20, 0)] {
        assert_eq!(led(&history, "a", at(from), at(until)), Duration::from_secs(seconds), "{from} to {until}");
    }
    assert_eq!(led(&history, "b", at(0), at(20)), Duration::from_secs(19));
    assert_eq!(led(&history, "c", at(0), at(20)), Duration::ZERO);
}

#[tokio::test]
#[should_panic(expected = "a had withdrawn and carried the label for")]
async fn a_label_that_outlives_the_gauges_fails_the_test() {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    let labels = Labels::watch(&cluster).await;
    let withdrew = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    let until = labels.wait("a carries no label", LIMIT, |roles| roles["a"].is_none()).await.unwrap();
    labels.assert_not_stale("a", withdrew, until, LIMIT);
    labels.assert_not_stale("a", withdrew, until, Duration::ZERO);
}
