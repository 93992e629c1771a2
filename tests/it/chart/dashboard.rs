//! The dashboard: every query of it is asked of the real Prometheus, about what a leader and a standby say.

use std::path::Path;

use serde_json::{Value, json};

use super::helm::{Rendering, chart};
use crate::support::{documented_metrics, promtool_run};

const SELECTED: &str = r#"job="$job", namespace="$namespace""#;

fn file() -> Value {
    serde_json::from_str(&std::fs::read_to_string(chart().join("dashboards/retsu-collector.json")).unwrap()).unwrap()
}

/// Every query of a panel.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The series of an exposition that a snapshot test has seen, with the labels that Prometheus adds.
fn series(snapshot: &str, pod: &str, wanted: impl Fn(&str) -> bool) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(snapshot);
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let lines = lines.filter(|line| !line.starts_with("source:") && !line.starts_with("expression:"));
    lines.filter(|line| wanted(line)).map(|line| with_target(line.split(' ').next().unwrap(), pod)).collect()
}

fn with_target(series: &str, pod: &str) -> Value {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let target = format!(r#"job="retsu", namespace="queues", pod="{pod}", instance="{pod}""#);
    let comma = if labels == "}" { "" } else { ", " };
    json!({"series": format!("{name}{{{target}{comma}{labels}"), "values": "1x40"})
}

/// What Prometheus has of a leader with everything that may happen to one, and of a standby.
fn two_replicas() -> Vec<Value> {
    let (text, kubernetes) =
        ("snapshots/it__exposition__text.snap", "exposition/snapshots/it__exposition__kubernetes__kubernetes.snap");
    let of_a_leader = |line: &str| line.starts_with("queue_") || line.starts_with("retsu_collector_term");
    let rare = [
        "up",
        r#"retsu_collector_terms_lost_total{kind="fence"}"#,
        r#"retsu_collector_election_refusal_info{reason="hot_standby"}"#,
    ];
    let mut all = [series(text, "a", |_| true), series(kubernetes, "a", |_| true)].concat();
    all.extend(series(text, "b", |line| !of_a_leader(line)));
    all.extend(series(kubernetes, "b", |_| true));
    all.extend(rare.map(|series| with_target(series, "a")));
    all
}

#[test]
fn helm_changes_nothing_of_it() {
    let rendering = Rendering::named("minimal").with(json!({"grafanaDashboard": {"enabled": true}}));
    let objects = rendering.objects();
    let texts: Vec<_> =
        objects.of("ConfigMap").filter_map(|map| map["data"]["retsu-collector.json"].as_str()).collect();
    let [text] = texts[..] else { panic!("{} dashboards", texts.len()) };
    assert!(text.contains("{{pod}}"));
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), file());
}

#[test]
fn every_query_selects_by_the_variables_and_names_metrics_that_there_are() {
    let (dashboard, documented) = (file(), documented_metrics());
    for query in queries(&dashboard) {
        assert!(query.contains('{'), "{query}");
        for (at, _) in query.match_indices('{') {
            let (before, after) = query.split_at(at + 1);
            let metric =
                before.trim_end_matches('{').rsplit(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap();
            let family = metric.trim_end_matches("_bucket");
            assert!(metric == "up" || documented.contains(family), "{metric} in {query}");
            assert!(after.starts_with(SELECTED), "{query}");
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap().iter().filter(|v| v["type"] == "query") {
        let query = variable["definition"].as_str().unwrap();
        let metric = query.trim_start_matches("label_values(").split(['{', ',']).next().unwrap();
        assert!(documented.contains(metric), "{query}");
    }
}

#[test]
fn it_asks_the_data_source_that_was_chosen() {
    let dashboard = file();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!((&variables[0]["name"], &variables[0]["type"]), (&json!("datasource"), &json!("datasource")));
    let chosen = json!({"type": "prometheus", "uid": "${datasource}"});
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"], chosen, "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"], chosen, "{}", panel["title"]);
        }
    }
    assert!(variables[1..].iter().all(|variable| variable["datasource"] == chosen));
}

#[test]
fn no_two_panels_overlap() {
    let dashboard = file();
    let mut taken = std::collections::HashSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let number = |key| panel["gridPos"][key].as_u64().unwrap();
        assert!(number("x") + number("w") <= 24, "{}", panel["title"]);
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(taken.insert((x, y)), "{} at {x}, {y}", panel["title"]);
            }
        }
    }
}

#[test]
fn every_query_has_an_answer_about_a_leader_and_a_standby() {
    let variables = [("$job", "retsu"), ("$namespace", "queues"), ("$queue_name", ".*"), ("$__rate_interval", "5m")];
    let asked = queries(&file()).into_iter().map(|query| {
        let query = variables.iter().fold(query, |query, (variable, value)| query.replace(variable, value));
        json!({"expr": format!("count({query}) > bool 0"), "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": 1}]})
    });
    let asked: Vec<_> = asked.collect();
    let test = json!({"interval": "30s", "input_series": two_replicas(), "promql_expr_test": asked});
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("dashboard.yaml"), json!({"tests": [test]}).to_string()).unwrap();
    promtool_run(directory.path(), &["test".to_owned(), "rules".to_owned(), "dashboard.yaml".to_owned()]);
}
