//! The proxy before the API server.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, Error};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::code;
use crate::support::kubernetes::{ApiProxy, Cluster, Fault, ROLE};
use crate::support::{eventually, throughout};

const LIMIT: Duration = Duration::from_secs(30);

/// Longer than an answer takes, for tests that one does not come.
const WHILE: Duration = Duration::from_secs(1);

/// Pod `a`, the proxy, and the Pods as `a` reaches them through it.
async fn through() -> (Cluster, ApiProxy, Api<Pod>) {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    let proxy = ApiProxy::start(cluster.server()).await;
    let pods = cluster.api(&cluster.client_at(&proxy.url(), "a").await);
    (cluster, proxy, pods)
}

async fn label(pods: &Api<Pod>, role: &str) -> kube::Result<Pod> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {ROLE: role}}}));
    pods.patch("a", &PatchParams::default(), &patch).await
}

async fn role(cluster: &Cluster) -> Option<String> {
    cluster.get("a").await.unwrap().metadata.labels.unwrap().remove(ROLE)
}

/// A watch of what happens from now on.
async fn watch(pods: &Api<Pod>) -> impl Stream<Item = kube::Result<WatchEvent<Pod>>> + Unpin {
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    pods.watch(&WatchParams::default(), &version).await.unwrap().boxed()
}

