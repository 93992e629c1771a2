//! The namespaces and Pods of the tests.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::code;
use crate::support::kubernetes::{CONTAINER, Cluster, INSTANCE_SELECTOR, ROLE};

#[tokio::test]
async fn a_collector_may_do_what_its_role_says_and_nothing_else() {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    let client = cluster.client_of("a").await;
    let pods: Api<Pod> = cluster.api(&client);
    let patch = Patch::Merge(json!({"metadata": {"labels": {ROLE: "standby"}}}));
    let label = async || code(pods.patch("a", &PatchParams::default(), &patch).await);

    let listed = pods.list(&ListParams::default().labels(INSTANCE_SELECTOR)).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(label().await, 200);
    assert_eq!(code(pods.delete("a", &Default::default()).await), 403);
    assert_eq!(code(pods.patch_status("a", &PatchParams::default(), &patch).await), 403);
    assert_eq!(code(cluster.api::<Event>(&client).list(&ListParams::default()).await), 403);
    assert_eq!(code(Api::<Pod>::all(client).list(&ListParams::default()).await), 403);

    cluster.revoke("patch", "pods").await;
    assert_eq!((label().await, code(pods.get("a").await)), (403, 200));
    cluster.revoke("get", "pods").await;
    assert_eq!(code(pods.get("a").await), 403);
    cluster.grant("get", "pods").await;
    cluster.grant("patch", "pods").await;
    assert_eq!((label().await, code(pods.get("a").await)), (200, 200));
}

#[tokio::test]
async fn a_pod_runs_restarts_and_ends_as_under_a_kubelet() {
    let cluster = Cluster::new().await;
    let pod = cluster.pod("a").await;
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    let first = cluster.container("a").await;
    assert!(first.ready && first.state.unwrap().running.unwrap().started_at.is_some());

    cluster.terminate("a").await;
    let ended = cluster.container("a").await;
    let end = ended.state.unwrap().terminated.unwrap();
    assert_eq!((&end.container_id, ended.ready), (&first.container_id, false));
    assert!(end.finished_at >= end.started_at && end.started_at.is_some());

    cluster.restart_container("a").await;
    let second = cluster.container("a").await;
    assert_eq!(second.restart_count, 1);
    assert_eq!(second.last_state.unwrap().terminated.unwrap(), end);
    assert!(second.ready && second.state.unwrap().running.is_some() && second.container_id != first.container_id);

    cluster.delete("a", false).await;
    assert!(cluster.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    cluster.delete("a", true).await;
    assert!(cluster.get("a").await.is_none());
    assert_ne!(cluster.pod("a").await.metadata.uid, pod.metadata.uid);
}

#[tokio::test]
async fn a_sidecar_runs_restarts_and_ends_as_well() {
    let cluster = Cluster::new().await;
    cluster
        .pod_with("a", |pod| {
            let spec = pod.spec.as_mut().unwrap();
            let mut sidecar = spec.containers[0].clone();
            sidecar.restart_policy = Some("Always".to_owned());
            spec.init_containers = Some(vec![sidecar]);
            spec.containers[0].name = "queue".to_owned();
        })
        .await;
    let first = cluster.container("a").await;
    let status = cluster.restart_container("a").await.status.unwrap();
    let sidecars = status.init_container_statuses.unwrap();
    assert_eq!((sidecars[0].name.as_str(), sidecars[0].restart_count), (CONTAINER, 1));
    assert_ne!(sidecars[0].container_id, first.container_id);
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 0);
}

#[tokio::test]
async fn a_token_is_that_of_its_pod_until_the_pod_is_gone() {
    let cluster = Cluster::new().await;
    cluster.pod("a").await;
    cluster.pod("b").await;
    let [first, second] = [cluster.rotate_token("a").await, cluster.rotate_token("a").await];
    assert_ne!(first, second);
    assert_eq!(std::fs::read_to_string(cluster.token_file("a")).unwrap(), second);

    let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig("a", &cluster.server().url())).unwrap();
    let client = kube::Client::try_from(kubeconfig).unwrap();
    assert_eq!(cluster.user_of(&client).await, (cluster.user(), Some("a".to_owned())));
    let unbound = cluster.unbound_client().await;
    assert_eq!(cluster.user_of(&unbound).await, (cluster.user(), None));

    cluster.delete("a", true).await;
    cluster.wait_until_unauthorized(&client).await;
}
