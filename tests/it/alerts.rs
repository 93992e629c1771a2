//! The alerts and the query of `docs/replication.md`, evaluated by the real Prometheus.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::promtool;

/// Two replicas: at first one leads; from the tenth minute on each leads on a primary of its own; from the twentieth on
/// both say the same of two servers, as with a clone; from the thirtieth on neither leads, and one is refused.
const SCENARIO: &str = r#"
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

/// The one block of code in `language`.
fn block<'a>(document: &'a str, language: &str) -> &'a str {
    let (_, rest) = document.split_once(&format!("```{language}\n")).expect("the block is there");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_alerts_of_the_documentation_fire_when_they_should_and_not_before() {
    let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/replication.md");
    let documented = fs::read_to_string(documented).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.yml"), block(&documented, "yaml")).unwrap();
    let scenario = SCENARIO.replace("QUERY", block(&documented, "promql").trim());
    fs::write(directory.path().join("scenario.yml"), scenario).unwrap();
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "scenario.yml"]] {
        let output = Command::new(promtool()).args(arguments).current_dir(directory.path()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success(), "{said}");
    }
}

/// Every metric that the alerts name is one that the collector documents.
#[test]
fn the_alerts_name_metrics_that_there_are() {
    let read = |file| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file)).unwrap();
    let (documented, metrics) = (read("replication.md"), read("metrics.md"));
    let named = documented
        .split(|c: char| !c.is_ascii_lowercase() && c != '_')
        .filter(|word| word.starts_with("retsu_collector_") || word.starts_with("queue_messages_"));
    let unknown: Vec<_> = named.filter(|name| !metrics.contains(&format!("`{name}`"))).collect();
    assert_eq!(unknown, [""; 0]);
}
