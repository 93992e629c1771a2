//! What an answer of `/metrics` says, judged by Prometheus' own tools.

mod kubernetes;

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::read::MultiGzDecoder;
use retsu_collector::COMMIT;
use retsu_collector::clock::BootInstant;
use retsu_collector::collection::{PriorityState, QueueState, Snapshot};
use retsu_collector::config::LockKey;
use retsu_collector::election::{Fault, Lease, Role, Status, Term};
use retsu_collector::exposition::{
    Answer, AttemptOutcome, Format, KubernetesMetrics, Metrics, PoolState, Publication, Rendered, scrape,
};
use tokio_util::sync::CancellationToken;

use crate::support::{eventually, promtool, promtool_check};

pub(crate) const INTERVAL: Duration = Duration::from_secs(15);

/// Limit of everything a test waits for.
const LIMIT: Duration = Duration::from_secs(30);

const TEXT: Answer = Answer { format: Format::Text, gzip: false };
const OPENMETRICS: Answer = Answer { format: Format::OpenMetrics, gzip: false };

/// Families that only exist in connection with queue state.
const STATE_PREFIX: &str = "queue_";

pub(crate) fn metrics() -> Metrics {
    let bounds = Fault::ALL.map(|fault| (fault, Duration::from_millis(9503)));
    Metrics::new(INTERVAL, LockKey::RETSU, bounds, || PoolState { size: 3, idle: 2, max: 10 }).unwrap()
}

pub(crate) fn snapshot(names: &[&str]) -> Snapshot {
    let state = PriorityState { ready: 7, in_flight: 2, oldest_ready_age: 1.5, oldest_in_flight_age: 0.25 };
    let queue = |name: &&str| QueueState { name: (*name).to_owned(), priorities: [state; 3] };
    Snapshot {
        queues: names.iter().map(queue).collect(),
        queues_found: names.len() as u64,
        database_time: SystemTime::now(),
        sent_at: BootInstant::now(),
        duration: Duration::from_millis(12),
    }
}

/// Publishes until `fence`, under a lease that ends there as well.
fn publish(publication: &Publication, snapshot: &Snapshot, fence: BootInstant) {
    let lease = Arc::new(Lease::new(BootInstant::BOOT, fence));
    publication.publish(Rendered::new(snapshot, INTERVAL), lease, fence);
}

/// What one replica knows.
struct Replica {
    metrics: Arc<Metrics>,
    publication: Publication,
}

impl Replica {
    fn new() -> Self {
        Self { metrics: Arc::new(metrics()), publication: Publication::default() }
    }

    /// One that tells Kubernetes who leads.
    fn in_kubernetes() -> (Self, Arc<KubernetesMetrics>) {
        let kubernetes = Arc::new(KubernetesMetrics::new().unwrap());
        let metrics = Arc::new(metrics().with_kubernetes(Arc::clone(&kubernetes)));
        (Self { metrics, publication: Publication::default() }, kubernetes)
    }

    fn lead(&self, names: &[&str]) {
        self.metrics.attempt(AttemptOutcome::Acquired);
        let tenure = Some(crate::support::tenure(Term { timeline: 1, number: 734 }));
        self.metrics.role(&Status { role: Role::Leader, tenure, ..Status::starting() });
        let snapshot = snapshot(names);
        self.metrics.refresh_succeeded(&snapshot);
        publish(&self.publication, &snapshot, BootInstant::now() + Duration::from_secs(600));
    }

    fn fail(&self) {
        self.metrics.refresh_failed("timeout", Duration::from_secs(10));
        self.publication.withdraw_failed();
    }

    fn step_down(&self) {
        self.publication.withdraw();
        self.metrics.role(&Status::starting());
    }

    fn answer(&self, answer: Answer) -> String {
        let bytes = scrape(&self.metrics, &self.publication, answer).parts.concat();
        String::from_utf8(bytes).unwrap()
    }

    fn text(&self) -> String {
        self.answer(TEXT)
    }

    /// With process metrics.
    async fn sampled() -> Self {
        let replica = Self::new();
        replica.sample().await;
        replica
    }

    async fn sample(&self) {
        let shutdown = CancellationToken::new();
        let sampler = tokio::spawn({
            let (metrics, shutdown) = (Arc::clone(&self.metrics), shutdown.clone());
            async move { metrics.sample_process(Duration::from_millis(10), shutdown).await }
        });
        let sampled = async || self.text().contains("process_resident_memory_bytes ");
        eventually(LIMIT, "process metrics are there", sampled).await;
        shutdown.cancel();
        sampler.await.unwrap().unwrap();
    }
}

