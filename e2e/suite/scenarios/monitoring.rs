//! What the real Prometheus finds and has, and what the dashboard shows of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, PostParams};
use retsu_collector::election::Fault;
use serde_json::{Value, json};

use crate::postgresql::{QUEUES, Server};
use crate::prometheus::{EVALUATION, eventually_seen};
use crate::release::Release;
use crate::stage::Stage;

/// From a monitor to its first scrapes: the Operator writes a Secret, the kubelet brings it to Prometheus when it next
/// looks, and that may be more than a minute.
pub(crate) const DISCOVERED: Duration = Duration::from_secs(240);

/// From a fault to what the dashboard shows of it.
const SHOWN: Duration = Duration::from_secs(90);

/// For how long every evaluation has to find one series of each queue and priority.
const UNDISTURBED: Duration = Duration::from_secs(45);

/// Another lock than the chart's.
const OTHER_LOCK: (i32, i32) = (7, 1);

/// Two releases, one scraped by ServiceMonitors and one by a PodMonitor: Prometheus has every replica as a target that is
/// up, those of a larger number too, and each queue and priority has exactly one series, from its first sample on.
pub(crate) async fn every_replica_is_a_target_and_every_queue_has_one_series(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    let services = Release::install(&stage, &server, json!({})).await;
    let values = json!({
        "serviceMonitor": {"enabled": false, "leader": {"enabled": false}},
        "podMonitor": {"enabled": true},
        "config": {"worker": {"queue": {"state_metrics_collector": {"lock_key": OTHER_LOCK}}}},
    });
    let pods = Release::install_as(&stage, "pods", values).await.locking(OTHER_LOCK);
    pods.settled(&server).await;
    for release in [&services, &pods] {
        every_replica_is_up(&stage, release).await;
    }
    services.scale(3).await;
    services.settled(&server).await;
    every_replica_is_up(&stage, &services).await;

    // One series at least: that there are never two is looked at after every scenario.
    let each = format!(
        "count by (job, queue_name, message_priority) (queue_messages_ready{{namespace=\"{}\"}})",
        stage.namespace
    );
    let prometheus = stage.cluster.prometheus();
    let began = SystemTime::now();
    eventually_seen(UNDISTURBED + EVALUATION, "there was time for evaluations", async || {
        began.elapsed().is_ok_and(|elapsed| elapsed >= UNDISTURBED)
    })
    .await;
    let history = prometheus.history(&each, stage.began()).await;
    let expected = 2 * QUEUES.len() * 3;
    assert_eq!(history.len(), expected, "series: {:?}", history.iter().map(|one| &one.labels).collect::<Vec<_>>());
    let became = format!(
        "sum by (job) (retsu_collector_leader_transitions_total{{namespace=\"{}\", to=\"leader\"}})",
        stage.namespace
    );
    let became = prometheus.query(&became).await;
    for series in history {
        // A machine that is too slow for the lease changes the leader without being asked, and that is no missing series.
        let leaders = became.iter().find(|leaders| leaders.labels["job"] == series.labels["job"]).unwrap().samples[0].1;
        let times: Vec<_> = series.samples.iter().map(|(time, _)| *time).collect();
        let [first, .., last] = times[..] else { panic!("{series:?}") };
        assert!(last - first >= UNDISTURBED.as_secs_f64(), "{:?} for {} s only", series.labels, last - first);
        let gaps = times.windows(2).filter(|pair| pair[1] - pair[0] > 1.5).count();
        assert!((gaps as f64) < leaders, "{series:?} has {gaps} gaps, with {leaders} leaders");
        assert!(series.samples.iter().all(|(_, count)| *count == 1.0), "{series:?} is not one");
    }
}

