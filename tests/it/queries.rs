//! The queries of the documentation, asked of the real Prometheus.

use std::fs;
use std::path::Path;

use crate::support::{documented_metrics, promtool_run};

/// Two replicas lead, each on a primary of its own from the tenth minute on.
const NEWEST_HISTORY: &str = r#"
tests:
  - interval: 1m
    input_series:
      - series: 'retsu_collector_term_timeline{instance="a"}'
        values: 1x20
      - series: 'retsu_collector_term_timeline{instance="b"}'
        values: _x10 2x10
      - series: 'queue_messages_ready{instance="a", queue_name="q"}'
        values: 10x20
      - series: 'queue_messages_ready{instance="b", queue_name="q"}'
        values: _x10 20x10
    promql_expr_test:
      - expr: QUERY
        eval_time: 5m
        exp_samples: [{labels: 'queue_messages_ready{instance="a", queue_name="q"}', value: 10}]
      - expr: QUERY
        eval_time: 15m
        exp_samples: [{labels: 'queue_messages_ready{instance="b", queue_name="q"}', value: 20}]
"#;

const REPAIRS: &str = r#"
tests:
  - interval: 1m
    input_series:
      - series: 'retsu_collector_label_repairs_total{instance="a", to="standby"}'
        values: 0x4 3x10
      - series: 'retsu_collector_label_repairs_total{instance="b", to="leader"}'
        values: 0x15
    promql_expr_test:
      - expr: QUERY
        eval_time: 14m
        exp_samples: [{labels: '{to="standby"}', value: 3}, {labels: '{to="leader"}', value: 0}]
"#;

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The one query of a document.
fn query(document: &str) -> &str {
    let mut found = document.split("\n```promql\n").skip(1);
    let (query, _) = found.next().expect("the query is there").split_once("```").expect("the query ends");
    assert_eq!(found.next(), None, "one query");
    query.trim()
}

fn ask(name: &str, scenario: &str) {
    let documented = document(name);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("scenario.yml"), scenario.replace("QUERY", query(&documented))).unwrap();
    promtool_run(directory.path(), &["test", "rules", "scenario.yml"].map(str::to_owned));
}

#[test]
fn of_two_primaries_the_newest_history_is_chosen() {
    ask("replication.md", NEWEST_HISTORY);
}

#[test]
fn repairs_of_the_label_are_counted() {
    ask("kubernetes.md", REPAIRS);
}

/// Every metric that these documents name is one that the collector documents.
#[test]
fn documents_name_metrics_that_there_are() {
    let metrics = documented_metrics();
    for name in ["replication.md", "kubernetes.md", "alerts.md"] {
        let documented = document(name);
        let named = documented
            .split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .filter(|word| word.starts_with("retsu_collector_") || word.starts_with("queue_messages_"));
        let unknown: Vec<_> = named.filter(|name| !metrics.contains(*name)).collect();
        assert_eq!(unknown, [""; 0], "{name}");
    }
}
