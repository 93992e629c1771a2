//! The plain manifests, beside the chart that they are rendered from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::helm::{Rendering, run};
use super::objects::{Objects, identity};
use crate::support::kubernetes::program;

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// What kustomize makes of a directory of `manifests/`.
fn built(directory: &str) -> Objects {
    let built = run(Command::new(program("kustomize")).arg("build").arg(manifests().join(directory)));
    Objects::parse(&built.unwrap_or_else(|complaint| panic!("{directory}: {complaint}")))
}

/// What a release has that is called as the manifests are.
fn rendered(values: Value) -> Objects {
    let database = json!({"existingSecret": {"name": "retsu-database"}});
    let named = json!({"fullnameOverride": "retsu-collector", "database": database});
    Rendering::bare().namespace("default").with(named).with(values).objects()
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
    let (built, rendered) = (built(""), rendered(json!({})));
    // Only Helm starts the test of a release.
    let ours = rendered.iter().filter(|object| object["metadata"]["annotations"]["helm.sh/hook"].is_null());
    let ours: BTreeSet<_> = ours.map(identity).collect();
    assert_eq!(built.iter().map(identity).collect::<BTreeSet<_>>(), ours);
    for object in built.iter() {
        let text = object.to_string();
        assert!(!text.contains("helm.sh/") && !text.contains("managed-by"), "{text}");
    }
}

#[test]
fn in_an_overlay_the_selectors_agree_with_that_of_the_program() {
    let objects = built("examples/overlay");
    for object in objects.iter() {
        assert_eq!(object["metadata"]["namespace"], "queues", "{object}");
    }
    assert_eq!(objects.only("RoleBinding")["subjects"][0]["namespace"], "queues");

    let deployment = &objects.only("Deployment")["spec"];
    assert_eq!(deployment["replicas"], 3);
    let template = &deployment["template"];
    assert_eq!(
        template["spec"]["containers"][0]["image"].as_str().unwrap().split_once('/').unwrap().0,
        "registry.example.com"
    );
    let config = objects.only("ConfigMap");
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
    assert_eq!(labels(&objects.only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]), instance);
    assert_eq!(labels(&template["metadata"]["labels"]), instance, "and nobody is born a leader");
    assert_eq!(objects.of("Service").count(), 2);
    for service in objects.of("Service") {
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
    let wanted = rendered(json!({"database": {"tls": {"ca": {"secretName": "retsu-database-ca"}}}}));
    let [found, wanted] = [&example, &wanted].map(|objects| &objects.only("Deployment")["spec"]["template"]["spec"]);
    assert_eq!(members(&found["volumes"]), members(&wanted["volumes"]));
    for list in ["env", "volumeMounts"] {
        assert_eq!(members(&found["containers"][0][list]), members(&wanted["containers"][0][list]), "{list}");
    }

    let given = Objects::parse(&std::fs::read_to_string(manifests().join("examples/managed-postgresql.yaml")).unwrap());
    let secret = |name: &str| given.of("Secret").find(|secret| secret["metadata"]["name"] == name).unwrap();
    let url = secret("retsu-database")["stringData"]["url"].as_str().unwrap();
    // The server's certificate is of this name, not of the Service's.
    let host = given.only("Service")["spec"]["externalName"].as_str().unwrap();
    assert!(url.contains(&format!("@{host}:")), "{url}");
    assert!(secret("retsu-database-ca")["stringData"]["ca.crt"].is_string());
}