/// Prometheus' OpenMetrics parser, which promtool only uses for backfilling: there a sample needs a
/// timestamp, which ours have not, so each line gets one. What that parser lets pass is checked here.
fn check_openmetrics(exposition: &str) {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("exposition");
    let stamped: String = exposition
        .lines()
        .map(|line| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") })
        .collect();
    fs::write(&input, stamped).unwrap();
    let output = Command::new(promtool())
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .arg(&input)
        .arg(dir.path().join("blocks"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{exposition}", String::from_utf8_lossy(&output.stderr));

    assert!(exposition.ends_with("\n# EOF\n") && exposition.matches("# EOF").count() == 1, "{exposition}");
    for (family, kind) in types(exposition) {
        assert!(!family.ends_with("_total"), "family {family}");
        let samples: HashSet<&str> = sample_names(exposition).filter(|name| belongs(name, family)).collect();
        if kind == "counter" {
            assert_eq!(samples, HashSet::from([format!("{family}_total").as_str()]));
        }
    }
}

fn types(exposition: &str) -> impl Iterator<Item = (&str, &str)> {
    exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
}

fn sample_names(exposition: &str) -> impl Iterator<Item = &str> {
    exposition.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next())
}

fn belongs(sample: &str, family: &str) -> bool {
    sample.strip_prefix(family).is_some_and(|suffix| ["", "_total", "_bucket", "_sum", "_count"].contains(&suffix))
}

/// Both formats hold, every family is in one piece and no series is there twice.
fn check(replica: &Replica) {
    let text = replica.text();
    promtool_check(&text);
    check_openmetrics(&replica.answer(OPENMETRICS));

    let mut families = HashSet::new();
    let mut current = None;
    let mut series = HashSet::new();
    for line in text.lines() {
        if let Some((family, _)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            assert!(families.insert(family), "{family} is there twice");
            current = Some(family);
        } else if !line.starts_with('#') {
            let (name, _) = line.rsplit_once(' ').unwrap();
            assert!(series.insert(name), "{name} is there twice");
            let family = current.unwrap();
            assert!(belongs(line.split(['{', ' ']).next().unwrap(), family), "{line} in {family}");
        }
    }
}

#[tokio::test]
async fn names_help_and_type_are_pinned() {
    let replica = Replica::sampled().await;
    replica.metrics.http_request("/metrics", "200", Duration::from_millis(1));
    replica.fail();
    replica.lead(&["emails"]);
    check(&replica);
    let build = format!("commit=\"{COMMIT}\",version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let lines = |exposition: &str| -> String {
        exposition
            .lines()
            .map(|line| match line.rsplit_once(' ') {
                Some((series, _)) if !line.starts_with('#') => {
                    series.replace(&build, "commit=\"COMMIT\",version=\"VERSION\"")
                }
                _ => line.to_owned(),
            })
            .map(|line| line + "\n")
            .collect()
    };
    insta::assert_snapshot!("text", lines(&replica.text()));
    insta::assert_snapshot!("openmetrics", lines(&replica.answer(OPENMETRICS)));
}

#[test]
fn a_replica_that_never_led_has_no_queue_family() {
    let replica = Replica::new();
    replica.metrics.attempt(AttemptOutcome::Held);
    replica.metrics.role(&Status::starting());
    check(&replica);
    let text = replica.text();
    assert!(!text.contains(STATE_PREFIX) && !text.contains("exposition_bytes"), "{text}");
    assert!(!text.contains("retsu_collector_term") && !text.contains("last_refresh"), "{text}");
    assert!(text.contains("\nretsu_collector_leader 0\n"), "{text}");
    assert!(text.contains("\nretsu_collector_election_attempts_total{outcome=\"held\"} 1\n"), "{text}");
    assert!(text.contains("\nretsu_collector_leader_transitions_total{to=\"leader\"} 0\n"), "{text}");
    assert!(text.contains("\nretsu_collector_pool_connections 3\n"), "{text}");
    assert!(text.contains("\nretsu_collector_lock_info{classid=\"1919251571\",objid=\"1901294689\"} 1\n"), "{text}");
}

#[test]
fn a_leader_exports_its_term_and_every_queue() {
    let replica = Replica::new();
    replica.lead(&["a", "b"]);
    check(&replica);
    let text = replica.text();
    for line in [
        "queue_messages_ready{queue_name=\"b\",message_priority=\"LOW\"} 7",
        "queue_state_collection_success 1",
        "queue_state_collection_failures_total 0",
        "queue_state_collection_duration_seconds_bucket{outcome=\"success\",le=\"0.01\"} 0",
        "queue_state_collection_duration_seconds_bucket{outcome=\"success\",le=\"0.025\"} 1",
        "queue_state_collection_duration_seconds_count{outcome=\"failure\"} 0",
        "queue_state_queues_found 2",
        "queue_state_queues_dropped 0",
        "retsu_collector_exposition_series 24",
        "retsu_collector_leader 1",
        "retsu_collector_leader_transitions_total{to=\"leader\"} 1",
        "retsu_collector_term 734",
        "retsu_collector_term_timeline 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_failed_collection_says_so_and_exports_no_queue() {
    let replica = Replica::new();
    replica.lead(&["a"]);
    replica.fail();
    check(&replica);
    let text = replica.text();
    assert!(text.contains("queue_state_collection_success 0\n"), "{text}");
    assert!(text.contains("\nqueue_state_collection_failures_total 1\n"), "{text}");
    assert!(text.contains("\nretsu_collector_refresh_failures_total{kind=\"timeout\"} 1\n"), "{text}");
    assert!(!text.contains("queue_messages_ready") && !text.contains("snapshot_age"), "{text}");
}

#[test]
fn a_withdrawal_takes_every_state_gauge_out_of_the_very_next_answer() {
    let replica = Replica::new();
    replica.lead(&["a"]);
    assert!(replica.text().contains("queue_messages_ready{"));
    replica.step_down();
    check(&replica);
    let text = replica.text();
    let left: HashSet<&str> = types(&text).map(|(family, _)| family).filter(|f| f.starts_with(STATE_PREFIX)).collect();
    assert_eq!(
        left,
        HashSet::from(["queue_state_collection_failures_total", "queue_state_collection_duration_seconds"])
    );
    assert!(!text.contains("retsu_collector_term"), "{text}");
    assert!(text.contains("\nretsu_collector_leader_transitions_total{to=\"standby\"} 1\n"), "{text}");
}

#[test]
fn past_the_fence_nothing_is_exported_whatever_is_published() {
    let replica = Replica::new();
    let snapshot = snapshot(&["a"]);
    publish(&replica.publication, &snapshot, BootInstant::now());
    assert!(!replica.text().contains("queue_"), "{}", replica.text());
}

#[test]
fn hostile_names_stay_series_of_their_own() {
    let replica = Replica::new();
    let longest = "a.b-c_d".repeat(10)[..64].to_owned();
    replica.lead(&[&longest, "emails1", "emails", "a\"b", "a\\b", "a\nb", "a\\nb", "}{", "\u{e9}\u{1f980}", ""]);
    check(&replica);
    let text = replica.text();
    assert_eq!(text.lines().filter(|line| line.starts_with("queue_messages_ready{")).count(), 30);
    assert!(text.contains("queue_messages_ready{queue_name=\"a\\\"b\","), "{text}");
}

#[tokio::test]
async fn the_age_of_a_snapshot_grows_while_nobody_refreshes() {
    let replica = Replica::new();
    replica.lead(&["a"]);
    let age = || -> f64 {
        let text = replica.text();
        text.lines().find_map(|line| line.strip_prefix("queue_state_snapshot_age_seconds ")).unwrap().parse().unwrap()
    };
    let first = age();
    eventually(LIMIT, "the age grows", async || age() > first).await;
}

#[test]
fn a_clock_that_jumps_moves_neither_the_age_of_a_snapshot_nor_its_fence() {
    let replica = Replica::new();
    for jumped in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_secs(1_000_000)] {
        let snapshot = Snapshot { database_time: jumped, ..snapshot(&["a"]) };
        let fence = snapshot.sent_at + Duration::from_secs(60);
        replica.metrics.refresh_succeeded(&snapshot);
        publish(&replica.publication, &snapshot, fence);
        check(&replica);
        let text = replica.text();
        let value = |name: &str| -> f64 {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap().parse().unwrap()
        };
        assert!((0.0..60.0).contains(&value("queue_state_snapshot_age_seconds")));
        let since_epoch = jumped.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((value("queue_state_snapshot_timestamp_seconds") - since_epoch).abs() < 0.001);
        assert_eq!(replica.publication.fence(BootInstant::now()), Some(fence));
    }
}

#[tokio::test]
async fn compressed_answers_are_the_plain_ones() {
    let replica = Replica::sampled().await;
    for publish in [false, true] {
        if publish {
            replica.lead(&["a", "b"]);
        }
        for format in [Format::Text, Format::OpenMetrics] {
            let members = scrape(&replica.metrics, &replica.publication, Answer { format, gzip: true }).parts.concat();
            let mut unpacked = String::new();
            MultiGzDecoder::new(&*members).read_to_string(&mut unpacked).unwrap();
            let plain = replica.answer(Answer { format, gzip: false });
            let without_age = |text: &str| -> Vec<String> {
                text.lines()
                    .filter(|l| !l.starts_with("queue_state_snapshot_age_seconds "))
                    .map(str::to_owned)
                    .collect()
            };
            assert_eq!(without_age(&unpacked), without_age(&plain));
        }
    }
}

/// Where a family is present; `standby` is the exposition of a replica that never led.
fn presence(family: &str, standby: &str) -> &'static str {
    match family {
        _ if types(standby).any(|(present, _)| present == family) => "every replica",
        "retsu_collector_http_requests_total" | "retsu_collector_http_request_duration_seconds" => {
            "every replica, from the first request"
        }
        "retsu_collector_terms_lost_total" => "from the first term that ended in a failure",
        "retsu_collector_refresh_failures_total" => "from the first failed refresh",
        "retsu_collector_last_refresh_timestamp_seconds" => "from the first successful refresh",
        "queue_state_collection_failures_total" | "queue_state_collection_duration_seconds" => "from the first refresh",
        "queue_state_collection_success" => "the leader; with 0, a replica whose refresh or proof failed",
        "retsu_collector_term" | "retsu_collector_term_info" | "retsu_collector_term_timeline" => {
            "the holder of the lock, from the grant on"
        }
        "retsu_collector_election_refusal_info" => "a replica that is refused",
        "retsu_collector_kubernetes_requests_total" => "with Kubernetes, from the first request",
        "retsu_collector_kubernetes_denied_info" => "with Kubernetes, while something is refused",
        "retsu_collector_leader_label" | "retsu_collector_label_agreement" => "with Kubernetes, while known",
        "retsu_collector_label_repairs_total"
        | "retsu_collector_label_sweeps_total"
        | "retsu_collector_events_dropped_total" => "with Kubernetes",
        _ => "the leader, while it exports",
    }
}

/// The labels of a family, without `le`, as a cell of a table.
fn labels(family: &str, exposition: &str) -> String {
    let of_family = |line: &&str| line.split(['{', ' ']).next().is_some_and(|name| belongs(name, family));
    let sample = exposition.lines().filter(|line| !line.starts_with('#')).find(of_family).unwrap();
    let Some((_, labels)) = sample.split_once('{') else { return String::new() };
    let names = labels.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)).filter(|name| *name != "le");
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// `docs/metrics.md`, from what the code exports.
fn documentation(standby: &str, leader: &str) -> String {
    let mut rows: Vec<String> = types(leader)
        .map(|(family, kind)| {
            let prefix = format!("# HELP {family} ");
            let help = leader.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap();
            let (labels, present) = (labels(family, leader), presence(family, standby));
            format!("| `{family}` | {kind} | {labels} | {help} | {present} |\n")
        })
        .collect();
    rows.sort();
    format!(
        "# Metrics\n\nGenerated from the code: `UPDATE_DOCS=1 cargo test --test it metrics_md` writes this file, and a test \
         fails when it is out of date. The intervals are those of the default configuration. \"With Kubernetes\" means a replica on which \
         `kubernetes.mode` is on, or `auto` and found what it needs ([configuration.md](configuration.md#kubernetes)); on \
         others these families do not exist. With `collection: off` no family of queue state exists, nor of refreshes.\n\n\
         | metric | type | labels | meaning | present on |\n| --- | --- | --- | --- | --- |\n{}",
        rows.concat()
    )
}

#[tokio::test]
async fn metrics_md_lists_what_the_code_exports() {
    let standby = Replica::sampled().await;
    let (leader, kubernetes) = Replica::in_kubernetes();
    leader.sample().await;
    kubernetes::see_everything(&kubernetes);
    leader.metrics.http_request("/metrics", "200", Duration::from_millis(1));
    leader.metrics.refusal(Some("hot_standby"));
    leader.metrics.term_lost("proof_late");
    leader.fail();
    leader.lead(&["emails"]);
    let expected = documentation(&standby.text(), &leader.text());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap_or_default(), expected, "UPDATE_DOCS=1 writes docs/metrics.md anew");
}
