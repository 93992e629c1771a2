//! The alerts of the chart, in the real Prometheus.
//!
//! Three of them take two primaries, or a promotion, and are tested by promtool alone, with the rules of the chart
//! (`charts/retsu-collector/tests/rules`): `RetsuCollectorTwoLeaders`, `RetsuCollectorTwoPrimaries` and
//! `RetsuCollectorTimelineChanged`. Two go on for a quarter of an hour after their fault, by their rule, so that only
//! promtool sees them resolve: `RetsuCollectorFailoverBoundExceeded` and `RetsuCollectorLeaderFlapping`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Patch, PatchParams, PostParams};
use retsu_collector::election::Fault;
use serde_json::{Value, json};

use super::authority::{permitted, without_patch_of_pods};
use super::monitoring::{DISCOVERED, every_replica_is_up};
use super::takeovers::NEXT;
use crate::faults::cut;
use crate::postgresql::{Server, add_queue};
use crate::prometheus::eventually_seen;
use crate::recording::Recording;
use crate::release::{Release, read, value};
use crate::stage::Stage;
use crate::wait::eventually;
use crate::watched::ROLE;

/// From a fault to all of its alerts. The slowest waits for five minutes without a request, and then for one more.
const FIRING: Duration = Duration::from_secs(540);

/// From the end of a fault to the end of its alerts.
const RESOLVED: Duration = Duration::from_secs(150);

/// Time between two scrapes where nothing short is looked for.
const PERIOD: Duration = Duration::from_millis(250);

/// How often the leader changes: more often than `RetsuCollectorLeaderFlapping` takes.
const CHANGES: usize = 7;

/// The alerts that their rules keep for a quarter of an hour.
const KEPT: [&str; 2] = ["RetsuCollectorFailoverBoundExceeded", "RetsuCollectorLeaderFlapping"];

/// The number of the term that a replica holds.
const TERM: &str = "retsu_collector_term ";

/// Two releases never lead each other: each has a lock of its own.
const RELEASES: [(&str, (i32, i32)); 6] = [
    ("nobody", (7, 1)),
    ("unread", (7, 2)),
    ("refused", (7, 3)),
    ("away", (7, 4)),
    ("unlabelled", (7, 5)),
    ("moving", (7, 6)),
];

/// The alerts of each release's fault. No other may fire, before it or after.
const EXPECTED: [&[&str]; 6] = [
    &["NoLeader", "FailoverBoundExceeded", "ReplicasMissing"],
    &["NoLeader", "FailoverBoundExceeded", "CollectionFailing", "SnapshotStale"],
    &["NoLeader", "FailoverBoundExceeded", "CollectionFailing", "SnapshotStale", "Refused"],
    &["KubernetesAway"],
    &["LabelDisagrees", "LeaderUnlabelled", "KubernetesDenied", "GaugesMissing"],
    &["LeaderFlapping", "QueueOverflow"],
];

/// Six releases, each with a fault of its own, all at once: what fires is exactly what should.
pub(crate) async fn fire_when_their_fault_is_made_and_resolve_when_it_is_mended(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    for role in ["unread", "refused"] {
        server.reader(role).await;
    }
    let mut releases = Vec::new();
    for (name, lock_key) in RELEASES {
        releases.push(Release::install_as(&stage, name, values(name, lock_key)).await.locking(lock_key));
    }
    join_all(releases.iter().map(async |release| {
        release.settled(&server).await;
        every_replica_is_up(&stage, release).await;
        nothing_is_wrong(&stage, release).await;
    }))
    .await;
    let [nobody, _, _, away, unlabelled, moving] = &releases[..] else { unreachable!("as many as have names") };

    nobody.scale(0).await;
    server.execute("REVOKE SELECT ON queue FROM unread; REVOKE CONNECT ON DATABASE retsu FROM refused").await;
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'refused'").await;
    let control_plane = stage.cluster.control_plane().address;
    for replica in away.replicas() {
        cut(&stage, &replica, control_plane).await;
    }
    let undisturbed = [away.record_every(PERIOD).await, unlabelled.record_every(PERIOD).await];
    for (recording, release) in undisturbed.iter().zip([away, unlabelled]) {
        // Without the API the leader goes on. What a slow machine does to it in all these minutes is a pause.
        recording.fault("a pause", release.bound(Fault::PausedIdle));
    }
    let role = take_label_away(&stage, unlabelled, &server).await;
    change_leader(&server, moving).await;
    server.execute(&add_queue("videos")).await;

    for (release, expected) in releases.iter().zip(EXPECTED) {
        let expected = expected.iter().map(|alert| format!("RetsuCollector{alert}")).collect();
        fires(&stage, release, &expected).await;
    }

    stage.mend().await;
    nobody.scale(2).await;
    server.execute("GRANT SELECT ON queue TO unread; GRANT CONNECT ON DATABASE retsu TO refused").await;
    server.execute("DELETE FROM queue WHERE name = 'videos'").await;
    let roles = stage.cluster.api::<Role>(&stage.namespace);
    roles.replace(&unlabelled.fullname(), &PostParams::default(), &role).await.unwrap();
    join_all(releases.iter().map(async |release| {
        release.settled(&server).await;
        resolves(&stage, release).await;
    }))
    .await;
    undisturbed.into_iter().for_each(|recording| {
        recording.finish().assert_kept();
    });
    for (release, expected) in releases.iter().zip(EXPECTED) {
        let expected: BTreeSet<_> = expected.iter().map(|alert| format!("RetsuCollector{alert}")).collect();
        let fired = stage.cluster.prometheus().fired(&stage.namespace, &release.fullname(), stage.began()).await;
        assert_eq!(fired, expected, "{} in all", release.name());
    }
}

