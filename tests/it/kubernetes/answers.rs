//! How a real API server refuses what the collector asks: its error handling rests on these.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::{Api, Error};
use serde_json::{Value, json};

use super::code;
use crate::support::kubernetes::{ApiServer, Cluster, ROLE, Webhook};

/// Pod `a`, and the Pods as `a` reaches them.
async fn collector() -> (Cluster, Api<Pod>) {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    let pods = cluster.api(&cluster.client_of("a").await);
    (cluster, pods)
}

async fn merge(pods: &Api<Pod>, metadata: Value) -> kube::Result<Pod> {
    pods.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": metadata}))).await
}

fn refused(answer: kube::Result<Pod>) -> Status {
    match answer {
        Err(Error::Api(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// Fields that a refusal blames, each once.
fn causes(status: &Status) -> Vec<&str> {
    let mut fields: Vec<_> =
        status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.field.as_str()).collect();
    fields.dedup();
    fields
}

#[tokio::test]
async fn a_replaced_pod_is_422_with_its_uid_as_the_cause_and_409_when_the_resource_version_is_old_as_well() {
    let (cluster, pods) = collector().await;
    let old = cluster.get("a").await.unwrap().metadata;
    assert_eq!(code(merge(&pods, json!({"uid": old.uid, "labels": {ROLE: "standby"}})).await), 200);
    cluster.delete("a", true).await;
    let new = cluster.pod("a").await.metadata;
    let patch = async |version: &Option<String>| {
        let metadata = json!({"uid": old.uid, "resourceVersion": version, "labels": {ROLE: "standby"}});
        // The API server remembers for ten seconds that the token of the old Pod was good.
        refused(merge(&pods, metadata).await)
    };
    for version in [None, new.resource_version] {
        let status = patch(&version).await;
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
        assert_eq!(causes(&status), ["metadata.uid"]);
    }
    let status = patch(&old.resource_version).await;
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
}

#[tokio::test]
async fn another_422_has_another_cause() {
    let (_cluster, pods) = collector().await;
    let status = refused(merge(&pods, json!({"labels": {ROLE: "no value of a label"}})).await);
    assert_eq!((status.code, causes(&status)), (422, vec!["metadata.labels"]));
    let test = json!([{"op": "test", "path": "/metadata/uid", "value": "another"}]);
    let test: Patch<Pod> = Patch::Json(serde_json::from_value(test).unwrap());
    let status = refused(pods.patch("a", &PatchParams::default(), &test).await);
    assert_eq!((status.code, status.reason.as_str(), causes(&status)), (422, "Invalid", vec![]));
}

#[tokio::test]
async fn a_stale_resource_version_is_409() {
    let (cluster, pods) = collector().await;
    let version = cluster.get("a").await.unwrap().metadata.resource_version;
    let current = cluster.set_label("a", "colour", Some("red")).await.metadata.resource_version;
    let status = refused(merge(&pods, json!({"resourceVersion": version, "labels": {ROLE: "standby"}})).await);
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(code(merge(&pods, json!({"resourceVersion": current, "labels": {ROLE: "standby"}})).await), 200);
}

#[tokio::test]
async fn a_pod_that_is_gone_is_404_and_its_token_soon_401() {
    let (cluster, pods) = collector().await;
    assert_eq!(code(pods.get("a").await), 200);
    let fresh: Api<Pod> = cluster.api(&cluster.client_of("a").await);
    cluster.delete("a", true).await;
    assert_eq!(code(pods.get("a").await), 404);
    assert_eq!(refused(merge(&pods, json!({"labels": {ROLE: "standby"}})).await).reason, "NotFound");
    // A token that the API server has not seen within ten seconds.
    assert_eq!(refused(fresh.get("a").await).reason, "Unauthorized");
}

#[tokio::test]
async fn a_verb_that_was_taken_away_is_403() {
    let (cluster, pods) = collector().await;
    let list = async || code(pods.list(&ListParams::default()).await);
    let watch = async || code(pods.watch(&WatchParams::default(), "0").await.map(|_| ()));
    let patch = async || code(merge(&pods, json!({"labels": {ROLE: "standby"}})).await);
    for verb in ["get", "list", "watch", "patch"] {
        cluster.revoke(verb, "pods").await;
        let expected = |other| if other == verb { 403 } else { 200 };
        assert_eq!(code(pods.get("a").await), expected("get"), "{verb}");
        assert_eq!(list().await, expected("list"), "{verb}");
        assert_eq!(watch().await, expected("watch"), "{verb}");
        assert_eq!(patch().await, expected("patch"), "{verb}");
        cluster.grant(verb, "pods").await;
    }
}

#[tokio::test]
async fn an_event_may_be_created_and_its_series_patched() {
    let (cluster, _) = collector().await;
    let events: Api<Event> = cluster.api(&cluster.client_of("a").await);
    let event = json!({
        "metadata": {"name": "a.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "action": "Lead",
        "reason": "Acquired",
        "type": "Normal",
        "reportingController": "retsu.io/collector",
        "reportingInstance": "a",
        "regarding": {"kind": "Pod", "name": "a", "namespace": cluster.namespace()},
    });
    let create =
        async || code(events.create(&PostParams::default(), &serde_json::from_value(event.clone()).unwrap()).await);
    cluster.revoke("create", "events").await;
    assert_eq!(create().await, 403);
    cluster.grant("create", "events").await;
    assert_eq!(create().await, 200);
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let patch = async || code(events.patch("a.1", &PatchParams::default(), &Patch::Merge(&series)).await);
    assert_eq!(patch().await, 200);
    cluster.revoke("patch", "events").await;
    assert_eq!(patch().await, 403);
}

/// A watch from a resource version that is no more.
async fn assert_expired(pods: &Api<Pod>, version: &str) {
    let status = match pods.watch(&WatchParams::default(), version).await {
        Ok(stream) => match stream.boxed().next().await {
            Some(Ok(WatchEvent::Error(status))) => status,
            other => panic!("{other:?}"),
        },
        Err(Error::Api(status)) => status,
        Err(error) => panic!("{error}"),
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn a_watch_from_a_compacted_version_is_410() {
    let cluster = Cluster::on(ApiServer::own(&["--watch-cache=false"]).await).await;
    let version = cluster.pod("a").await.metadata.resource_version.unwrap();
    let pods: Api<Pod> = cluster.api(&cluster.client_of("a").await);
    cluster.set_label("a", "colour", Some("red")).await;
    let mut watch = pods.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Modified(_)))));
    cluster.server().compact().await;
    assert_expired(&pods, &version).await;
}

#[tokio::test]
async fn a_watch_from_before_a_restart_is_410() {
    let cluster = Cluster::on(ApiServer::own(&[]).await).await;
    let version = cluster.pod("a").await.metadata.resource_version.unwrap();
    cluster.set_label("a", "colour", Some("red")).await;
    cluster.server().stop();
    cluster.server().start().await;
    assert_expired(&cluster.api(&cluster.client_of("a").await), &version).await;
}

#[tokio::test]
async fn a_webhook_adds_to_every_update_until_it_is_removed() {
    let (cluster, pods) = collector().await;
    let webhook = Webhook::start(&cluster, &[("mesh", "in")], &[("mesh.example/revision", "1")]).await;
    let patched = merge(&pods, json!({"labels": {ROLE: "standby"}})).await.unwrap();
    let (labels, annotations) = (patched.metadata.labels.unwrap(), patched.metadata.annotations.unwrap());
    assert_eq!((labels[ROLE].as_str(), labels["mesh"].as_str()), ("standby", "in"));
    assert_eq!(annotations["mesh.example/revision"], "1");
    let asked = webhook.asked();
    cluster.set_label("a", "mesh", None).await;
    assert!(webhook.asked() > asked);
    assert_eq!(cluster.get("a").await.unwrap().metadata.labels.unwrap()["mesh"], "in");
    webhook.remove(&cluster).await;
    crate::support::eventually(Duration::from_secs(20), "the label can be removed", async || {
        !cluster.set_label("a", "mesh", None).await.metadata.labels.unwrap().contains_key("mesh")
    })
    .await;
}
