//! Nodes that are emptied, and nodes that are lost.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::DeleteParams;
use retsu_collector::election::Fault;
use serde_json::json;

use super::takeovers::other_exports;
use crate::faults::arm_loss;
use crate::postgresql::Server;
use crate::recorded::Recorded;
use crate::release::{Release, SETTLED};
use crate::stage::{Stage, ready};
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// How long nothing may happen to a leader whose node takes no new Pods.
const QUIET: Duration = Duration::from_secs(3);

/// From the command to the end of a drain.
const DRAINED: Duration = Duration::from_secs(90);

/// From an event in the collector to its Event.
const TOLD: Duration = Duration::from_secs(30);

/// What label and EndpointSlice may take beyond the declared bound.
const ROUTED: Duration = Duration::from_millis(500);

/// How often the leader's node is drained while the other replica is elsewhere.
const DRAINS: usize = 4;

/// How often a node is lost.
const LOSSES: usize = 3;

/// `kubectl cordon` changes nothing; `kubectl drain` moves the leader, and once only when the other replica is on
/// another node. It ends, also when both are on the same one: the budget lets them go one after the other.
pub(crate) async fn the_leaders_node_is_cordoned_and_drained(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's node is drained";
    const TOGETHER: &str = "the node of both replicas is drained";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::Graceful);
    let recording = release.record().await;

    let leader = release.settled(&server).await;
    recording.fault("the leader's node is cordoned", Duration::ZERO);
    stage.cordon(leader.node.as_deref().unwrap()).await;
    throughout(QUIET, "the leader of a cordoned node leads", async || {
        let labelled = release.labelled();
        let same = [&leader.name].into_iter().eq(labelled.iter().map(|replica| &replica.name));
        same && recording.exporting().iter().all(|name| *name == leader.name)
    })
    .await;
    stage.mend().await;

    for _ in 0..DRAINS {
        let leader = spread(&stage, &release, &server).await;
        recording.fault(FAULT, bound);
        drain(&stage, &release, &leader).await;
        let next = release.settled(&server).await;
        stage.mend().await;
        let events = release.events_of(&leader.name).await;
        assert!(
            events.iter().any(|(reason, note)| reason == "LeadershipLost" && note.contains("stopping")),
            "{events:?}"
        );
        assert_ne!(next.node, leader.node);
    }
    // The last one has left them on one node.
    let leader = release.settled(&server).await;
    assert!(release.replicas().iter().all(|replica| replica.node == leader.node), "{:?}", release.replicas());
    recording.fault(TOGETHER, bound);
    drain(&stage, &release, &leader).await;
    let next = release.settled(&server).await;
    assert_ne!(next.node, leader.node);
    stage.mend().await;

    let recorded = recording.finish();
    recorded.assert_kept();
    let takeovers = recorded.takeovers(FAULT);
    assert_eq!(takeovers.len(), DRAINS, "each drain is one hand-over: {takeovers:#?}");
    stage.report.lock().unwrap().add(FAULT, takeovers);
}

/// Gets the replicas onto different nodes, and gives the leader.
async fn spread(stage: &Stage, release: &Release, server: &Server) -> Replica {
    let leader = release.settled(server).await;
    let beside = release.replicas().into_iter().find(|other| other.name != leader.name && other.node == leader.node);
    if let Some(beside) = beside {
        let pods = stage.cluster.api::<Pod>(&stage.namespace);
        pods.delete(&beside.name, &DeleteParams::default()).await.unwrap();
        eventually(SETTLED, "the replica beside the leader is gone", async || release.replica(&beside.name).is_none())
            .await;
    }
    let leader = release.settled(server).await;
    let replicas = release.replicas();
    assert!(replicas.iter().all(|other| other.name == leader.name || other.node != leader.node), "{replicas:?}");
    leader
}

