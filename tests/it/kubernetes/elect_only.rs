//! A collector that elects only, beside a container that asks it: `manifests/sidecar.yaml`.

use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::Api;
use kube::api::{Patch, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

use super::stage::{LIMIT, SKIPPED, WAITING, note, terminate_holder, wait_for_leader};
use crate::support::kubernetes::{CONTAINER, Cluster, Labels, strict_dry_run};
use crate::support::{self, Collector, database, eventually};

/// The Deployment of the manifest, in the namespace of a test.
fn manifest(namespace: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/sidecar.yaml");
    let documents = std::fs::read_to_string(file).unwrap();
    // The second document is the Service.
    let first = serde_yaml::Deserializer::from_str(&documents).next().unwrap();
    let mut deployment = Value::deserialize(first).unwrap();
    deployment["metadata"]["namespace"] = namespace.into();
    deployment
}

fn template(cluster: &Cluster) -> PodSpec {
    let deployment: Deployment = serde_json::from_value(manifest(cluster.namespace())).unwrap();
    deployment.spec.unwrap().template.spec.unwrap()
}

fn sidecar(spec: &PodSpec) -> &Container {
    spec.init_containers.as_ref().unwrap().iter().find(|container| container.name == CONTAINER).unwrap()
}

#[tokio::test]
async fn the_manifest_of_the_sidecar_has_known_fields_only_and_an_api_server_takes_it() {
    let cluster = Cluster::new().await;
    let object = manifest(cluster.namespace());
    let typed: Deployment = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), object, "a field that the type does not have");

    let admin = cluster.admin().await;
    let deployments: Api<Deployment> = cluster.api(&admin);
    let strict = strict_dry_run();
    let taken = deployments.patch("worker", &strict, &Patch::Apply(&object)).await.unwrap();
    let labels = taken.spec.unwrap().selector.match_labels.unwrap();
    let mut wrong = object.clone();
    wrong["spec"]["template"]["spec"]["initContainers"][0]["restartPolitely"] = "Always".into();
    assert!(deployments.patch("worker", &strict, &Patch::Apply(&wrong)).await.is_err(), "the dry run is strict");

    // Its Pods are accepted as well, with their ServiceAccount, and are those that the collector looks for.
    let spec = template(&cluster);
    let environment = sidecar(&spec).env.clone().unwrap();
    let selector = environment.iter().find(|variable| variable.name.ends_with("INSTANCE_SELECTOR")).unwrap();
    let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut selected: Vec<_> = selector.value.as_ref().unwrap().split(',').map(str::to_owned).collect();
    selected.sort();
    assert_eq!(selected, pairs);
    let pod = json!({"metadata": {"name": "a", "labels": labels}, "spec": spec});
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let pod = cluster.api::<Pod>(&admin).create(&dry, &pod).await.unwrap();
    assert_eq!(pod.spec.unwrap().automount_service_account_token, None);
}

/// The sidecar of the manifest in a Pod of the manifest, with what the manifest configures.
async fn sidecar_in(cluster: &Cluster, pod: &str, url: &str) -> Collector {
    let object = manifest(cluster.namespace());
    let spec = template(cluster);
    let environment = sidecar(&spec).env.clone().unwrap();
    cluster
        .pod_with(pod, |pod| {
            let node = pod.spec.as_ref().unwrap().node_name.clone();
            pod.metadata.labels =
                serde_json::from_value(object["spec"]["template"]["metadata"]["labels"].clone()).unwrap();
            pod.spec = Some(PodSpec { node_name: node, ..spec });
        })
        .await;
    let database = "RETSU_DATABASE__URL";
    cluster
        .collector(pod, url, |config| {
            for variable in environment.iter().filter(|variable| !variable.name.starts_with(database)) {
                if let Some(value) = &variable.value {
                    config.env(&variable.name, value);
                }
            }
        })
        .await
}

async fn leads(sidecar: &Collector) -> bool {
    match sidecar.get("/leader").await.unwrap().0 {
        200 => true,
        503 => false,
        status => panic!("{status}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sidecars_elect_and_hand_over_and_touch_no_table() {
    // There is none: every query of queue state would fail.
    let (cluster, database) = (Cluster::new().await, database().await);
    let labels = Labels::watch(&cluster).await;
    let mut a = sidecar_in(&cluster, "a", &database.url()).await;
    eventually(LIMIT, "a leads", async || leads(&a).await).await;
    wait_for_leader(&labels, "a").await;
    let b = sidecar_in(&cluster, "b", &database.url()).await;
    b.wait_for_log(WAITING, LIMIT).await;
    let container = cluster.container("a").await.container_id.unwrap();
    eventually(LIMIT, "a names its container", async || note(&labels, "a")["container"] == *container).await;
    assert_eq!(note(&labels, "a")["exported"], true);
    assert!(!leads(&b).await);
    for sidecar in [&a, &b] {
        let metrics = sidecar.metrics().await.unwrap();
        assert!(!metrics.contains("\nqueue_") && !metrics.contains("\nretsu_collector_refresh"), "{metrics}");
        support::promtool_check(&metrics);
    }

    a.sigterm();
    assert!(a.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "b leads", async || leads(&b).await).await;
    wait_for_leader(&labels, "b").await;
    b.wait_for_log(SKIPPED, LIMIT).await;

    // A lease that is lost is the end of the term, not of the process.
    terminate_holder(&database.url()).await;
    b.wait_for_log("leadership lost", LIMIT).await;
    labels.wait("b is a standby", LIMIT, |now| now["b"].as_deref() == Some("standby")).await;
    eventually(LIMIT, "b leads again", async || leads(&b).await).await;
    wait_for_leader(&labels, "b").await;
    assert_eq!((b.count_in_log("ERROR"), b.count_in_log("leadership lost")), (0, 1));
    labels.assert_no_contradiction();
}
