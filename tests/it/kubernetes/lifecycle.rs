//! The label through the life of a term: from the start of a process over every way out of leadership.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use retsu_collector::election::ACQUIRED;
use serde_json::Value;

use super::stage::{
    LIMIT, Locks, SKIPPED, WAITING, agreement, execute, is_marker, leader_and_standby, marker, note,
    repairs_and_sweeps, terminate_holder, wait_for_leader,
};
use crate::support::keys::ON_FAILURE;
use crate::support::kubernetes::{ApiProxy, Cluster, Fault, Labels};
use crate::support::{self, History, Proxy, eventually, role, throughout};

/// How long the API takes to learn that a term is over.
const DELAY: Duration = Duration::from_millis(400);

/// How long a Pod may carry the label after it has withdrawn its gauges.
const STALE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_says_label_cost_and_term_and_a_standby_its_label_only() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (a, b) = leader_and_standby(&cluster, &database.url()).await;
    labels
        .wait("both are labelled", LIMIT, |now| {
            now.get("a").cloned().flatten().as_deref() == Some("leader")
                && now.get("b").cloned().flatten().as_deref() == Some("standby")
        })
        .await;
    let container = cluster.container("a").await.container_id.unwrap();
    eventually(LIMIT, "a names its container", async || note(&labels, "a")["container"] == *container).await;
    let carried = labels.carried();
    assert_eq!((carried["a"].cost.as_deref(), carried["b"].cost.as_deref()), (Some("100"), None));
    assert_eq!(carried["b"].term, None);
    let note = note(&labels, "a");
    let leader: Value = serde_json::from_str(&a.get("/leader").await.unwrap().1).unwrap();
    let term = format!("{}/{}", leader["term"]["timeline"], leader["term"]["number"]);
    assert_eq!((&note["term"], &note["system"]), (&Value::from(term), &leader["system_identifier"]));
    assert_eq!((&note["exported"], &note["withdrawn"]), (&true.into(), &false.into()));
    assert_eq!((&leader["label"]["state"], &leader["label"]["role"]), (&"set".into(), &"leader".into()));
    assert_eq!(b.get("/health/serving").await.unwrap().0, 200);
}

/// A way out of leadership.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Exit {
    Sigterm,
    Sigint,
    /// A refresh fails, and the process stays.
    StepDown,
    /// A refresh fails, and the process ends.
    Fail,
    /// The server ends the session.
    Terminated,
    /// The connection is gone, and the process knows.
    Cut,
    /// The server's end of the connection is gone, and the process does not know.
    Deaf,
}

impl Exit {
    /// Whether the leader still holds the lock when it withdraws.
    fn holds(self) -> bool {
        !matches!(self, Self::Terminated | Self::Cut | Self::Deaf)
    }

    fn exit_code(self) -> Option<i32> {
        match self {
            Self::Sigterm | Self::Sigint => Some(0),
            Self::Fail => Some(1),
            _ => None,
        }
    }
}

