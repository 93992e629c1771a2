//! The plain manifests, beside the chart that they are rendered from.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{CHART, objects, output, root};

/// What the manifests are rendered with.
const VALUES: &str = "fullnameOverride=retsu-collector,database.existingSecret.name=retsu-database";

/// What kustomize makes of a directory of `manifests/`.
fn built(directory: &str) -> Vec<Value> {
    objects(&output("kustomize", &["build", root().join("manifests").join(directory).to_str().unwrap()]))
}

/// What a release has, without the test that only Helm starts.
fn rendered(values: &str) -> Vec<Value> {
    let arguments = ["template", "retsu", CHART, "--kube-version=1.34.0", "--set", VALUES];
    let mut all = objects(&output("helm", &[&arguments[..], &["--set", values]].concat()));
    all.retain(|object| object["metadata"]["annotations"]["helm.sh/hook"].is_null());
    all
}

fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found[0]
}

/// The labels of a mapping.
fn labels(mapping: &Value) -> BTreeMap<String, String> {
    let pairs = mapping.as_object().unwrap().iter();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// The members of a list, whatever their order.
fn members(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(Value::to_string).collect()
}

#[test]
fn the_manifests_have_every_object_of_a_release_and_nothing_that_is_of_helm() {
    let names = |objects: Vec<Value>| {
        let name = |object: &Value| (object["kind"].to_string(), object["metadata"]["name"].to_string());
        objects.iter().map(name).collect::<BTreeSet<_>>()
    };
    assert_eq!(names(built("")), names(rendered("replicaCount=2")));
    for object in built("") {
        let text = object.to_string();
        assert!(!text.contains("helm.sh/") && !text.contains("managed-by"), "{text}");
    }
}

#[test]
fn in_an_overlay_the_selectors_agree_with_that_of_the_program() {
    let objects = built("examples/overlay");
    for object in &objects {
        assert_eq!(object["metadata"]["namespace"], "queues", "{object}");
    }
    assert_eq!(only(&objects, "RoleBinding")["subjects"][0]["namespace"], "queues");

    let deployment = &only(&objects, "Deployment")["spec"];
    assert_eq!(deployment["replicas"], 3);
    let template = &deployment["template"];
    assert_eq!(
        template["spec"]["containers"][0]["image"].as_str().unwrap().split_once('/').unwrap().0,
        "registry.example.com"
    );
    let config = only(&objects, "ConfigMap");
    assert!(members(&template["spec"]["volumes"]).iter().any(|volume| {
        serde_json::from_str::<Value>(volume).unwrap()["configMap"]["name"] == config["metadata"]["name"]
    }));

    let config: Value = serde_yaml::from_str(config["data"]["config.yaml"].as_str().unwrap()).unwrap();
    let selector = config["kubernetes"]["instance_selector"].as_str().unwrap();
    let instance: BTreeMap<_, _> = selector
        .split(',')
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(labels(&deployment["selector"]["matchLabels"]), instance);
    assert_eq!(labels(&only(&objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]), instance);
    assert_eq!(labels(&template["metadata"]["labels"]), instance, "and nobody is born a leader");
    let services: Vec<_> = objects.iter().filter(|object| object["kind"] == "Service").collect();
    assert_eq!(services.len(), 2);
    for service in services {
        let mut selected = labels(&service["spec"]["selector"]);
        let role = selected.remove(config["kubernetes"]["role_label"].as_str().unwrap());
        assert_eq!(selected, instance, "{service}");
        let leads = service["metadata"]["labels"]["app.kubernetes.io/component"] == "leader";
        assert_eq!(role.as_deref(), leads.then_some("leader"), "{service}");
    }
}

#[test]
fn the_example_of_a_managed_postgresql_verifies_the_server_as_the_chart_does() {
    let example = built("examples/managed-postgresql");
    let wanted = rendered("database.tls.ca.secretName=retsu-database-ca");
    let [found, wanted] = [&example, &wanted].map(|objects| &only(objects, "Deployment")["spec"]["template"]["spec"]);
    assert_eq!(members(&found["volumes"]), members(&wanted["volumes"]));
    for list in ["env", "volumeMounts"] {
        assert_eq!(members(&found["containers"][0][list]), members(&wanted["containers"][0][list]), "{list}");
    }

    let given = std::fs::read_to_string(root().join("manifests/examples/managed-postgresql.yaml")).unwrap();
    let given = objects(&given);
    let secret =
        |name: &str| given.iter().find(|object| object["kind"] == "Secret" && object["metadata"]["name"] == name);
    let url = secret("retsu-database").unwrap()["stringData"]["url"].as_str().unwrap();
    // The server's certificate is of this name, not of the Service's.
    let host = only(&given, "Service")["spec"]["externalName"].as_str().unwrap();
    assert!(url.contains(&format!("@{host}:")), "{url}");
    assert!(secret("retsu-database-ca").unwrap()["stringData"]["ca.crt"].is_string());
}
