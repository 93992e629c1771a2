//! The alerts and the queries of the documentation, evaluated by the real Prometheus.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::promtool;

/// Two replicas: at first one leads; from the tenth minute on each leads on a primary of its own; from the twentieth on
/// both say the same of two servers, as with a clone; from the thirtieth on neither leads, and one is refused.
const REPLICATION: &str = r#"
rule_files: [alerts.yml]
evaluation_interval: 15s
tests:
  - interval: 1m
    input_series:
      - series: 'retsu_collector_term_info{instance="a", system_identifier="7", timeline="1"}'
        values: 1x29 stale
      - series: 'retsu_collector_term_info{instance="b", system_identifier="7", timeline="2"}'
        values: _x9 1x9 stale
      - series: 'retsu_collector_term_info{instance="b", system_identifier="7", timeline="1"}'
        values: _x19 1x9 stale
      - series: 'retsu_collector_term_timeline{instance="a"}'
        values: 1x29 stale
      - series: 'retsu_collector_term_timeline{instance="b"}'
        values: _x9 2x9 1x9 stale
      - series: 'retsu_collector_leader{instance="a"}'
        values: 1x29 0x20
      - series: 'retsu_collector_leader{instance="b"}'
        values: 0x9 1x19 0x20
      - series: 'retsu_collector_election_refusal_info{instance="b", reason="hot_standby"}'
        values: _x29 1x20
      - series: 'queue_messages_ready{instance="a", queue_name="q"}'
        values: 10x29 stale
      - series: 'queue_messages_ready{instance="b", queue_name="q"}'
        values: _x9 20x9 stale
    promql_expr_test:
      - expr: QUERY
        eval_time: 5m
        exp_samples: [{labels: 'queue_messages_ready{instance="a", queue_name="q"}', value: 10}]
      - expr: QUERY
        eval_time: 15m
        exp_samples: [{labels: 'queue_messages_ready{instance="b", queue_name="q"}', value: 20}]
      - expr: ALERTS{alertstate="firing"}
        eval_time: 8m
        exp_samples: []
      - expr: count by (alertname, reason) (ALERTS{alertstate="firing"})
        eval_time: 12m
        exp_samples:
          - {labels: '{alertname="RetsuCollectorTwoPrimaries"}', value: 1}
          - {labels: '{alertname="RetsuCollectorTimelineChanged"}', value: 1}
      - expr: count by (alertname, reason) (ALERTS{alertstate="firing"})
        eval_time: 28m
        exp_samples: [{labels: '{alertname="RetsuCollectorTwoLeaders"}', value: 1}]
      - expr: count by (alertname, reason) (ALERTS{alertstate="firing"})
        eval_time: 40m
        exp_samples:
          - {labels: '{alertname="RetsuCollectorNoLeader"}', value: 1}
          - {labels: '{alertname="RetsuCollectorRefused", reason="hot_standby"}', value: 1}
"#;

