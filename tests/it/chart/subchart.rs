//! The chart as a part of another: with an alias, a condition and values that are `global`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::helm::{LONGEST_RELEASE, Rendering, chart, helm, run};
use super::objects::{Objects, labels, name, namespace, selects};

/// A parent with one dependency for each alias, switched by `ALIAS.enabled`.
pub(super) fn parent(aliases: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let version = version();
    let dependency = |alias: &&str| {
        json!({
            "name": "retsu-collector",
            "version": version,
            "repository": format!("file://{}", chart().display()),
            "alias": alias,
            "condition": format!("{alias}.enabled"),
        })
    };
    let dependencies: Vec<_> = aliases.iter().map(dependency).collect();
    let parent = json!({"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": dependencies});
    fs::write(directory.path().join("Chart.yaml"), parent.to_string()).unwrap();
    run(helm(&["dependency", "update"]).arg(directory.path())).unwrap();
    directory
}

fn version() -> String {
    super::helm::read(&chart().join("Chart.yaml"))["version"].as_str().unwrap().to_owned()
}

fn of(parent: &Path, values: Value) -> Rendering {
    Rendering::bare().chart(parent).with(values)
}

fn values(enabled: bool) -> Value {
    json!({
        "enabled": enabled,
        "database": {"existingSecret": {"name": "retsu-database"}},
        "serviceMonitor": {"enabled": true, "leader": {"enabled": true}},
        "admissionPolicy": {"enabled": true},
        "prometheusRule": {"enabled": true},
        "grafanaDashboard": {"enabled": true},
        "networkPolicy": {"enabled": true},
    })
}

#[test]
fn a_condition_switches_it_and_global_values_reach_it() {
    let parent = parent(&["queues"]);
    let global =
        json!({"imageRegistry": "registry.example.com", "imagePullSecrets": [{"name": "pull"}], "unrelated": {"a": 1}});
    let rendered = of(parent.path(), json!({"global": global, "queues": values(true)})).objects();
    let pod = &rendered.only("Deployment")["spec"]["template"]["spec"];
    let image = pod["containers"][0]["image"].as_str().unwrap();
    assert!(image.starts_with("registry.example.com/retsu-collector:"), "{image}");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "pull"}]));

    let off = of(parent.path(), json!({"global": global, "queues": values(false)}));
    assert_eq!(off.objects().iter().count(), 0);
}

#[test]
fn two_of_them_in_one_release_share_no_name_and_select_only_their_own() {
    let aliases = ["first", "second"];
    let parent = parent(&aliases);
    let objects = of(parent.path(), json!({"first": values(true), "second": values(true)})).objects();
    assert_distinct(&objects);
    for alias in aliases {
        for service in objects.of("Service").filter(|service| name(service).contains(alias)) {
            let mut selector = service["spec"]["selector"].clone();
            selector.as_object_mut().unwrap().remove("retsu.io/collector-role");
            assert_eq!(found(&objects, &selector, "Deployment"), [format!("retsu-{alias}")], "{}", name(service));
        }
        for monitor in objects.of("ServiceMonitor").filter(|monitor| name(monitor).contains(alias)) {
            let found = found(&objects, &monitor["spec"]["selector"]["matchLabels"], "Service");
            assert!(matches!(&found[..], [service] if service.contains(alias)), "{}: {found:?}", name(monitor));
        }
    }
}

#[test]
fn two_of_them_share_no_name_however_long_or_alike_those_of_release_and_aliases_are() {
    for (release, aliases) in [
        ("r".repeat(LONGEST_RELEASE), ["first", "second"]),
        ("r".repeat(36), ["queue-metrics-first", "queue-metrics-second"]),
        ("orders-payments".to_owned(), ["orders", "payments"]),
    ] {
        let parent = parent(&aliases);
        let both = json!({aliases[0]: values(true), aliases[1]: values(true)});
        let objects = of(parent.path(), both).release(&release).objects();
        assert_distinct(&objects);
        assert!(objects.iter().all(|object| namespace(object).is_empty() || name(object).len() <= 63), "{release}");
    }
}

fn assert_distinct(objects: &Objects) {
    let mut identities = objects.identities();
    let all = identities.len();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), all, "{identities:?}");
}

/// The names of the objects of a kind that a selector finds: a Service by its labels, a workload by its template's.
fn found(objects: &Objects, selector: &Value, kind: &str) -> Vec<String> {
    let labels = |object: &&Value| match object.pointer("/spec/template/metadata/labels") {
        Some(of_template) => of_template.as_object().unwrap().clone(),
        None => labels(object),
    };
    objects.of(kind).filter(|object| selects(selector, &labels(object))).map(|object| name(object).to_owned()).collect()
}