/// Waits until Prometheus has a leader at a step of the rules, as one that it never had is missed by none of them, and no
/// alert is even pending.
async fn nothing_is_wrong(stage: &Stage, release: &Release) {
    let of_release = format!("namespace=\"{}\", job=\"{}\"", stage.namespace, release.fullname());
    let leader = format!("max_over_time((retsu_collector_leader{{{of_release}}} == 1)[1h:15s])");
    let healthy = format!("{leader} unless on () ALERTS{{{of_release}}}");
    eventually_seen(DISCOVERED, &format!("Prometheus finds nothing wrong with {}", release.name()), async || {
        !stage.cluster.prometheus().query(&healthy).await.is_empty()
    })
    .await;
}

/// Each release has its lock; those whose role is taken something from have one of their own.
fn values(name: &str, lock_key: (i32, i32)) -> Value {
    let mut values = json!({
        "serviceMonitor": {"interval": "5s"},
        "config": {
            "worker": {"queue": {"state_metrics_collector": {"lock_key": lock_key}}},
            "telemetry": {"metrics": {"max_queues": 1000}},
        },
    });
    match name {
        "unread" | "refused" => values["database"]["existingSecret"]["name"] = json!(name),
        // As many as there are, until one is added.
        "moving" => values["config"]["telemetry"]["metrics"]["max_queues"] = json!(3),
        _ => {}
    }
    values
}

/// Takes the leader's label away, and from the release the permission to set it right. Returns the Role as it was.
async fn take_label_away(stage: &Stage, release: &Release, server: &Server) -> Role {
    let roles = stage.cluster.api::<Role>(&stage.namespace);
    let mut role = roles.get(&release.fullname()).await.unwrap();
    let leader = release.settled(server).await;
    roles.replace(&release.fullname(), &PostParams::default(), &without_patch_of_pods(&role)).await.unwrap();
    permitted(release, "patch", "pods", false).await;
    role.metadata.resource_version = None;
    let label = Patch::Merge(json!({"metadata": {"labels": {ROLE: null}}}));
    let pods = stage.cluster.api::<Pod>(&stage.namespace);
    pods.patch(&leader.name, &PatchParams::default(), &label).await.unwrap();
    role
}

/// Ends the leader's session, again and again.
async fn change_leader(server: &Server, release: &Release) {
    let bound = release.bound(Fault::BackendTerminated);
    let recording: Recording = release.record().await;
    for _ in 0..CHANGES {
        let leader = release.settled(server).await;
        let before = read(&leader, TERM).await;
        recording.fault("the leader's session is ended", bound);
        server.terminate_holder_of(release.lock_key()).await;
        eventually(NEXT, "there is another term", async || {
            release.replicas().iter().filter_map(|replica| value(replica, TERM)).any(|term| term > before)
        })
        .await;
    }
    release.settled(server).await;
    recording.finish().assert_kept();
}

/// Waits until exactly these alerts of a release fire.
async fn fires(stage: &Stage, release: &Release, expected: &BTreeSet<String>) {
    let mut firing = BTreeSet::new();
    eventually_seen(FIRING, &format!("of {} these fire: {expected:?}", release.name()), async || {
        let now = stage.cluster.prometheus().firing_of(&stage.namespace, &release.fullname()).await;
        if now != firing {
            println!("{}: {now:?}", release.name());
        }
        firing = now;
        firing == *expected
    })
    .await;
}

/// Waits until no alert of a release fires, but for those that go on by their rule.
async fn resolves(stage: &Stage, release: &Release) {
    eventually_seen(RESOLVED, &format!("the alerts of {} are resolved", release.name()), async || {
        let firing = stage.cluster.prometheus().firing_of(&stage.namespace, &release.fullname()).await;
        firing.iter().all(|alert| KEPT.contains(&&**alert))
    })
    .await;
}
