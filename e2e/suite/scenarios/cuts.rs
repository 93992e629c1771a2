//! The leader is cut from PostgreSQL, from the API server, and from both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use retsu_collector::election::Fault;
use serde_json::json;

use super::takeovers::other_exports;
use crate::checker::Answer;
use crate::faults::{cut, cut_from_port};
use crate::postgresql::Server;
use crate::recorded::Recorded;
use crate::release::{Release, answered, exposition, read, value};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// How often the cheap one is done.
const RUNS: usize = 3;

/// From the end of a cut to an answer: what was sent in vain is repeated after pauses that have grown meanwhile.
const MENDED: Duration = Duration::from_secs(60);

/// From the cut to a request that gets no answer: a leader that has nothing to say sends one a minute, and waits for it.
const NOTICED: Duration = Duration::from_secs(90);

/// How long a leader without the API server is looked at.
const WINDOW: Duration = Duration::from_secs(10);

/// From an event in the collector to its Event.
const TOLD: Duration = Duration::from_secs(30);

/// The port of the API server on its node.
const API_PORT: u16 = 6443;

/// Packets between the leader and PostgreSQL are lost, and the API server is there: the old leader takes its own label
/// away.
pub(crate) async fn the_leader_is_cut_from_postgresql(stage: Arc<Stage>) {
    const FAULT: &str = "the leader is cut from PostgreSQL";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::NetworkCut);
    let recording = release.record().await;
    for _ in 0..RUNS {
        let old = release.settled(&server).await;
        recording.fault(FAULT, bound);
        cut(&stage, &old, server.address()).await;
        other_exports(&recording, &old.name).await;
        let leader = release.settled(&server).await;
        release.becomes_standby(&old.name, TOLD).await;
        recording.fault("the way to PostgreSQL is there again", Duration::ZERO);
        stage.mend().await;
        is_standby_again(&old).await;
        assert_eq!(release.settled(&server).await.name, leader.name, "a cut that ends moves no leadership");
        eventually(TOLD, "the take-over is told by Events", async || {
            let lost = release.events_of(&old.name).await;
            // Whichever notices first: a proof without an answer, or the fence.
            let kinds = ["proof_late", "fenced"].map(|kind| format!("Leads no longer: {kind}"));
            lost.iter().any(|(reason, note)| reason == "LeadershipLost" && kinds.contains(note))
                && release.tells_of_its_term(&leader).await
        })
        .await;
    }
    recording.followed().await;
    let recorded = recording.finish();
    recorded.assert_kept().assert_service_followed();
    let takeovers = recorded.takeovers(FAULT);
    assert!(takeovers.len() >= RUNS, "each cut is a take-over: {takeovers:#?}");
    stage.report.lock().unwrap().add(FAULT, takeovers);
}

/// Without the API server the leader leads on. Without PostgreSQL as well, another one takes over, and takes the label
/// away that the old leader cannot.
pub(crate) async fn the_leader_is_cut_from_the_api_server_and_then_from_both(stage: Arc<Stage>) {
    const FAULT: &str = "the leader is cut from PostgreSQL and the API server";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::NetworkCut);
    let old = release.settled(&server).await;
    let term = read(&old, "retsu_collector_term ").await;
    let before = answered("the leader tells of its requests", || unanswered(&old)).await;
    let recording = release.record().await;

    recording.fault("the leader is cut from the API server", Duration::ZERO);
    // Only its port: what comes through the leader Service has the address of this node, too.
    let api = SocketAddr::new(stage.cluster.control_plane().address, API_PORT);
    cut_from_port(&stage, &old, api).await;
    eventually(NOTICED, "a request of the leader gets no answer", async || unanswered(&old) > Some(before)).await;
    throughout(WINDOW, "without the API server the leader leads on, with its label", async || {
        let labelled = release.labelled();
        let same = [&old.name].into_iter().eq(labelled.iter().map(|replica| &replica.name));
        let same_term = value(&old, "retsu_collector_term ").is_none_or(|now| now == term);
        same && same_term && recording.exporting().iter().all(|name| *name == old.name)
    })
    .await;
    eventually(MENDED, "the leader says that it has lost no term", async || terms_lost(&old) == Some(0)).await;

    recording.fault(FAULT, bound);
    cut(&stage, &old, server.address()).await;
    other_exports(&recording, &old.name).await;
    let leader = release.settled(&server).await;
    let role = release.replica(&old.name).and_then(|replica| replica.role);
    assert_eq!(role, None, "the label is swept, and its Pod cannot set another");
    eventually(MENDED, "the old leader says that it has lost its term", async || terms_lost(&old) == Some(1)).await;

    recording.fault("both ways are there again", Duration::ZERO);
    stage.mend().await;
    is_standby_again(&old).await;
    release.becomes_standby(&old.name, MENDED).await;
    assert_eq!(release.settled(&server).await.name, leader.name, "a cut that ends moves no leadership");
    let events = release.events_of(&old.name).await;
    let lost = events.iter().filter(|(reason, _)| reason == "LeadershipLost").count();
    assert!(lost <= 1, "the cut from the API server alone is told as a loss: {events:?}");

    recording.followed().await;
    let recorded = recording.finish();
    recorded.assert_kept().assert_service_followed();
    label_stayed_until_it_was_swept(&recorded, FAULT, &old.name, &leader.name);
    stage.report.lock().unwrap().add(FAULT, recorded.takeovers(FAULT));
}

/// Waits until a replica has seen, from now on, that another one holds the lock.
async fn is_standby_again(replica: &Replica) {
    const HELD: &str = "retsu_collector_election_attempts_total{outcome=\"held\"} ";
    let mut before = None;
    eventually(MENDED, "the old leader sees who holds the lock", async || {
        let now = value(replica, HELD);
        before = before.or(now);
        now > before && value(replica, "retsu_collector_leader ") == Some(0.0)
    })
    .await;
}

/// How many requests to the API server got no answer; `None` while the replica itself gives none.
fn unanswered(replica: &Replica) -> Option<u64> {
    let text = exposition(replica)?;
    let requests = text.lines().filter_map(|line| line.strip_prefix("retsu_collector_kubernetes_requests_total{"));
    let lost = ["timeout", "unreachable"].map(|outcome| format!("outcome=\"{outcome}\""));
    let lost = requests.filter(|line| lost.iter().any(|outcome| line.contains(outcome)));
    Some(lost.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
}

/// How many terms of a replica ended in a failure; `None` while it does not answer.
fn terms_lost(replica: &Replica) -> Option<usize> {
    Some(exposition(replica)?.matches("\nretsu_collector_terms_lost_total{").count())
}

fn label_stayed_until_it_was_swept(recorded: &Recorded, fault: &str, old: &str, new: &str) {
    let began = recorded.faults.iter().find(|injected| injected.fault == fault).unwrap().began;
    let own = recorded.samples.iter().filter(|sample| recorded.names[sample.target] == new && sample.sent >= began);
    // The gauges came after the last answer without them was asked for; when exactly, no scrape knows.
    let before = own.take_while(|sample| !matches!(sample.answer, Answer::Exporting(_)));
    let silent = before.filter(|sample| sample.answer == Answer::Silent);
    let without = silent.map(|sample| sample.sent).last().unwrap();
    let swept = recorded.roles.iter().find(|(at, pod, _)| *at >= began && pod == old);
    let (at, _, role) = swept.unwrap();
    assert_eq!(*role, None, "the old leader wrote a label through the cut");
    assert!(*at >= without, "the label was gone at {at:?}, and the new leader was still without gauges at {without:?}");
}