fn role_of(event: Option<kube::Result<WatchEvent<Pod>>>) -> Option<String> {
    match event {
        Some(Ok(WatchEvent::Modified(pod))) => pod.metadata.labels.unwrap().remove(ROLE),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_call_is_passed_on_as_it_is_and_written_down() {
    let (cluster, proxy, pods) = through().await;
    let mut watch = watch(&pods).await;
    assert_eq!(proxy.open_watches(), 1);
    assert_eq!(code(label(&pods, "leader").await), 200);
    assert_eq!(role_of(watch.next().await).as_deref(), Some("leader"));
    assert_eq!(code(pods.get("a").await), 200);
    assert_eq!(code(pods.delete("a", &Default::default()).await), 403);

    let calls: Vec<_> = proxy.calls().into_iter().map(|call| (call.verb, call.name, call.status)).collect();
    let a = || Some("a".to_owned());
    let expected = [
        ("list", None, Some(200)),
        ("watch", None, Some(200)),
        ("patch", a(), Some(200)),
        ("get", a(), Some(200)),
        ("delete", a(), Some(403)),
    ];
    assert_eq!(calls, expected);
    assert!(proxy.calls().iter().all(|call| call.resource == "pods" && call.token.starts_with("ey")));
    assert_eq!((proxy.count(|call| call.writes()), proxy.verbs()["get"]), (2, 1));
    assert_eq!(proxy.calls()[2].body, format!(r#"{{"metadata":{{"labels":{{"{ROLE}":"leader"}}}}}}"#));
    assert!(proxy.calls()[2].path.starts_with(&format!("/api/v1/namespaces/{}/pods/a?", cluster.namespace())));
    drop(watch);
    eventually(LIMIT, "the watch has ended", async || proxy.open_watches() == 0).await;
}

#[tokio::test]
async fn answers_are_those_that_were_asked_for_and_the_api_server_sees_no_call() {
    let (cluster, proxy, pods) = through().await;
    let statuses = [401, 403, 404, 409, 410, 422, 500, 503].map(Fault::Status);
    let too_many = [(None, None), (Some(1), None), (None, Some(1))];
    let too_many = too_many.map(|(header, details)| Fault::TooManyRequests { header, details });
    for fault in statuses.into_iter().chain(too_many).chain([Fault::Plain(502)]) {
        proxy.inject_times(1, |call| call.is("patch", "pods"), fault);
        let error = label(&pods, "leader").await.unwrap_err();
        let Error::Api(status) = error else { panic!("{error}") };
        match fault {
            Fault::Status(code) => assert_eq!(status.code, code),
            Fault::TooManyRequests { details, .. } => {
                let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                assert_eq!((status.code, seconds), (429, details.unwrap_or(0)));
            }
            _ => assert_eq!(status.code, 502),
        }
        assert_eq!(proxy.calls().last().unwrap().status, Some(status.code));
    }
    assert_eq!(role(&cluster).await, None);
    assert_eq!(code(label(&pods, "leader").await), 200);
    assert_eq!(role(&cluster).await.as_deref(), Some("leader"));
}

#[tokio::test]
async fn a_rule_is_for_what_it_matches_until_it_is_cleared() {
    let (_cluster, proxy, pods) = through().await;
    proxy.inject(|call| call.is("patch", "pods"), Fault::Status(500));
    proxy.inject_times(1, |call| call.is("patch", "pods"), Fault::Status(409));
    let codes = [code(label(&pods, "leader").await), code(label(&pods, "leader").await), code(pods.get("a").await)];
    assert_eq!(codes, [409, 500, 200]);
    proxy.clear();
    assert_eq!(code(label(&pods, "leader").await), 200);
}

#[tokio::test]
async fn the_time_to_wait_is_in_the_header_when_it_was_asked_for_there() {
    let (cluster, proxy, _) = through().await;
    let client = cluster.client_at(&proxy.url(), "a").await;
    for header in [Some(7), None] {
        proxy.inject(|_| true, Fault::TooManyRequests { header, details: Some(3) });
        let request = http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
        let answer = client.send(request).await.unwrap();
        let seconds = answer.headers().get(http::header::RETRY_AFTER).map(|value| value.to_str().unwrap());
        assert_eq!(seconds, header.map(|_| "7"));
    }
}

#[tokio::test]
async fn a_call_that_hangs_is_never_answered_and_never_arrives() {
    let (cluster, proxy, pods) = through().await;
    proxy.inject(|call| call.is("patch", "pods"), Fault::Hang);
    assert!(timeout(WHILE, label(&pods, "leader")).await.is_err());
    assert_eq!(code(timeout(LIMIT, pods.get("a")).await.unwrap()), 200);
    assert_eq!(role(&cluster).await, None);
}

#[tokio::test]
async fn a_held_patch_arrives_after_its_client_has_given_up() {
    let (cluster, proxy, pods) = through().await;
    proxy.inject_times(1, |call| call.is("patch", "pods"), Fault::Hold);
    assert!(timeout(WHILE, label(&pods, "leader")).await.is_err());
    assert_eq!(code(label(&pods, "standby").await), 200);
    proxy.release();
    eventually(LIMIT, "the old patch has arrived", async || role(&cluster).await.as_deref() == Some("leader")).await;
    eventually(LIMIT, "its answer is written down", async || proxy.calls()[0].status == Some(200)).await;
}

#[tokio::test]
async fn a_delayed_patch_arrives_after_its_time() {
    let (cluster, proxy, pods) = through().await;
    proxy.inject_times(1, |call| call.is("patch", "pods"), Fault::Delay(WHILE));
    let began = Instant::now();
    assert_eq!(code(label(&pods, "leader").await), 200);
    assert!(began.elapsed() >= WHILE);
    assert_eq!(role(&cluster).await.as_deref(), Some("leader"));
}

#[tokio::test]
async fn a_reset_call_does_not_arrive_and_one_without_an_answer_does() {
    for (fault, expected) in [(Fault::Reset, None), (Fault::LoseAnswer, Some("leader"))] {
        let (cluster, proxy, pods) = through().await;
        proxy.inject_times(1, |call| call.is("patch", "pods"), fault);
        let error = label(&pods, "leader").await.unwrap_err();
        assert!(!matches!(error, Error::Api(_)), "{error}");
        assert_eq!(role(&cluster).await.as_deref(), expected, "{fault:?}");
        assert_eq!(code(pods.get("a").await), 200);
    }
}

#[tokio::test]
async fn a_watch_expires_or_falls_silent_when_it_is_told_to() {
    let (cluster, proxy, pods) = through().await;
    proxy.inject_times(1, |call| call.is("watch", "pods"), Fault::Expired);
    let mut expired = watch(&pods).await;
    let event = expired.next().await;
    assert!(matches!(&event, Some(Ok(WatchEvent::Error(status))) if status.code == 410), "{event:?}");
    assert!(expired.next().await.is_none());

    proxy.inject_times(1, |call| call.is("watch", "pods"), Fault::Silent);
    let mut silent = watch(&pods).await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    assert!(timeout(WHILE, silent.next()).await.is_err());
}

#[tokio::test]
async fn a_cut_refuses_and_resets_until_it_is_mended() {
    let (cluster, proxy, pods) = through().await;
    let mut watching = watch(&pods).await;
    proxy.cut();
    assert!(matches!(timeout(LIMIT, watching.next()).await.unwrap(), Some(Err(_)) | None));
    let port = proxy.url().rsplit(':').next().unwrap().parse().unwrap();
    throughout(WHILE, "nobody is let in", async || TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
    assert!(label(&pods, "leader").await.is_err());
    proxy.mend();
    eventually(LIMIT, "calls pass again", async || label(&pods, "leader").await.is_ok()).await;
    let mut watching = watch(&pods).await;
    proxy.reset_connections();
    assert!(matches!(timeout(LIMIT, watching.next()).await.unwrap(), Some(Err(_)) | None));
    eventually(LIMIT, "calls pass again", async || pods.get("a").await.is_ok()).await;
    assert_eq!(role(&cluster).await.as_deref(), Some("leader"));
}

#[tokio::test]
async fn what_is_frozen_moves_no_byte_and_goes_on_when_it_is_mended() {
    let (cluster, proxy, pods) = through().await;
    let mut watching = watch(&pods).await;
    proxy.freeze();
    cluster.set_label("a", ROLE, Some("leader")).await;
    assert!(timeout(WHILE, watching.next()).await.is_err());
    let mut patched = std::pin::pin!(label(&pods, "standby"));
    assert!(timeout(WHILE, &mut patched).await.is_err());
    assert_eq!(role(&cluster).await.as_deref(), Some("leader"));
    proxy.mend();
    assert_eq!(code(timeout(LIMIT, patched).await.unwrap()), 200);
    let roles = [role_of(watching.next().await), role_of(watching.next().await)];
    assert_eq!(roles, [Some("leader".to_owned()), Some("standby".to_owned())]);
}
