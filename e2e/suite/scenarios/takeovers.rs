//! How long a take-over takes, over many of each kind.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use retsu_collector::election::Fault;
use serde_json::json;

use crate::faults::{Signal, arm};
use crate::postgresql::Server;
use crate::recorded::TakeOver;
use crate::recording::{Recording, SHORT_PERIOD};
use crate::release::Release;
use crate::stage::Stage;
use crate::wait::eventually;

/// From a fault to the next leader, whatever its bound: a miss is told by the checker, with more detail.
pub(super) const NEXT: Duration = Duration::from_secs(60);

/// How often each is done.
fn runs() -> usize {
    std::env::var("E2E_RUNS").map_or(20, |runs| runs.parse().expect("E2E_RUNS is a number"))
}

/// `kubectl delete pod` of the leader: it withdraws, hands over and ends.
pub(crate) async fn the_leaders_pod_is_deleted(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's Pod is deleted";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let pods = stage.cluster.api::<Pod>(&stage.namespace);
    let bound = release.bound(Fault::Graceful);
    let recording = release.record_every(SHORT_PERIOD).await;
    for _ in 0..runs() {
        let leader = release.settled(&server).await;
        recording.fault(FAULT, bound);
        pods.delete(&leader.name, &DeleteParams::default()).await.unwrap();
        other_exports(&recording, &leader.name).await;
    }
    release.settled(&server).await;
    let recorded = recording.finish();
    recorded.assert_kept();
    report(&stage, FAULT, recorded.takeovers(FAULT));
}

/// SIGKILL of the leader's process, from its node. Each time the Pod is a fresh one: the kubelet restarts a container
/// that ended before only after a back-off.
pub(crate) async fn the_leaders_process_is_killed(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's process is killed";
    const REPLACED: &str = "the killed replica is replaced";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let pods = stage.cluster.api::<Pod>(&stage.namespace);
    let bound = release.bound(Fault::ProcessKilled);
    let recording = release.record_every(SHORT_PERIOD).await;
    for _ in 0..runs() {
        let leader = release.settled(&server).await;
        let armed = arm(&stage, &leader, Signal::Kill).await;
        recording.fault(FAULT, bound);
        armed.fire().await;
        other_exports(&recording, &leader.name).await;
        release.settled(&server).await;
        recording.fault(REPLACED, Duration::ZERO);
        pods.delete(&leader.name, &DeleteParams::default()).await.unwrap();
        eventually(NEXT, "the killed replica is gone", async || release.replica(&leader.name).is_none()).await;
    }
    release.settled(&server).await;
    let recorded = recording.finish();
    recorded.assert_kept();
    report(&stage, FAULT, recorded.takeovers(FAULT));
}

/// Each run is a take-over.
fn report(stage: &Stage, fault: &str, takeovers: Vec<TakeOver>) {
    assert!(takeovers.len() >= runs(), "{takeovers:#?}");
    stage.report.lock().unwrap().add(fault, takeovers);
}

/// Waits until a replica exports, and `old` does not.
pub(crate) async fn other_exports(recording: &Recording, old: &str) {
    eventually(NEXT, "another replica exports", async || {
        let exporting = recording.exporting();
        !exporting.is_empty() && exporting.iter().all(|name| name != old)
    })
    .await;
}
