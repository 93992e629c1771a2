//! What monitors keep, drop and name, so that each series is there once and under the identity that alerts select.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::helm::Rendering;
use super::objects::name;

fn rendering(values: Value) -> Rendering {
    Rendering::named("minimal").with(values)
}

/// Name, relabelings of targets and relabelings of metrics of every monitor.
fn monitors(rendering: &Rendering) -> Vec<(String, Vec<Value>, Vec<Value>)> {
    let objects = rendering.objects();
    let monitors = objects.of("ServiceMonitor").chain(objects.of("PodMonitor"));
    let monitor = |monitor: &Value| {
        let endpoints = monitor["spec"].get("endpoints").unwrap_or(&monitor["spec"]["podMetricsEndpoints"]);
        let [endpoint] = &endpoints.as_array().unwrap()[..] else { panic!("{monitor}") };
        let list = |key| endpoint.get(key).map(|list| list.as_array().unwrap().clone()).unwrap_or_default();
        (name(monitor).to_owned(), list("relabelings"), list("metricRelabelings"))
    };
    monitors.map(monitor).collect()
}

/// The families of queue state that docs/metrics.md gives to a leader alone, and only while it exports.
fn leader_families() -> BTreeSet<String> {
    let metrics = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")).unwrap();
    let rows = metrics.lines().filter(|line| line.starts_with("| `queue_"));
    let rows = rows.filter(|line| line.ends_with("| the leader, while it exports |"));
    rows.map(|line| line.split('`').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn each_gauge_of_queue_state_comes_from_exactly_one_monitor() {
    let scraped = monitors(&rendering(json!({"serviceMonitor": {"enabled": true, "leader": {"enabled": true}}})));
    let [(_, _, replicas), (_, _, leader)] = &scraped[..] else { panic!("{scraped:?}") };
    let (dropped, kept) = (&replicas[0], &leader[0]);
    assert_eq!((&dropped["action"], &kept["action"]), (&json!("drop"), &json!("keep")));
    assert_eq!(dropped["sourceLabels"], json!(["__name__"]));
    assert_eq!(kept["sourceLabels"], json!(["__name__"]));
    let families =
        |rule: &Value| rule["regex"].as_str().unwrap().split('|').map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(families(kept), leader_families());
    assert_eq!(families(dropped), leader_families());
}

#[test]
fn without_a_monitor_of_the_leader_nothing_is_dropped() {
    for values in [json!({"serviceMonitor": {"enabled": true}}), json!({"podMonitor": {"enabled": true}})] {
        let scraped = monitors(&rendering(values));
        let [(_, _, metrics)] = &scraped[..] else { panic!("{scraped:?}") };
        assert_eq!(metrics, &[json!(null); 0]);
    }
}

#[test]
fn the_gauges_of_the_next_leader_continue_the_series_of_the_last() {
    let scraped = monitors(&rendering(json!({"serviceMonitor": {"enabled": true, "leader": {"enabled": true}}})));
    let (name, targets, _) = &scraped[1];
    assert_eq!(name, "retsu-retsu-collector-leader");
    assert!(targets.contains(&json!({"action": "labeldrop", "regex": "pod|container|node|endpoint"})), "{targets:?}");
    assert!(
        targets.contains(&json!({"action": "replace", "targetLabel": "instance", "replacement": name})),
        "{targets:?}"
    );
}

#[test]
fn every_monitor_gives_the_job_that_alerts_select() {
    let rule = json!({"prometheusRule": {"enabled": true}});
    for values in [
        json!({"serviceMonitor": {"enabled": true, "leader": {"enabled": true}}}),
        json!({"podMonitor": {"enabled": true}}),
    ] {
        let rendering = rendering(values).with(rule.clone());
        let alerts = rendering.objects().only("PrometheusRule").to_string();
        for (name, targets, _) in monitors(&rendering) {
            let job = targets[0]["replacement"].as_str().unwrap();
            assert_eq!(targets[0], json!({"action": "replace", "targetLabel": "job", "replacement": job}), "{name}");
            assert!(alerts.contains(&format!("retsu_collector_leader{{job=\\\"{job}\\\", ")), "{name}: {job}");
        }
    }
}

/// What is given comes after what the chart does, for each monitor on its own.
#[test]
fn relabelings_that_are_given_come_last() {
    let (target, metric) =
        (json!({"targetLabel": "a", "replacement": "b"}), json!({"action": "labeldrop", "regex": "c"}));
    let given = json!({"relabelings": [target], "metricRelabelings": [metric]});
    let mut both = given.clone();
    both["enabled"] = true.into();
    both["leader"] = given;
    both["leader"]["enabled"] = true.into();
    for (name, targets, metrics) in monitors(&rendering(json!({"serviceMonitor": both}))) {
        assert_eq!((targets.last(), metrics.last()), (Some(&target), Some(&metric)), "{name}");
        assert!(targets.len() > 1 && metrics.len() > 1, "{name}");
    }
}

/// A cluster without the operator has to refuse them; nothing asks what it has.
#[test]
fn monitors_and_alerts_are_rendered_whatever_the_cluster_has() {
    let values = json!({"serviceMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}});
    let objects = rendering(values).objects();
    objects.only("ServiceMonitor");
    objects.only("PrometheusRule");
}
