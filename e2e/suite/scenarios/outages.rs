//! The database is away for longer than any bound, and the API server is.

use std::sync::Arc;
use std::time::Duration;

use retsu_collector::election::Fault;
use serde_json::json;

use super::takeovers::other_exports;
use crate::checker::Answer;
use crate::faults::{Signal, arm};
use crate::postgresql::{Server, Stop};
use crate::recording::PERIOD;
use crate::release::{Release, SETTLED};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};

/// The unit of the outages.
const MINUTE: Duration = Duration::from_secs(60);

/// For how long the API server is away.
const API_AWAY: Duration = Duration::from_secs(180);

/// How long a leader without the API server is looked at before it is asked to stop.
const WINDOW: Duration = Duration::from_secs(10);

/// From the return of the API server to label, EndpointSlice and lock in agreement: what else depends on it, such as the
/// controller of EndpointSlices, has ended meanwhile and starts again.
const API_RETURNED: Duration = Duration::from_secs(120);

/// The longest time that a kubelet lets pass before it starts a container again.
const RESTART_DELAY: Duration = Duration::from_secs(300);

/// The fence of the chart's defaults.
const FENCE: Duration = Duration::from_secs(3);

/// From a state to its alert and back: the longest `for` and window of those that are waited for, and two scrapes.
const ALERTED: Duration = Duration::from_secs(60 + 180 + 30);

/// What the leader does when a refresh or a proof fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum OnFailure {
    /// It stands by, in the same process.
    StepDown,
    /// It ends, and is started again after the kubelet's back-off.
    Exit,
}

/// The chart's default.
pub(crate) async fn a_minute_without_the_database_under_step_down(stage: Arc<Stage>) {
    database_away(stage, 1, OnFailure::StepDown).await;
}

/// The program's default.
pub(crate) async fn a_minute_without_the_database_under_exit(stage: Arc<Stage>) {
    database_away(stage, 1, OnFailure::Exit).await;
}

/// Longer than any back-off, and than alerts wait.
pub(crate) async fn ten_minutes_without_the_database_under_step_down(stage: Arc<Stage>) {
    database_away(stage, 10, OnFailure::StepDown).await;
}

/// The kubelet's back-off has reached its longest.
pub(crate) async fn ten_minutes_without_the_database_under_exit(stage: Arc<Stage>) {
    database_away(stage, 10, OnFailure::Exit).await;
}

async fn database_away(stage: Arc<Stage>, minutes: u32, on_failure: OnFailure) {
    let (policy, delay) = match on_failure {
        OnFailure::StepDown => ("step_down", Duration::ZERO),
        OnFailure::Exit => ("exit", RESTART_DELAY),
    };
    let fault = format!("the database is away for {minutes} min, {policy}");
    let server = Server::start(&stage).await;
    let collector = json!({"on_refresh_failure": policy});
    let values = json!({"config": {"worker": {"queue": {"state_metrics_collector": collector}}}});
    let release = Release::install(&stage, &server, values).await;
    if on_failure == OnFailure::Exit {
        stage.may_restart();
    }
    let bound = release.bound(Fault::ServerRestarted) + delay;
    let recording = release.record_every(PERIOD * minutes).await;
    recording.fault(&fault, bound);
    server.stop(Stop::Fast).await;
    let stopped = recording.elapsed();
    let returns = stopped + minutes * MINUTE;

    // What is scraped of replicas that mostly do not run depends on when.
    let alerts: &[_] = match (minutes, on_failure) {
        (1, _) => &[],
        (_, OnFailure::StepDown) => &["RetsuCollectorNoLeader", "RetsuCollectorCollectionFailing"],
        (_, OnFailure::Exit) => &["RetsuCollectorNoLeader"],
    };
    for alert in alerts {
        eventually(ALERTED, &format!("{alert} fires"), async || fires(&stage, &release, alert).await).await;
    }
    eventually(FENCE * 2, "the fence has passed", async || recording.elapsed() > stopped + FENCE).await;
    let left = returns.saturating_sub(recording.elapsed());
    throughout(left, "without the database nobody exports", async || recording.exporting().is_empty()).await;

    let resumed = recording.elapsed();
    server.resume_and(|| recording.over()).await;
    release.settled_within(&server, bound + SETTLED).await;
    let ended = release.replicas().iter().filter(|replica| replica.restarts > 0).count();
    assert_eq!(ended > 0, on_failure == OnFailure::Exit, "{ended} containers ended under {policy}");
    for alert in alerts {
        eventually(ALERTED, &format!("{alert} resolves"), async || !fires(&stage, &release, alert).await).await;
    }
    recording.followed().await;
    let recorded = recording.finish();
    recorded.assert_kept().assert_service_followed();
    let away = |sample: &Duration| *sample > stopped + FENCE;
    let exported = recorded.samples.iter().find(|sample| {
        matches!(sample.answer, Answer::Exporting(_)) && away(&sample.sent) && sample.received < resumed
    });
    assert_eq!(exported, None, "gauges past the fence, without a database since {stopped:?}");
    let takeover = recorded.takeovers(&fault).into_iter().next().expect("nobody has taken over");
    stage.report.lock().unwrap().add(&fault, [takeover]);
}