/// Drains the leader's node, while no more replicas are away than the budget permits.
async fn drain(stage: &Arc<Stage>, release: &Release, leader: &Replica) {
    let node = leader.node.clone().unwrap();
    stage.cordon(&node).await;
    let budgets = stage.cluster.api::<PodDisruptionBudget>(&stage.namespace);
    let (emptied, host) = (Arc::clone(stage), node.clone());
    let drain = tokio::spawn(async move {
        emptied.cluster.kubectl(&["drain", &host, "--ignore-daemonsets", "--delete-emptydir-data"]).await
    });
    eventually(DRAINED, &format!("{node} is drained"), async || {
        let budget = budgets.get(&release.fullname()).await.unwrap().status.unwrap();
        assert!(budget.current_healthy >= budget.desired_healthy, "{budget:?}");
        let there = release.replicas().iter().filter(|replica| replica.ready).count();
        assert!(there >= 1, "no replica is ready that is not being deleted");
        drain.is_finished()
    })
    .await;
    drain.await.unwrap();
    let left: Vec<_> = release.replicas().into_iter().filter(|replica| replica.node.as_ref() == Some(&node)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A node goes away without a word, for good. Neither its being found out (`NotReady`, after some 50 s) nor the deletion
/// of the Pod is waited for. When it comes back, so does its replica, as a standby.
pub(crate) async fn the_leaders_node_is_lost(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's node is lost";
    const RETURNED: &str = "the node is back";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::HostLost);
    let nodes = Api::<Node>::all(stage.cluster.client());
    let recording = release.record().await;
    let mut lost = Vec::new();
    for _ in 0..LOSSES {
        let leader = spread(&stage, &release, &server).await;
        let node = leader.node.clone().unwrap();
        let loss = arm_loss(&node).await;
        // Its container is another one when the node comes back.
        stage.ends(&leader.name);
        let began = recording.elapsed();
        recording.fault(FAULT, bound);
        stage.lose(&node, loss).await;
        other_exports(&recording, &leader.name).await;
        let mut next = None;
        eventually(SETTLED, "label and EndpointSlice are those of the next leader alone", async || {
            let endpoints = stage.watched.seen().endpoints_of(&release.leader_service());
            let labelled = release.labelled();
            let found = labelled.first().filter(|one| labelled.len() == 1 && endpoints.iter().eq([&one.name]));
            next = found.filter(|one| one.name != leader.name).cloned();
            next.is_some()
        })
        .await;
        let next = next.unwrap();
        assert_eq!(ready(&nodes.get(&node).await.unwrap()).status, "True", "the loss has been found out");
        let left = release.replica(&leader.name).unwrap();
        assert!(left.uid == leader.uid && !left.terminating, "{left:?} was not waited for");
        lost.push((leader.name.clone(), next.name.clone(), began));
        eventually(TOLD, "the take-over is told by an Event", async || release.tells_of_its_term(&next).await).await;

        recording.fault(RETURNED, Duration::ZERO);
        stage.mend().await;
        eventually(SETTLED, "the lost replica has started again", async || {
            release.replica(&leader.name).is_some_and(|replica| replica.restarts > leader.restarts && replica.ready)
        })
        .await;
        assert_eq!(release.settled(&server).await.name, next.name, "who came back leads");
    }
    let recorded = recording.finish();
    recorded.assert_kept();
    for (old, next, began) in &lost {
        assert_routed(&recorded, old, next, *began, bound + ROUTED);
    }
    let takeovers = recorded.takeovers(FAULT);
    assert!(takeovers.len() >= LOSSES, "each loss is a take-over: {takeovers:#?}");
    stage.report.lock().unwrap().add(FAULT, takeovers);
}

/// Label and EndpointSlice are those of `next` alone within `limit`.
fn assert_routed(recorded: &Recorded, old: &str, next: &str, began: Duration, limit: Duration) {
    let role = |pod: &str, is_leader: bool| {
        let mut changes = recorded.roles.iter().filter(|(at, name, _)| *at >= began && name == pod);
        changes.find(|(_, _, role)| (role.as_deref() == Some("leader")) == is_leader).map(|(at, ..)| *at)
    };
    let alone = recorded.endpoints.iter().find(|(at, pods)| *at >= began && pods.iter().eq([next])).map(|(at, _)| *at);
    for (what, at) in [
        ("the label of the lost Pod is taken off", role(old, false)),
        ("the next leader has it", role(next, true)),
        ("the EndpointSlice has the next leader alone", alone),
    ] {
        let took = at.map(|at| at.saturating_sub(began));
        assert!(took.is_some_and(|took| took <= limit), "{what} after {took:?}, and not within {limit:?}");
    }
}