/// A leader leaves, while a standby waits and the API is slow to learn of it.
async fn leave(exit: Exit) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (url, name) = (database.url(), format!("leaves_{}", database.name()));
    let api = ApiProxy::start(cluster.server()).await;
    let (proxy, through) = Proxy::start(&role(&url, &name).await).await;
    let (labels, locks) = (Labels::watch(&cluster).await, Locks::watch(&url));
    let failure = if exit == Exit::Fail { "exit" } else { "step_down" };
    let mut a = cluster.collector_at(&api.url(), "a", &through, |config| _ = config.set(ON_FAILURE, failure)).await;
    eventually(LIMIT, "a exports", async || a.exports().await).await;
    let b = cluster.collector("b", &url, |_| {}).await;
    b.wait_for_log(WAITING, LIMIT).await;
    wait_for_leader(&labels, "a").await;
    let history = History::watch(&[&a, &b]);
    eventually(LIMIT, "a alone exports", async || history.exporting() == [0]).await;
    let pid = locks.holder().await;
    api.inject(is_marker, Fault::Delay(DELAY));

    let began = Instant::now();
    // Sessions that exist stay: only so it is sure that the other one leads next.
    execute(&url, &format!("ALTER ROLE {name} NOLOGIN")).await;
    match exit {
        Exit::Sigterm => a.sigterm(),
        Exit::Sigint => a.sigint(),
        Exit::StepDown | Exit::Fail => execute(&url, &format!("REVOKE pg_read_all_data FROM {name}")).await,
        Exit::Terminated => terminate_holder(&url).await,
        Exit::Cut => proxy.cut(),
        Exit::Deaf => proxy.deafen(),
    }
    eventually(LIMIT, "a has withdrawn", async || !a.exports().await).await;
    let withdrew = Instant::now();
    wait_for_leader(&labels, "b").await;
    let until = Instant::now();
    eventually(LIMIT, "b alone exports", async || history.exporting() == [1]).await;

    let off = labels.history().into_iter().find(|change| change.at >= began && change.pod == "a").unwrap();
    let carried = off.carried.unwrap();
    assert_eq!((carried.role.as_deref(), carried.cost.as_deref()), (Some("standby"), None), "{exit:?}");
    let marked: Value = serde_json::from_str(&carried.term.unwrap()).unwrap();
    assert_eq!((&marked["exported"], &marked["withdrawn"]), (&true.into(), &true.into()), "{exit:?}");
    labels.assert_not_stale("a", withdrew, until, STALE + DELAY);
    labels.assert_no_contradiction();
    let (marker, freed) = (marker(&api), locks.freed_by(pid).await);
    if exit.holds() {
        assert!(freed >= marker.at + DELAY, "{exit:?}: the lock was free {:?} after the marker", freed - marker.at);
        b.wait_for_log(SKIPPED, LIMIT).await;
    }
    match exit.exit_code() {
        Some(code) => assert_eq!(a.wait_exit(LIMIT).await.code(), Some(code), "{exit:?}"),
        None => {
            assert_eq!(repairs_and_sweeps(&a).await, [0; 3], "{exit:?}");
            assert_eq!(a.get("/leader").await.unwrap().0, 503);
            assert!(a.is_running());
        }
    }
    let reason = if exit.exit_code() == Some(0) { "leadership released" } else { "leadership lost" };
    assert_eq!(a.count_in_log(reason), 1, "{exit:?}");
    throughout(Duration::from_millis(300), "b alone has the label", async || labels.leaders() == ["b"]).await;
    assert_eq!(repairs_and_sweeps(&b).await, [0; 3], "{exit:?}");
    eventually(LIMIT, "lock and label agree", async || agreement(&b).await == Some("one")).await;
    assert_eq!(history.finish(&format!("{exit:?}")).overlaps(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_gives_the_lock_back_has_told_the_end_of_its_term_before() {
    join_all([Exit::Sigterm, Exit::Sigint, Exit::StepDown, Exit::Fail].map(leave)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_lost_the_lock_takes_its_label_off_within_a_second() {
    join_all([Exit::Terminated, Exit::Cut, Exit::Deaf].map(leave)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_takes_the_label_off_before_the_lock_is_free_and_hands_over_at_once() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let (mut a, b) = leader_and_standby(&cluster, &database.url()).await;
    let began = Instant::now();
    a.sigterm();
    let acquired = b.wait_for_log(ACQUIRED, LIMIT).await;
    eventually(LIMIT, "b exports", async || b.exports().await).await;
    println!("b exports {:?} after the signal", began.elapsed());
    assert!(a.wait_exit(LIMIT).await.success());
    let off = labels.history().into_iter().find(|change| change.at >= began && change.pod == "a").unwrap();
    assert!(
        off.at < acquired + Duration::from_millis(50),
        "{:?} after the grant",
        off.at.saturating_duration_since(acquired)
    );
    wait_for_leader(&labels, "b").await;
    b.wait_for_log(SKIPPED, LIMIT).await;
}
