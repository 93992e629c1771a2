//! The alerts of the chart, evaluated by the real Prometheus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::helm::{Rendering, chart};
use crate::support::{documented_metrics, promtool_run};

/// A release with alerts.
fn release(release: &str, namespace: &str) -> Rendering {
    Rendering::named("minimal").release(release).namespace(namespace).with(json!({"prometheusRule": {"enabled": true}}))
}

/// What Prometheus is given of it.
fn groups(rendering: &Rendering) -> Value {
    rendering.objects().only("PrometheusRule")["spec"].clone()
}

fn alerts(groups: &Value) -> Vec<Value> {
    let groups = groups["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

fn name(alert: &Value) -> &str {
    alert["alert"].as_str().unwrap()
}

fn names(groups: &Value) -> BTreeSet<String> {
    alerts(groups).iter().map(|alert| name(alert).to_owned()).collect()
}

/// The unit tests of the alerts.
fn scenarios() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(chart().join("tests/rules")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn documentation() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.md")).unwrap()
}

/// The scenarios name the rules of a release by its name and namespace. `slow` is scraped and asks for the lock less often.
#[test]
fn alerts_fire_under_their_faults_and_in_no_hand_over() {
    let directory = tempfile::tempdir().unwrap();
    let collector = json!({"leadership_retry_interval_seconds": 15, "collection_interval_seconds": 300});
    let slow = release("slow", "one").with(json!({
        "podMonitor": {"enabled": true, "interval": "1m"},
        "config": {"worker": {"queue": {"state_metrics_collector": collector}}},
    }));
    let one = release("retsu-collector", "one");
    let (other, two) = (release("other", "one"), release("retsu-collector", "two"));
    let mut rules = Vec::new();
    for (rendering, file) in [
        (one, "retsu-collector.one.yaml"),
        (other, "other.one.yaml"),
        (two, "retsu-collector.two.yaml"),
        (slow, "slow.one.yaml"),
    ] {
        std::fs::write(directory.path().join(file), groups(&rendering).to_string()).unwrap();
        rules.push(file.to_owned());
    }
    let mut tests = Vec::new();
    for scenario in scenarios() {
        let file = scenario.file_name().unwrap().to_str().unwrap().to_owned();
        std::fs::copy(&scenario, directory.path().join(&file)).unwrap();
        tests.push(file);
    }
    promtool_run(directory.path(), &[&["check".to_owned(), "rules".to_owned()][..], &rules].concat());
    promtool_run(directory.path(), &[&["test".to_owned(), "rules".to_owned()][..], &tests].concat());
}

#[test]
fn every_alert_is_seen_to_fire() {
    let scenarios: String = scenarios().iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let silent: Vec<_> = names(&groups(&release("retsu", "queues")))
        .into_iter()
        .filter(|name| !scenarios.contains(&format!("{{alertname=\"{name}\"")))
        .collect();
    assert_eq!(silent, [""; 0]);
}

#[test]
fn every_alert_says_how_bad_it_is_and_where_to_read_on() {
    let groups = groups(&release("retsu", "queues"));
    for alert in alerts(&groups) {
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{alert}");
        assert_eq!([&alert["labels"]["job"], &alert["labels"]["namespace"]], ["retsu-retsu-collector", "queues"]);
        let members: BTreeSet<_> = alert["annotations"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, BTreeSet::from(["description", "runbook", "summary"]), "{alert}");
        let anchor = name(&alert).to_lowercase();
        assert_eq!(alert["annotations"]["runbook"], format!("docs/alerts.md#{anchor}"));
    }
    let documentation = documentation();
    let sections = documentation.lines().filter_map(|line| line.strip_prefix("## RetsuCollector"));
    let sections: BTreeSet<_> = sections.map(|rest| format!("RetsuCollector{rest}")).collect();
    assert_eq!(sections, names(&groups));
}

#[test]
fn alerts_name_metrics_that_there_are_and_select_their_release() {
    let (documented, groups) = (documented_metrics(), groups(&release("retsu", "queues")));
    for alert in alerts(&groups) {
        let expression = alert["expr"].as_str().unwrap();
        let mut named = 0;
        for (before, _) in expression.match_indices('{').map(|(at, _)| expression.split_at(at)) {
            let metric = before.rsplit(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap();
            assert!(metric == "up" || documented.contains(metric), "{metric} in {expression}");
            named += 1;
        }
        let selected = expression.matches("{job=\"retsu-retsu-collector\", namespace=\"queues\"").count();
        assert!(named > 0 && named == selected, "{expression}");
        let left = ["JOB", "NAMESPACE", "REPLICAS", "SECONDS"];
        assert!(!left.iter().any(|word| alert.to_string().contains(word)), "{alert}");
    }
}

#[test]
fn an_alert_is_left_out_by_name_and_no_other() {
    let all = names(&groups(&release("retsu", "queues")));
    let without =
        release("retsu", "queues").with(json!({"prometheusRule": {"disabled": ["RetsuCollectorReplicasMissing"]}}));
    let left = names(&groups(&without));
    let out: Vec<_> = all.difference(&left).collect();
    assert_eq!(out, ["RetsuCollectorReplicasMissing"]);
    let misspelled =
        release("retsu", "queues").with(json!({"prometheusRule": {"disabled": ["RetsuCollectorNoLeadr"]}}));
    let refusal = misspelled.refusal();
    assert!(refusal.contains("there is no alert RetsuCollectorNoLeadr; name one of"), "{refusal}");
    assert!(refusal.contains("RetsuCollectorNoLeader"), "{refusal}");
}

#[test]
fn labels_that_are_given_are_on_every_alert() {
    let labelled = json!({"prometheusRule": {"alertLabels": {"team": "queues", "severity": "page"}}});
    let alerts = alerts(&groups(&release("retsu", "queues").with(labelled)));
    assert!(alerts.iter().all(|alert| alert["labels"]["team"] == "queues" && alert["labels"]["severity"] == "page"));
    let without = json!({"prometheusRule": {"alertLabels": {"team": null, "severity": null}}});
    for alert in self::alerts(&groups(&release("retsu", "queues").with(without))) {
        assert!(alert["labels"].get("team").is_none() && alert["labels"]["severity"].is_string(), "{alert}");
    }
}
