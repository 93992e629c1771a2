//! The examples of scaling by the gauges.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::api::{cluster, dry_run};
use super::helm::read;
use crate::support::promtool_run;

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn example(name: &str) -> Value {
    read(&path("manifests").join(name))
}

fn triggers(example: &Value) -> &Vec<Value> {
    example["spec"]["triggers"].as_array().unwrap()
}

#[tokio::test]
async fn keda_knows_every_field_of_the_examples() {
    let client = cluster().await.admin().await;
    for name in ["keda-metrics-api.yaml", "keda-prometheus.yaml"] {
        let answer = dry_run(&client, &example(name)).await;
        assert!(answer.is_ok(), "{name}: {answer:?}");
    }
}

/// KEDA reads one series, by its labels: each is one of those that a leader exports, letter by letter, and all priorities
/// of the queue are in the formula.
#[test]
fn what_is_read_of_the_leader_is_there() {
    let exposition = std::fs::read_to_string(path("tests/it/snapshots/it__exposition__text.snap")).unwrap();
    let example = example("keda-metrics-api.yaml");
    let formula = example["spec"]["advanced"]["scalingModifiers"]["formula"].as_str().unwrap();
    let names: Vec<_> = triggers(&example).iter().map(|trigger| trigger["name"].as_str().unwrap()).collect();
    assert_eq!(formula, names.join(" + "));
    let read: Vec<_> =
        triggers(&example).iter().map(|trigger| trigger["metadata"]["valueLocation"].as_str().unwrap()).collect();
    let exported: Vec<_> = exposition.lines().filter(|line| line.starts_with("queue_messages_ready{")).collect();
    assert_eq!(read, exported);
}

/// While the last samples of an old leader are there beside those of the new one, messages are counted once; and without
/// gauges there is no result, which must not be taken for 0.
#[test]
fn the_query_of_prometheus_counts_each_message_once_and_is_no_zero_without_a_leader() {
    let example = example("keda-prometheus.yaml");
    let [trigger] = &triggers(&example)[..] else { panic!("{example}") };
    let metadata = &trigger["metadata"];
    assert_eq!(metadata["ignoreNullValues"], "false");
    let series = |pod: &str, queue: &str, priority: &str, values: &str| {
        let target = format!(r#"job="retsu-collector", namespace="default", pod="{pod}", instance="{pod}""#);
        let labels = format!(r#"queue_name="{queue}", message_priority="{priority}""#);
        json!({"series": format!("queue_messages_ready{{{target}, {labels}}}"), "values": values})
    };
    let all = [
        series("a", "emails", "HIGH", "5x10 stale"),
        series("a", "emails", "LOW", "7x10 stale"),
        series("b", "emails", "HIGH", "_x10 5x10 stale"),
        series("b", "emails", "LOW", "_x10 7x10 stale"),
        series("a", "others", "HIGH", "100x40"),
    ];
    let expected =
        |time: &str, samples: Value| json!({"expr": metadata["query"], "eval_time": time, "exp_samples": samples});
    let twelve = json!([{"labels": "{}", "value": 12}]);
    let asked = [
        expected("2m", twelve.clone()),
        expected("5m", twelve.clone()),
        expected("8m", twelve),
        expected("15m", json!([])),
    ];
    let test = json!({"interval": "30s", "input_series": all, "promql_expr_test": asked});
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("query.yaml"), json!({"tests": [test]}).to_string()).unwrap();
    promtool_run(directory.path(), &["test", "rules", "query.yaml"].map(str::to_owned));
}