async fn fires(stage: &Stage, release: &Release, alert: &str) -> bool {
    stage.cluster.prometheus().firing_of(&stage.namespace, &release.fullname()).await.contains(alert)
}

/// The API server stops in the middle of everything, for everybody: it takes connections and requests, answers none, and
/// goes through those that have waited when it is continued. Its node's kubelet would start it again, and stops as well.
pub(crate) async fn three_minutes_without_the_api_server_across_a_hand_over(stage: Arc<Stage>) {
    const FAULT: &str = "the leader ends while the API server is away";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let bound = release.bound(Fault::Graceful);
    let old = release.settled(&server).await;
    let replicas = release.replicas();
    let standby = replicas.iter().find(|replica| replica.name != old.name).unwrap();
    let armed = arm(&stage, &old, Signal::Terminate).await;
    let recording = release.record().await;

    recording.fault("the API server goes away", Duration::ZERO);
    let control_plane = stage.cluster.control_plane().name.clone();
    let stop = "pkill -STOP -x kubelet\npkill -STOP -x kube-apiserver";
    stage.disturb(&control_plane, stop, "pkill -CONT -x kubelet || true\npkill -CONT -x kube-apiserver").await;
    let gone = recording.elapsed();
    throughout(WINDOW, "without the API server the leader leads on", async || {
        recording.exporting().iter().all(|name| *name == old.name)
    })
    .await;

    recording.fault(FAULT, bound);
    armed.fire().await;
    other_exports(&recording, &old.name).await;
    assert_eq!(server.holder().await, standby.address, "the standby holds the lock");
    let answer = stage.cluster.try_kubectl(&["get", "--raw=/readyz", "--request-timeout=5s"]).await;
    assert!(answer.is_err(), "the API server is not away: {answer:?}");
    let left = (gone + API_AWAY).saturating_sub(recording.elapsed());
    throughout(left, "the old leader, whose label stands, exports no more", async || {
        !recording.exporting().contains(&old.name)
    })
    .await;
    assert_eq!(server.holder().await, standby.address, "the new leader has led on without the API server");

    // Everything that has waited runs at once, on one machine: a proof may be late, and then a lease ends.
    recording.fault("the API server is there again", release.bound(Fault::BackendTerminated));
    stage.mend().await;
    eventually(API_RETURNED, "the API server answers", async || {
        stage.cluster.try_kubectl(&["get", "--raw=/readyz"]).await.is_ok()
    })
    .await;
    release.settled_within(&server, API_RETURNED).await;

    recording.followed().await;
    let recorded = recording.finish();
    recorded.assert_kept().assert_service_followed();
    let takeovers = recorded.takeovers(FAULT);
    assert_eq!(takeovers.len(), 1, "one take-over, at the hand-over: {takeovers:?}");
    stage.report.lock().unwrap().add(FAULT, takeovers);
}
