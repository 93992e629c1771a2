//! What the tests of the label stand on: who leads, who only seems to, and who held the lock when.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use humantime::format_rfc3339_millis;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::support::kubernetes::{ApiProxy, Call, Cluster, Labels};
use crate::support::{Collector, eventually};

pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The line with which a standby says that it waits.
pub(super) const WAITING: &str = "another session holds the advisory lock";

/// The line with which a new leader says that it need not wait.
pub(super) const SKIPPED: &str = "the last holder of the lock has ended";

/// A leader `a` and a standby `b`, each in its Pod.
pub(super) async fn leader_and_standby(cluster: &Cluster, database_url: &str) -> (Collector, Collector) {
    let a = cluster.collector("a", database_url, |_| {}).await;
    eventually(LIMIT, "a exports", async || a.exports().await).await;
    let b = cluster.collector("b", database_url, |_| {}).await;
    b.wait_for_log(WAITING, LIMIT).await;
    (a, b)
}

/// Waits until exactly this Pod carries the label of the leader.
pub(super) async fn wait_for_leader(labels: &Labels, pod: &str) {
    labels
        .wait(&format!("{pod} alone has the label"), LIMIT, |now| {
            let leads = |role: &Option<String>| role.as_deref() == Some("leader");
            now.iter().all(|(name, role)| leads(role) == (name == pod)) && now.contains_key(pod)
        })
        .await;
}

/// The term annotation of a Pod, as last told; null without one.
pub(super) fn note(labels: &Labels, pod: &str) -> Value {
    labels.carried()[pod].term.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// The value of a series of a collector; `None` when it has no such series.
pub(super) async fn value(collector: &Collector, series: &str) -> Option<u64> {
    let metrics = collector.metrics().await.unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

/// How often a collector has set its label again, to `leader` and to `standby`, and taken it off others.
pub(super) async fn repairs_and_sweeps(collector: &Collector) -> [u64; 3] {
    let mut counts = [0; 3];
    for (count, series) in
        counts.iter_mut().zip(["repairs_total{to=\"leader\"}", "repairs_total{to=\"standby\"}", "sweeps_total"])
    {
        *count = value(collector, &format!("retsu_collector_label_{series}")).await.unwrap();
    }
    counts
}

/// What a collector says of lock and labels; `None` while it does not know.
pub(super) async fn agreement(collector: &Collector) -> Option<&'static str> {
    let metrics = collector.metrics().await.unwrap();
    let says = |state: &&str| metrics.contains(&format!("retsu_collector_label_agreement{{state=\"{state}\"}} 1\n"));
    let all: Vec<_> = ["none", "one", "two", "wrong"].into_iter().filter(says).collect();
    assert!(all.len() <= 1, "{all:?}");
    all.first().copied()
}

/// Whether a call tells that a term is over.
pub(super) fn is_marker(call: &Call) -> bool {
    call.verb == "patch" && String::from_utf8_lossy(&call.body).contains(r#"\"withdrawn\":true"#)
}

/// The first such call.
pub(super) fn marker(proxy: &ApiProxy) -> Call {
    proxy.calls().into_iter().find(is_marker).expect("no withdrawal was told")
}

/// Runs statements of somebody who may.
pub(super) async fn execute(url: &str, statements: &str) {
    let mut session = PgConnection::connect(url).await.unwrap();
    session.execute(sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))).await.unwrap();
    session.close().await.unwrap();
}

/// Ends the session that holds the lock in the database of `url`, from the server's side.
pub(super) async fn terminate_holder(url: &str) {
    execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .await;
}

/// A session that holds the lock, and says of itself what the test wants.
pub(super) struct Holder(PgConnection);

impl Holder {
    /// Takes the lock under an `application_name`.
    pub(super) async fn take(url: &str, application_name: &str) -> Self {
        let mut session = PgConnection::connect(url).await.unwrap();
        let name = format!("SET application_name = '{application_name}'");
        session.execute(AssertSqlSafe(name)).await.unwrap();
        session.execute("SELECT pg_advisory_lock(1919251571, 1901294689)").await.unwrap();
        Self(session)
    }

    /// Frees the lock. Returns an instant before that.
    pub(super) async fn release(mut self) -> Instant {
        let before = Instant::now();
        self.0.execute("SELECT pg_advisory_unlock_all()").await.unwrap();
        self.0.close().await.unwrap();
        before
    }
}

/// The term annotation of term `1/7`, granted ten seconds ago, that still exports.
pub(super) async fn note_of_seven(url: &str, container: Option<&str>) -> Value {
    let mut session = PgConnection::connect(url).await.unwrap();
    let system: String = sqlx::query_scalar("SELECT system_identifier::text FROM pg_control_system()")
        .fetch_one(&mut session)
        .await
        .unwrap();
    session.close().await.unwrap();
    let granted = format_rfc3339_millis(SystemTime::now() - Duration::from_secs(10)).to_string();
    json!({
        "term": "1/7", "system": system, "container": container, "granted": granted,
        "exported": true, "withdrawn": false,
    })
}

/// One look at the lock.
#[derive(Clone, Copy, Debug)]
struct Look {
    received: Instant,
    holder: Option<i32>,
}

/// Looks who holds the lock every few milliseconds, on a thread of its own.
pub(super) struct Locks {
    looks: Arc<Mutex<Vec<Look>>>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Locks {
    /// Starts to look at the lock in the database of `url`.
    pub(super) fn watch(url: &str) -> Self {
        let (looks, stop) = (Arc::<Mutex<Vec<_>>>::default(), CancellationToken::new());
        let (kept, stopped, url) = (Arc::clone(&looks), stop.clone(), url.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(stopped.run_until_cancelled(look_for_ever(&url, &kept)));
        });
        Self { looks, stop, thread: Some(thread) }
    }

    /// Waits until somebody is seen to hold the lock, and returns its process id on the server.
    pub(super) async fn holder(&self) -> i32 {
        let last = || self.looks.lock().unwrap().last().and_then(|look| look.holder);
        eventually(LIMIT, "somebody holds the lock", async || last().is_some()).await;
        last().unwrap()
    }

    /// When the lock was certainly no longer held by `pid`: waits for that.
    pub(super) async fn freed_by(&self, pid: i32) -> Instant {
        let freed = || {
            let looks = self.looks.lock().unwrap();
            let held = looks.iter().rposition(|look| look.holder == Some(pid)).unwrap();
            looks.get(held + 1).map(|look| look.received)
        };
        eventually(LIMIT, "the lock is free or held by another", async || freed().is_some()).await;
        freed().unwrap()
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn look_for_ever(url: &str, looks: &Mutex<Vec<Look>>) {
    let mut session = PgConnection::connect(url).await.unwrap();
    loop {
        let holder = sqlx::query_scalar(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .fetch_optional(&mut session)
        .await
        .unwrap();
        looks.lock().unwrap().push(Look { received: Instant::now(), holder });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
