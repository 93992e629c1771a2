//! The manifests: a real API server takes them, and their Services select whom they should.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::Value;

use crate::support::kubernetes::{Cluster, ROLE, strict_dry_run};
use crate::support::{self, eventually, throughout};

const LIMIT: Duration = Duration::from_secs(20);

/// Those with objects of a namespace that Kubernetes knows by itself.
const FILES: [&str; 8] = [
    "base/rbac.yaml",
    "base/configmap.yaml",
    "base/services.yaml",
    "base/deployment.yaml",
    "base/poddisruptionbudget.yaml",
    "networkpolicy.yaml",
    "examples/managed-postgresql.yaml",
    "sidecar.yaml",
];

/// The objects of a file.
fn objects(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The object of this name.
fn object(file: &str, name: &str) -> Value {
    objects(file).into_iter().find(|object| object["metadata"]["name"] == name).unwrap()
}

/// The Pods that a Service selects, by name.
async fn selected(cluster: &Cluster, service: &Value) -> Vec<String> {
    let pairs = service["spec"]["selector"].as_object().unwrap();
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
    let pods = cluster.pods().await.list(&ListParams::default().labels(&pairs.join(","))).await.unwrap();
    pods.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn the_api_server_knows_every_field_of_every_manifest() {
    let (cluster, mut taken) = (Cluster::new().await, Vec::new());
    let client = cluster.admin().await;
    let parameters = strict_dry_run();
    for file in FILES {
        for mut object in objects(file) {
            assert_eq!(object["metadata"]["namespace"], "default", "{file}");
            object["metadata"]["namespace"] = cluster.namespace().into();
            let types = object["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", "v1"));
            let kind = GroupVersionKind::gvk(types.0, types.1, object["kind"].as_str().unwrap());
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), cluster.namespace(), &ApiResource::from_gvk(&kind));
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let answer = api.patch(&name, &parameters, &Patch::Apply(&object)).await;
            assert!(answer.is_ok(), "{file}, {} {name}: {answer:?}", kind.kind);
            taken.push(kind.kind);
        }
    }
    let base = ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "Service", "Deployment"];
    let rest = ["PodDisruptionBudget", "NetworkPolicy", "Service", "Secret", "Secret", "Deployment", "Service"];
    assert_eq!(taken, [base, rest].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_service_selects_the_leader_and_the_metrics_service_every_replica() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let [leader, metrics] =
        ["retsu-collector-leader", "retsu-collector-metrics"].map(|name| object("base/services.yaml", name));
    assert_eq!(leader["spec"]["publishNotReadyAddresses"], false);
    assert_eq!(metrics["spec"]["publishNotReadyAddresses"], true);
    let _a = cluster.collector("a", &database.url(), |_| {}).await;
    eventually(LIMIT, "a is selected", async || selected(&cluster, &leader).await == ["a"]).await;
    let _b = cluster.collector("b", &database.url(), |_| {}).await;
    eventually(LIMIT, "both are scraped", async || selected(&cluster, &metrics).await == ["a", "b"]).await;
    throughout(Duration::from_secs(1), "a alone leads", async || selected(&cluster, &leader).await == ["a"]).await;
}

/// A Pod that the Deployment of the example makes, with the environment of its sidecar as far as that is in the file.
fn replica_of_the_example() -> (PodTemplateSpec, Vec<(String, String)>) {
    let deployment = object("sidecar.yaml", "worker");
    let template: PodTemplateSpec = serde_json::from_value(deployment["spec"]["template"].clone()).unwrap();
    let spec = template.spec.as_ref().unwrap();
    let [sidecar] = &spec.init_containers.as_ref().unwrap()[..] else { panic!("one sidecar") };
    assert_eq!(sidecar.restart_policy.as_deref(), Some("Always"));
    let sidecar = sidecar.clone();
    let given = sidecar.env.unwrap();
    for (name, path) in
        [("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"), ("POD_UID", "metadata.uid")]
    {
        let variable = given.iter().find(|variable| variable.name == name).unwrap();
        let source = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        assert_eq!(source.map(|field| field.field_path.as_str()), Some(path), "{name}");
    }
    let url_file = given.iter().find(|variable| variable.name == "RETSU_DATABASE__URL_FILE").unwrap();
    let mount = sidecar.volume_mounts.unwrap().into_iter().find(|mount| mount.name == "database").unwrap();
    assert_eq!(url_file.value.as_deref(), Some(&*format!("{}/url", mount.mount_path)));
    // The test has a database of its own.
    let given = given.into_iter().filter(|variable| variable.name != "RETSU_DATABASE__URL_FILE");
    (template, given.filter_map(|variable| Some((variable.name, variable.value?))).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_electing_only_labels_one_pod_which_its_service_selects() {
    // No table of Retsu is there.
    let (cluster, database) = (Cluster::new().await, support::database().await);
    let (template, environment) = replica_of_the_example();
    let service = object("sidecar.yaml", "worker-leader");
    assert!(
        !template.metadata.as_ref().unwrap().labels.as_ref().unwrap().contains_key(ROLE),
        "nobody is born a leader"
    );
    let start = async |name: &str| {
        let like_the_template = |pod: &mut Pod| {
            pod.metadata.labels.clone_from(&template.metadata.as_ref().unwrap().labels);
            let (of, spec) = (template.spec.as_ref().unwrap(), pod.spec.as_mut().unwrap());
            (spec.containers, spec.init_containers) = (of.containers.clone(), of.init_containers.clone());
            spec.volumes.clone_from(&of.volumes);
        };
        cluster.pod_with(name, like_the_template).await;
        cluster
            .collector(name, &database.url(), |config| {
                for (name, value) in &environment {
                    config.env(name, value);
                }
            })
            .await
    };
    let mut a = start("a").await;
    eventually(LIMIT, "a is selected", async || selected(&cluster, &service).await == ["a"]).await;
    let b = start("b").await;
    b.wait_for_log("another session holds the advisory lock", LIMIT).await;
    assert_eq!((a.get("/leader").await.unwrap().0, b.get("/leader").await.unwrap().0), (200, 503));
    for replica in [&a, &b] {
        let agreed = "retsu_collector_label_agreement{state=\"one\"} 1";
        eventually(LIMIT, agreed, async || replica.metrics().await.unwrap().contains(agreed)).await;
        assert!(!replica.metrics().await.unwrap().contains("queue_"), "it elects only");
    }
    a.sigterm();
    assert!(a.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "b is selected alone", async || selected(&cluster, &service).await == ["b"]).await;
    assert_eq!(b.get("/leader").await.unwrap().0, 200);
}