/// Two replicas in a cluster. At first `a` leads and has the label. For the first of each ten minutes something is so that
/// a hand-over makes, and nothing fires. From the tenth minute on no Pod has the label and `patch` is refused, from the
/// twentieth on two have it, from the thirtieth on the wrong one has, and from the fortieth on the API is away.
const KUBERNETES: &str = r#"
rule_files: [alerts.yml]
evaluation_interval: 15s
tests:
  - interval: 1m
    input_series:
      - series: 'retsu_collector_leader{instance="a"}'
        values: 1x50
      - series: 'retsu_collector_leader{instance="b"}'
        values: 0x50
      - series: 'retsu_collector_leader_label{instance="a"}'
        values: 1x9 0x9 1x9 0x9 _x11
      - series: 'retsu_collector_leader_label{instance="b"}'
        values: 0x19 1x19 _x11
      - series: 'retsu_collector_label_agreement{instance="a", state="one"}'
        values: 1x9 0x29 _x11
      - series: 'retsu_collector_label_agreement{instance="b", state="one"}'
        values: 1x4 0 1x3 0x29 _x11
      - series: 'retsu_collector_label_agreement{instance="a", state="none"}'
        values: 0x9 1x9 0x19 _x11
      - series: 'retsu_collector_label_agreement{instance="b", state="two"}'
        values: 0x19 1x9 0x9 _x11
      - series: 'retsu_collector_label_agreement{instance="b", state="wrong"}'
        values: 0x4 1 0x24 1x9 _x11
      - series: 'retsu_collector_kubernetes_denied_info{instance="a", verb="patch", resource="pods"}'
        values: _x9 1x9 stale
      - series: 'retsu_collector_label_repairs_total{instance="b", to="standby"}'
        values: 0x4 3x45
      - series: 'retsu_collector_kubernetes_requests_total{instance="a", verb="watch", resource="pods", outcome="ok"}'
        values: 1+1x39 40x11
      - series: 'retsu_collector_kubernetes_requests_total{instance="a", verb="watch", resource="pods", outcome="timeout"}'
        values: 0x4 1+1x4 5x30 6+10x11
    promql_expr_test:
      - expr: QUERY
        eval_time: 8m
        exp_samples: [{labels: '{to="standby"}', value: 3}]
      - expr: ALERTS{alertstate="firing"}
        eval_time: 5m30s
        exp_samples: []
      - expr: ALERTS{alertstate="firing"}
        eval_time: 9m
        exp_samples: []
      - expr: count by (alertname, state, verb, resource, instance) (ALERTS{alertstate="firing"})
        eval_time: 15m
        exp_samples:
          - {labels: '{alertname="RetsuCollectorLabelDisagrees", state="none"}', value: 1}
          - {labels: '{alertname="RetsuCollectorLeaderUnlabelled", instance="a"}', value: 1}
          - {labels: '{alertname="RetsuCollectorKubernetesDenied", verb="patch", resource="pods"}', value: 1}
      - expr: count by (alertname, state, verb, resource, instance) (ALERTS{alertstate="firing"})
        eval_time: 25m
        exp_samples: [{labels: '{alertname="RetsuCollectorLabelDisagrees", state="two"}', value: 1}]
      - expr: count by (alertname, state, verb, resource, instance) (ALERTS{alertstate="firing"})
        eval_time: 35m
        exp_samples:
          - {labels: '{alertname="RetsuCollectorLabelDisagrees", state="wrong"}', value: 1}
          - {labels: '{alertname="RetsuCollectorLeaderUnlabelled", instance="a"}', value: 1}
      - expr: count by (alertname, state, verb, resource, instance) (ALERTS{alertstate="firing"})
        eval_time: 50m
        exp_samples: [{labels: '{alertname="RetsuCollectorKubernetesAway", instance="a"}', value: 1}]
"#;

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The one block of code in `language` that begins with `begin`.
fn block<'a>(document: &'a str, language: &str, begin: &str) -> &'a str {
    let fence = format!("\n```{language}\n");
    let mut found = document.split(&fence).skip(1).filter(|block| block.starts_with(begin));
    let (block, _) = found.next().expect("the block is there").split_once("```").expect("the block ends");
    assert_eq!(found.next(), None, "one block of {language} begins with {begin:?}");
    block
}

/// Evaluates the alerts and the query of a document.
fn evaluate(name: &str, scenario: &str) {
    let documented = document(name);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.yml"), block(&documented, "yaml", "groups:")).unwrap();
    let scenario = scenario.replace("QUERY", block(&documented, "promql", "").trim());
    fs::write(directory.path().join("scenario.yml"), scenario).unwrap();
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "scenario.yml"]] {
        let output = Command::new(promtool()).args(arguments).current_dir(directory.path()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn the_alerts_of_replication_fire_when_they_should_and_not_before() {
    evaluate("replication.md", REPLICATION);
}

#[test]
fn the_alerts_of_kubernetes_fire_when_they_should_and_not_before() {
    evaluate("kubernetes.md", KUBERNETES);
}

/// Every metric that these documents name is one that the collector documents.
#[test]
fn the_alerts_name_metrics_that_there_are() {
    let metrics = document("metrics.md");
    for name in ["replication.md", "kubernetes.md"] {
        let documented = document(name);
        let named = documented
            .split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .filter(|word| word.starts_with("retsu_collector_") || word.starts_with("queue_messages_"));
        let unknown: Vec<_> = named.filter(|name| !metrics.contains(&format!("`{name}`"))).collect();
        assert_eq!(unknown, [""; 0], "{name}");
    }
}
