//! `manifests/admission-policy.yaml`, in force: what it allows and what it denies, to real tokens.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};

use crate::support::kubernetes::{COST, Cluster, ROLE, TERM};

const INSTANCE: &str = "app.kubernetes.io/instance";

/// A namespace in which the policy is in force and Pod `a` and `b` are of one instance, `foreign` of another.
async fn enforced() -> Cluster {
    let cluster = Cluster::new().await;
    for name in ["a", "b"] {
        cluster.pod(name).await;
    }
    let foreign = |pod: &mut Pod| {
        pod.metadata.labels.as_mut().unwrap().insert(INSTANCE.to_owned(), "foreign".to_owned());
    };
    cluster.pod_with("foreign", foreign).await;
    cluster.enforce_admission_policy().await;
    cluster
}

/// The reason why the policy denies a patch, or `None` when it is allowed.
async fn denied(cluster: &Cluster, client: &Client, pod: &str, patch: &Value) -> Option<String> {
    let pods: Api<Pod> = cluster.api(client);
    reason(pods.patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await)
}

fn reason(answer: kube::Result<Pod>) -> Option<String> {
    match answer {
        Ok(_) => None,
        Err(Error::Api(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"), "{status}");
            let (_, reason) = status.message.split_once("denied request: ").unwrap_or_else(|| panic!("{status}"));
            Some(reason.to_owned())
        }
        Err(error) => panic!("{error}"),
    }
}

async fn assert_allowed(cluster: &Cluster, client: &Client, pod: &str, patch: Value) {
    assert_eq!(denied(cluster, client, pod, &patch).await, None, "{pod}: {patch}");
}

async fn assert_denied(cluster: &Cluster, client: &Client, pod: &str, patch: Value, expected: &str) {
    assert_eq!(denied(cluster, client, pod, &patch).await.as_deref(), Some(expected), "{pod}: {patch}");
}

fn labels(key: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

fn annotations(key: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

#[tokio::test]
async fn a_collector_may_write_role_term_and_cost_of_its_own_pod() {
    let cluster = enforced().await;
    let client = cluster.client_of("a").await;
    for role in [Some("standby"), Some("leader"), Some("leader"), None] {
        assert_allowed(&cluster, &client, "a", labels(ROLE, role)).await;
    }
    for key in [TERM, COST] {
        for value in [Some("1"), Some("2"), None] {
            assert_allowed(&cluster, &client, "a", annotations(key, value)).await;
        }
    }
    let whole = json!({"metadata": {"labels": {ROLE: "leader"}, "annotations": {TERM: "{}", COST: "100"}}});
    assert_allowed(&cluster, &client, "a", whole).await;
    assert_allowed(&cluster, &client, "a", json!({})).await;
}

#[tokio::test]
async fn a_collector_may_change_nothing_else_of_its_own_pod() {
    let cluster = enforced().await;
    let client = cluster.client_of("a").await;
    cluster.set_label("a", "colour", Some("red")).await;
    cluster.set_annotation("a", "note", Some("old")).await;
    let label = |key: &str| format!("a collector does not change the labels {key}");
    let annotation = "a collector does not change the annotations note";
    let rest = "a collector changes nothing of a Pod but a label and annotations";
    for value in [Some("blue"), None] {
        assert_denied(&cluster, &client, "a", labels("colour", value), &label("colour")).await;
        assert_denied(&cluster, &client, "a", labels(INSTANCE, value), &label(INSTANCE)).await;
        assert_denied(&cluster, &client, "a", annotations("note", value), annotation).await;
    }
    assert_denied(&cluster, &client, "a", labels("new", Some("")), &label("new")).await;
    let wrong = r#""primary" is no role of a collector"#;
    assert_denied(&cluster, &client, "a", labels(ROLE, Some("primary")), wrong).await;
    let image = json!({"spec": {"containers": [{"name": "retsu-collector", "image": "other"}]}});
    let finalizers = json!({"metadata": {"finalizers": ["retsu.io/test"]}});
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"});
    let owners = json!({"metadata": {"ownerReferences": [owner]}});
    let mixed = json!({"metadata": {"labels": {ROLE: "leader"}, "finalizers": ["retsu.io/test"]}});
    for patch in [image, finalizers, owners, mixed] {
        // A merge patch would replace the whole list of containers.
        let patch = Patch::Strategic(patch);
        let pods: Api<Pod> = cluster.api(&client);
        let answer = pods.patch("a", &PatchParams::default(), &patch).await;
        assert_eq!(reason(answer).as_deref(), Some(rest), "{patch:?}");
    }
}

#[tokio::test]
async fn a_collector_may_only_take_from_a_sibling() {
    let cluster = enforced().await;
    let client = cluster.client_of("a").await;
    let no_role = "Pod a gives no role to Pod b";
    let no_annotation = "Pod a may remove the annotations of Pod b, not write them";
    for role in ["standby", "leader"] {
        assert_denied(&cluster, &client, "b", labels(ROLE, Some(role)), no_role).await;
    }
    cluster.set_label("b", ROLE, Some("standby")).await;
    assert_denied(&cluster, &client, "b", labels(ROLE, Some("leader")), no_role).await;
    assert_denied(&cluster, &client, "b", labels(ROLE, None), no_role).await;
    for role in [None, Some("standby")] {
        cluster.set_label("b", ROLE, Some("leader")).await;
        assert_allowed(&cluster, &client, "b", labels(ROLE, Some("leader"))).await;
        assert_allowed(&cluster, &client, "b", labels(ROLE, role)).await;
    }
    for key in [TERM, COST] {
        assert_denied(&cluster, &client, "b", annotations(key, Some("1")), no_annotation).await;
        cluster.set_annotation("b", key, Some("1")).await;
        assert_denied(&cluster, &client, "b", annotations(key, Some("2")), no_annotation).await;
        assert_allowed(&cluster, &client, "b", annotations(key, None)).await;
    }
    let colour = "a collector does not change the labels colour";
    assert_denied(&cluster, &client, "b", labels("colour", Some("blue")), colour).await;

    cluster.set_label("b", ROLE, Some("leader")).await;
    cluster.set_annotation("b", TERM, Some("1")).await;
    let sweep = json!({"metadata": {"labels": {ROLE: null}, "annotations": {TERM: null, COST: null}}});
    assert_allowed(&cluster, &client, "b", sweep).await;
}

#[tokio::test]
async fn a_collector_may_change_no_pod_of_another_instance_and_none_that_has_taken_the_name_of_its_own() {
    let cluster = enforced().await;
    let client = cluster.client_of("a").await;
    let foreign = "Pod foreign is not of the instance retsu";
    cluster.set_label("foreign", ROLE, Some("leader")).await;
    assert_denied(&cluster, &client, "foreign", labels(ROLE, None), foreign).await;
    assert_denied(&cluster, &client, "foreign", annotations(TERM, None), foreign).await;
    cluster.set_label("b", INSTANCE, None).await;
    assert_denied(&cluster, &client, "b", labels(ROLE, None), "Pod b is not of the instance retsu").await;

    cluster.delete("a", true).await;
    cluster.pod("a").await;
    // The API server remembers for ten seconds that the token was good.
    let no_role = "Pod a gives no role to Pod a";
    assert_denied(&cluster, &client, "a", labels(ROLE, Some("leader")), no_role).await;
}

#[tokio::test]
async fn a_token_without_a_pod_and_a_subresource_are_denied() {
    let cluster = enforced().await;
    let unbound = cluster.unbound_client().await;
    let expected = "the token of a collector must be bound to its Pod";
    for patch in [labels(ROLE, Some("standby")), annotations(TERM, Some("1")), json!({})] {
        assert_denied(&cluster, &unbound, "a", patch, expected).await;
    }
    cluster.grant("patch", "pods/status").await;
    let pods: Api<Pod> = cluster.api(&cluster.client_of("a").await);
    let patch = Patch::Merge(json!({"status": {"message": "changed"}}));
    let answer = pods.patch_status("a", &PatchParams::default(), &patch).await;
    assert_eq!(reason(answer).as_deref(), Some("a collector changes no subresource of a Pod"));
}

#[tokio::test]
async fn others_and_other_namespaces_are_not_concerned() {
    let (cluster, other) = (enforced().await, Cluster::new().await);
    cluster.set_label("a", "colour", Some("red")).await;
    other.pod("a").await;
    assert_allowed(&other, &other.client_of("a").await, "a", labels("colour", Some("red"))).await;
}
