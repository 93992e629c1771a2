//! `helm upgrade`, `helm rollback` and `helm uninstall`.

use std::sync::Arc;
use std::time::Duration;

use retsu_collector::election::Fault;
use serde_json::{Value, json};

use crate::postgresql::Server;
use crate::recorded::{Recorded, TakeOver};
use crate::recording::Recording;
use crate::release::{Release, exposition, exposition_at, image};
use crate::stage::Stage;
use crate::wait::eventually;
use crate::watched::Replica;

/// What is done, as the report names it.
const IMAGE: &str = "roll-out of an image";
/// The same.
const VALUES: &str = "roll-out of values";
/// The same.
const ROLLBACK: &str = "roll-back";

/// From an Event to its being found.
const TOLD: Duration = Duration::from_secs(15);

/// From `helm uninstall` to the end of everything, graceful shutdowns included.
const GONE: Duration = Duration::from_secs(60);

/// A new image, other values and the way back cost one hand-over each. What an uninstall leaves is nothing.
pub(crate) async fn an_upgrade_a_change_of_values_and_a_rollback_hand_over_once_and_an_uninstall_leaves_nothing(
    stage: Arc<Stage>,
) {
    let server = Server::start(&stage).await;
    // Objects of the cluster have no namespace that tells them from those of another scenario.
    let name = format!("rolled-{:05x}", rand::random_range(0..0x10_0000));
    let release = Release::install_as(&stage, &name, values(15, &image().1)).await;
    let next = tag_image(&stage).await;
    let mut leader = release.settled(&server).await;
    let recording = release.record().await;
    leader = roll_out(&release, &server, &recording, IMAGE, &leader, values(15, &next)).await;
    leader = roll_out(&release, &server, &recording, VALUES, &leader, values(10, &next)).await;
    recording.fault(ROLLBACK, release.bound(Fault::Graceful));
    release.helm(&["rollback", release.name(), "1"]).await.unwrap_or_else(|complaint| panic!("{complaint}"));
    release.rolled_out().await;
    let last = release.settled(&server).await;
    assert_ne!(last.name, leader.name, "nothing was rolled back");
    handed_over(&release, &leader, &last).await;
    let deployment = format!("deployment/{}", release.fullname());
    let image_now = release.kubectl(&["get", &deployment, "--output=jsonpath={..image}"]).await;
    assert!(image_now.ends_with(&format!(":{}", image().1)), "after the roll-back the image is {image_now}");
    let recorded = recording.finish();
    recorded.assert_kept();
    assert_eq!(recorded.leaders().len(), 4, "three hand-overs have four terms: {:?}", recorded.leaders());
    for roll_out in [IMAGE, VALUES, ROLLBACK] {
        let takeovers = from_withdrawal(&recorded, roll_out);
        assert_eq!(takeovers.len(), 1, "{roll_out}: {takeovers:?}");
        stage.report.lock().unwrap().add(roll_out, takeovers);
    }

    release.helm(&["uninstall", release.name()]).await.unwrap_or_else(|complaint| panic!("{complaint}"));
    nothing_is_left(&stage, &release, &server).await;
}

/// Every object that the chart can make for the Pods.
fn values(collection_interval: u64, tag: &str) -> Value {
    json!({
        "image": {"tag": tag},
        "config": {"worker": {"queue": {"state_metrics_collector": {"collection_interval_seconds": collection_interval}}}},
        "admissionPolicy": {"enabled": true},
        "networkPolicy": {"enabled": true},
        "grafanaDashboard": {"enabled": true},
    })
}

/// Upgrades, and returns the new leader.
async fn roll_out(
    release: &Release,
    server: &Server,
    recording: &Recording,
    what: &str,
    old: &Replica,
    values: Value,
) -> Replica {
    recording.fault(what, release.bound(Fault::Graceful));
    release.upgrade(values).await;
    let new = release.settled(server).await;
    assert_ne!(new.name, old.name, "{what}: nothing was rolled out");
    handed_over(release, old, &new).await;
    new
}

/// The Events of both say so, and the ClusterIP leads to the new one.
async fn handed_over(release: &Release, old: &Replica, new: &Replica) {
    eventually(TOLD, "an Event tells of the old leader's end, and why", async || {
        let events = release.events_of(&old.name).await;
        events.iter().any(|(reason, note)| reason == "LeadershipLost" && note.contains("stopping"))
    })
    .await;
    eventually(TOLD, "an Event tells of the new leader", async || release.tells_of_its_term(new).await).await;
    let cluster_ip = release.cluster_ip().await;
    let term =
        |text: Option<String>| text?.lines().find(|line| line.starts_with("retsu_collector_term ")).map(str::to_owned);
    eventually(TOLD, "the ClusterIP leads to the new leader", async || {
        let own = term(exposition(new));
        own.is_some() && own == term(exposition_at(cluster_ip))
    })
    .await;
}

/// A roll-out ends the old leader long after it has begun: what is measured begins with the last gauges.
fn from_withdrawal(recorded: &Recorded, roll_out: &str) -> Vec<TakeOver> {
    let takeovers = recorded.takeovers(roll_out).into_iter();
    takeovers.map(|takeover| TakeOver { first_snapshot: takeover.gap, ..takeover }).collect()
}

/// Gives the image another tag on every node, until the scenario ends.
async fn tag_image(stage: &Stage) -> String {
    let (repository, tag) = image();
    let next = format!("{tag}-{}", stage.namespace.rsplit('-').next().unwrap());
    for host in stage.cluster.hosts() {
        let names = format!(
            "listed=$(ctr --namespace k8s.io images list --quiet)\n\
             old=$(grep --extended-regexp --max-count=1 '^(.*/)?{repository}:{tag}$' <<<\"$listed\")\n\
             new=${{old%:*}}:{next}\n"
        );
        // The kubelet knows an image when its runtime has heard of the tag.
        let add = format!(
            "{names}ctr --namespace k8s.io images tag $old $new\n\
             timeout 30 bash -c 'until crictl inspecti \"$1\" >/dev/null 2>&1; do sleep 0.1; done' - $new"
        );
        let remove = format!("{names}ctr --namespace k8s.io images remove $new");
        stage.disturb(&host.name, &add, &remove).await;
    }
    next
}

/// No object of the release in any namespace or of the cluster, no revision, no lock and no session.
async fn nothing_is_left(stage: &Stage, release: &Release, server: &Server) {
    let mut kinds = stage.cluster.kubectl(&["api-resources", "--verbs=list", "--output=name"]).await;
    kinds = kinds.trim().replace('\n', ",");
    let instance = format!("app.kubernetes.io/instance={}", release.name());
    let mut left = String::new();
    eventually(GONE, "the release is gone", async || {
        left = release.kubectl(&["get", &kinds, "--all-namespaces", "--output=name", "--selector", &instance]).await;
        left.is_empty()
    })
    .await;
    let revisions = ["get", "secrets,configmaps", "--output=name", "--selector=owner=helm"];
    assert_eq!(release.kubectl(&revisions).await.trim(), "");
    assert_eq!(release.helm(&["list", "--all", "--short"]).await.unwrap().trim(), "");
    eventually(GONE, "nobody has the lock, or a session", async || {
        server.holder().await.is_none() && server.sessions().await == 0
    })
    .await;
}