/// Every query of the dashboard has data, once everything that it shows has happened. All of it is made to happen: there
/// is no query that is left out.
pub(crate) async fn every_query_of_the_dashboard_has_data(stage: Arc<Stage>) {
    const ENDED: &str = "the leader's session is ended";
    const UNREADABLE: &str = "the queues cannot be read";
    let server = Server::start(&stage).await;
    server.reader("collector").await;
    let values = json!({"database": {"existingSecret": {"name": "collector"}}});
    let release = Release::install(&stage, &server, values).await;
    every_replica_is_up(&stage, &release).await;
    let [ended, returned] = [Fault::BackendTerminated, Fault::ServerRestarted].map(|fault| release.bound(fault));
    let recording = release.record().await;
    recording.fault(ENDED, ended);
    server.terminate_sessions().await;
    let queries = Dashboard::read(&release, &stage);
    let shows = async |title: Option<&'static str>| {
        let what = format!("the dashboard shows {}", title.unwrap_or("everything"));
        let mut before = Vec::new();
        eventually_seen(SHOWN, &what, async || {
            let without = queries.without_data(&stage, title).await;
            if without != before {
                println!("{what}, but for {without:#?}");
            }
            before = without;
            before.is_empty()
        })
        .await;
    };
    shows(Some("Terms that ended in a failure")).await;
    release.settled(&server).await;
    let bindings = stage.cluster.api::<RoleBinding>(&stage.namespace);
    let mut binding = bindings.get(&release.fullname()).await.unwrap();
    bindings.delete(&release.fullname(), &DeleteParams::default()).await.unwrap();
    shows(Some("Denied")).await;
    binding.metadata.resource_version = None;
    bindings.create(&PostParams::default(), &binding).await.unwrap();

    recording.fault(UNREADABLE, returned);
    server.execute("REVOKE SELECT ON queue FROM collector").await;
    shows(Some("Failures")).await;
    server.execute("REVOKE CONNECT ON DATABASE retsu FROM collector").await;
    server.terminate_sessions().await;
    shows(Some("Refused")).await;
    server.execute("GRANT CONNECT ON DATABASE retsu TO collector; GRANT SELECT ON queue TO collector").await;
    recording.over();
    eventually_seen(SHOWN, "a replica exports again", async || !recording.exporting().is_empty()).await;
    recording.finish().assert_kept();

    shows(None).await;
}

/// Waits until the replicas of a release, and nobody else, are its targets, and all of them are up.
pub(crate) async fn every_replica_is_up(stage: &Stage, release: &Release) {
    let up = format!("up{{namespace=\"{}\", job=\"{}\", pod!=\"\"}} == 1", stage.namespace, release.fullname());
    eventually_seen(DISCOVERED, &format!("every replica of {} is a target and up", release.fullname()), async || {
        let up = stage.cluster.prometheus().query(&up).await;
        let up: BTreeSet<_> = up.into_iter().filter_map(|mut series| series.labels.remove("pod")).collect();
        up == release.replicas().into_iter().map(|replica| replica.name).collect()
    })
    .await;
}

/// The queries of the chart's dashboard, about one release.
struct Dashboard {
    queries: Vec<Query>,
}

struct Query {
    title: String,
    expression: String,
    instant: bool,
}

impl Dashboard {
    /// Reads them, with the variables as Grafana sets them.
    fn read(release: &Release, stage: &Stage) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/retsu-collector/dashboards/retsu-collector.json");
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let rate = format!("{}s", 4 * EVALUATION.as_secs());
        let job = release.fullname();
        let variables =
            [("$job", &*job), ("$namespace", &stage.namespace), ("$queue_name", ".*"), ("$__rate_interval", &rate)];
        let filled = |text: &str| {
            variables.iter().fold(text.to_owned(), |text, (variable, value)| text.replace(variable, value))
        };
        let mut queries = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = filled(target["expr"].as_str().unwrap());
                let instant = target["instant"] == true;
                queries.push(Query { title: panel["title"].as_str().unwrap().to_owned(), expression, instant });
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            let Some(values) = variable["definition"].as_str() else { continue };
            let values = values.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = values.unwrap().rsplit_once(", ").unwrap();
            let expression = filled(&format!("count by ({label}) ({series}{{{label}!=\"\"}})").replace("}{", ", "));
            queries.push(Query { title: variable["name"].as_str().unwrap().to_owned(), expression, instant: true });
        }
        assert!(queries.len() > 30, "{} queries", queries.len());
        Self { queries }
    }

    /// The queries, of one panel or of all, that have shown nothing but gaps since the scenario began.
    async fn without_data(&self, stage: &Stage, title: Option<&str>) -> Vec<String> {
        let mut without = Vec::new();
        for query in self.queries.iter().filter(|query| title.is_none_or(|title| query.title == title)) {
            let prometheus = stage.cluster.prometheus();
            let series = if query.instant {
                prometheus.query(&query.expression).await
            } else {
                prometheus.history(&query.expression, stage.began()).await
            };
            let mut values = series.iter().flat_map(|series| &series.samples).map(|(_, value)| *value);
            if !values.any(f64::is_finite) {
                without.push(format!("{}: {}", query.title, query.expression));
            }
        }
        without
    }
}
