//! Every Pod that the chart makes passes the restricted Pod Security Standard, as the API server enforces it.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::api::{cluster, split};
use super::helm::{Rendering, cases};
use super::objects::name;
use crate::support::kubernetes::Cluster;

/// Lets a namespace enforce the restricted standard, and warn of what would break it.
async fn restrict(cluster: &Cluster) -> Client {
    let client = cluster.admin().await;
    let labels = json!({
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    });
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    Api::<Namespace>::all(client.clone()).patch(cluster.namespace(), &PatchParams::default(), &patch).await.unwrap();
    client
}

/// The Pods of a rendering, hooks among them.
fn pods(rendering: &Rendering) -> Vec<Value> {
    let objects = rendering.objects();
    let pod = |template: super::objects::Template| {
        json!({
            "metadata": {"generateName": "pod-", "labels": template.labels},
            "spec": template.spec,
        })
    };
    objects.templates().into_iter().map(pod).collect()
}

async fn create(pods: &Api<Pod>, pod: &Value) -> Result<Pod, kube::Error> {
    pods.create(&PostParams::default(), &serde_json::from_value(pod.clone()).unwrap()).await
}

#[tokio::test]
async fn the_api_server_admits_a_pod_of_every_template_where_the_restricted_standard_is_enforced() {
    let cluster = cluster().await;
    restrict(&cluster).await;
    let admitted = cluster.pods().await;
    for case in cases() {
        let pods = pods(&Rendering::case(&case).namespace(cluster.namespace()));
        assert_eq!(pods.len(), 2, "{}: the Deployment's, and that of `helm test`", case.display());
        for pod in pods {
            let answer = create(&admitted, &pod).await;
            assert!(answer.is_ok(), "{}: {answer:?}", case.display());
            for (field, value) in [("runAsNonRoot", json!(false)), ("seccompProfile", json!({"type": "Unconfined"}))] {
                let mut loose = pod.clone();
                loose["spec"]["securityContext"][field] = value;
                let error = create(&admitted, &loose).await.unwrap_err().to_string();
                assert!(error.contains(field), "the standard is not enforced: {error}");
            }
        }
    }
}

#[tokio::test]
async fn the_api_server_takes_everything_that_is_of_pods_without_a_warning() {
    let cluster = cluster().await;
    let client = restrict(&cluster).await;
    for case in cases() {
        let objects = Rendering::case(&case).namespace(cluster.namespace()).objects();
        for object in objects.of("Deployment").chain(objects.of("PodDisruptionBudget")) {
            assert_eq!(warnings(&client, object).await, Vec::<String>::new(), "{}, {}", case.display(), name(object));
        }
        let mut loose = objects.only("Deployment").clone();
        loose["spec"]["template"]["spec"]["hostNetwork"] = true.into();
        assert!(!warnings(&client, &loose).await.is_empty(), "the API server warns of nothing");
    }
}

/// The warnings in the answer to the creation of an object, which is not kept.
async fn warnings(client: &Client, object: &Value) -> Vec<String> {
    let (group, version) = split(object);
    let kind = super::objects::kind(object).to_lowercase();
    let namespace = super::objects::namespace(object);
    let url = format!("/apis/{group}/{version}/namespaces/{namespace}/{kind}s?dryRun=All&fieldValidation=Strict");
    let request = http::Request::post(url).header("content-type", "application/json");
    let answer = client.send(request.body(Body::from(object.to_string().into_bytes())).unwrap()).await.unwrap();
    assert!(answer.status().is_success(), "{}: {}", name(object), answer.status());
    let warnings = answer.headers().get_all("warning").iter();
    warnings.map(|warning| warning.to_str().unwrap().to_owned()).collect()
}
