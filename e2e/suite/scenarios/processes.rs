//! The leader's process is stopped, or ends, while its Pod stays.

use std::sync::Arc;
use std::time::Duration;

use retsu_collector::election::Fault;
use serde_json::json;

use super::takeovers::other_exports;
use crate::faults::{Signal, arm, arm_out_of_memory, signal};
use crate::postgresql::Server;
use crate::recorded::Recorded;
use crate::release::{Release, read, value};
use crate::stage::Stage;
use crate::wait::eventually;

/// From one refresh to the next, with the chart's interval of 15 s.
const REFRESHED: Duration = Duration::from_secs(20);

/// From the gauges of a new leader to label and EndpointSlice that are its alone. The kubelet ends a process that does
/// not answer after 20 s.
const ROUTED: Duration = Duration::from_secs(5);

/// From the end of a process to what the kubelet says of it.
const TOLD: Duration = Duration::from_secs(30);

/// The time of what the leader exports.
const SNAPSHOT: &str = "queue_state_snapshot_timestamp_seconds ";

/// SIGSTOP from the node, and SIGCONT when another replica leads.
pub(crate) async fn the_leaders_process_is_stopped_and_continued(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's process is stopped";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::PausedIdle);
    let recording = release.record().await;
    let leader = release.settled(&server).await;
    let stop = arm(&stage, &leader, Signal::Stop).await;
    // Right after a refresh no other one runs, and PostgreSQL sees an idle session.
    let last = read(&leader, SNAPSHOT).await;
    eventually(REFRESHED, "the leader refreshes", async || value(&leader, SNAPSHOT).is_some_and(|next| next > last))
        .await;
    recording.fault(FAULT, bound);
    stop.fire().await;
    other_exports(&recording, &leader.name).await;
    eventually(ROUTED, "label and EndpointSlice leave the stopped process", async || {
        let labelled = release.labelled();
        let endpoints = stage.watched.seen().endpoints_of(&release.leader_service());
        matches!(&labelled[..], [one] if one.name != leader.name && endpoints.iter().eq([&one.name]))
    })
    .await;
    signal(&stage, &leader, Signal::Continue).await;
    eventually(TOLD, "the continued process says that it has lost its term", async || {
        let events = release.events_of(&leader.name).await;
        events.iter().any(|(reason, note)| reason == "LeadershipLost" && !note.contains("stopping"))
    })
    .await;
    let next = release.settled(&server).await;
    assert_ne!(next.name, leader.name, "the continued process leads");
    release.becomes_standby(&leader.name, TOLD).await;
    let recorded = recording.finish();
    recorded.assert_kept();
    let takeovers = recorded.takeovers(FAULT);
    assert!(!takeovers.is_empty(), "the stop is no take-over");
    stage.report.lock().unwrap().add(FAULT, takeovers);
}

/// SIGKILL, and no memory left: the kubelet starts the container again in the same Pod, which still has the label.
pub(crate) async fn the_leaders_container_ends_and_starts_again(stage: Arc<Stage>) {
    const KILLED: &str = "the leader's process is killed, in a Pod that stays";
    const OUT_OF_MEMORY: &str = "the leader runs out of memory";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::ProcessKilled);
    let recording = release.record().await;
    let mut ends = Vec::new();
    for (fault, reason) in [(KILLED, "Error"), (OUT_OF_MEMORY, "OOMKilled")] {
        let leader = release.settled(&server).await;
        let armed = match fault {
            KILLED => arm(&stage, &leader, Signal::Kill).await,
            _ => arm_out_of_memory(&stage, &leader).await,
        };
        let began = recording.elapsed();
        recording.fault(fault, bound);
        armed.fire().await;
        other_exports(&recording, &leader.name).await;
        eventually(TOLD, "the container was started again", async || {
            release.replica(&leader.name).is_some_and(|replica| replica.restarts == leader.restarts + 1)
        })
        .await;
        let path = "--output=jsonpath={.status.containerStatuses[0].lastState.terminated.reason}";
        assert_eq!(release.kubectl(&["get", "pod", &leader.name, path]).await, reason);
        let next = release.settled(&server).await;
        assert_ne!(next.name, leader.name, "it leads again");
        release.becomes_standby(&leader.name, TOLD).await;
        ends.push((fault, leader.name, began, recording.elapsed()));
    }
    let recorded = recording.finish();
    recorded.assert_kept();
    for (fault, pod, began, settled) in &ends {
        assert_not_led_to(&recorded, pod, *began, *settled);
        // Short of memory, the old leader may lose a term and lead again before it ends.
        let takeovers = recorded.takeovers(fault).into_iter().filter(|takeover| takeover.to != *pod);
        stage.report.lock().unwrap().add(fault, takeovers);
    }
}

/// From the end of its process to the agreement of everything, a Pod has lost its label before another one has it, and
/// the leader Service leads to it no more. One watch tells of both labels, in their order; of labels and gauges it could
/// not be told from here which was first.
fn assert_not_led_to(recorded: &Recorded, pod: &str, began: Duration, settled: Duration) {
    let during = |at: Duration| (began..settled).contains(&at);
    let roles: Vec<_> = recorded.roles.iter().filter(|(at, ..)| during(*at)).collect();
    let (_, first, role) = roles.first().unwrap();
    assert!(first == pod && role.as_deref() != Some("leader"), "another one than {pod} has the label first: {roles:?}");
    let endpoints: Vec<_> = recorded.endpoints.iter().filter(|(at, _)| during(*at)).collect();
    assert!(endpoints.iter().all(|(_, pods)| !pods.contains(pod)), "the leader Service leads to {pod}: {endpoints:?}");
}
