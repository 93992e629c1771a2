//! What the collector leaves alone: neither a standby nor a leader between refreshes holds anything that a database
//! administrator would have to look for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};

use crate::support::keys::{INTERVAL, ON_FAILURE, RETRY, TIMEOUT};
use crate::support::{Collector, Config, eventually, queue_database, role, slow_down, speed_up};

const LIMIT: Duration = Duration::from_secs(30);

/// `lease.idle_session_timeout_seconds` by default.
const IDLE_SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The longest that one statement of the election may be seen at work on a busy machine.
const LONGEST_STATEMENT: f64 = 2.0;

const HELD_ONCE: &str = "retsu_collector_election_attempts_total{outcome=\"held\"} 1\n";

/// A session as another one sees it.
#[derive(Debug)]
struct Session {
    pid: i32,
    state: String,
    holds_xmin: bool,
    holds_xid: bool,
    /// Age of its transaction, in seconds.
    transaction_age: Option<f64>,
    /// Its locks; `None` when it began another statement while they were counted.
    locks: Option<i64>,
    /// When its last statement began; tells one statement from the next.
    statement: String,
}

/// The sessions of a role.
async fn sessions(observer: &PgPool, role: &str) -> Vec<Session> {
    let rows = sqlx::query(
        "SELECT pid, state, backend_xmin IS NOT NULL AS holds_xmin, backend_xid IS NOT NULL AS holds_xid, \
         extract(epoch FROM clock_timestamp() - xact_start)::float8 AS transaction_age, \
         (SELECT count(*) FROM pg_locks WHERE pg_locks.pid = a.pid) AS locks, \
         coalesce(query_start::text, '') AS statement \
         FROM pg_stat_activity a WHERE usename = $1 AND backend_type = 'client backend' AND state IS NOT NULL",
    )
    .bind(role)
    .fetch_all(observer)
    .await
    .unwrap();
    // Locks are counted after the states are read: those of a statement that began in between are none of an idle session.
    let later: Vec<(i32, String)> =
        sqlx::query_as("SELECT pid, coalesce(query_start::text, '') FROM pg_stat_activity WHERE usename = $1")
            .bind(role)
            .fetch_all(observer)
            .await
            .unwrap();
    let same = |row: &sqlx::postgres::PgRow| later.contains(&(row.get("pid"), row.get("statement")));
    let session = |row: sqlx::postgres::PgRow| Session {
        pid: row.get("pid"),
        state: row.get("state"),
        holds_xmin: row.get("holds_xmin"),
        holds_xid: row.get("holds_xid"),
        transaction_age: row.get("transaction_age"),
        locks: same(&row).then(|| row.get("locks")),
        statement: row.get("statement"),
    };
    rows.into_iter().map(session).collect()
}

/// Fails for a session that is neither idle with nothing in its hands nor in the middle of a short statement of its own.
fn assert_quiet(session: &Session, locks: i64) {
    match session.state.as_str() {
        "active" => assert!(session.transaction_age.is_none_or(|age| age < LONGEST_STATEMENT), "{session:?}"),
        "idle" => {
            assert!(!session.holds_xmin && !session.holds_xid && session.transaction_age.is_none(), "{session:?}");
            assert!(session.locks.is_none_or(|held| held <= locks), "{session:?}");
        }
        _ => panic!("a transaction is open: {session:?}"),
    }
}

fn gauge(metrics: &str, name: &str) -> u64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_holds_nothing_while_it_waits_and_keeps_its_pooled_session_through_long_waits() {
    let database = queue_database().await;
    let observer = database.pool().await;
    // A role of its own tells its sessions from all others.
    let name = format!("standby_{}", database.name());
    let url = role(&database.url(), &name).await;
    let mut holder = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(1919251571, 1901294689)").execute(&mut holder).await.unwrap();
    // A wait that outlasts the limit of the lock session: the limit must not have stayed on the session.
    let wait = IDLE_SESSION_TIMEOUT + Duration::from_secs(2);
    let standby = Collector::start(&url, |config| _ = config.set(RETRY, wait.as_secs()));
    standby.wait_until_serving(LIMIT).await;
    eventually(LIMIT, "the first attempt found the lock held, and its look for a pooler is over", async || {
        standby.metrics().await.is_some_and(|metrics| metrics.contains(HELD_ONCE))
            && sessions(&observer, &name).await.len() == 1
    })
    .await;
    let (mut backends, mut looks, mut at_work) = (HashSet::new(), 0, 0);
    let mut attempts = 0;
    eventually(4 * wait, "two more attempts found the lock held", async || {
        for session in sessions(&observer, &name).await {
            assert_quiet(&session, 0);
            looks += 1;
            at_work += u32::from(session.state == "active");
            backends.insert(session.pid);
        }
        let metrics = standby.metrics().await.unwrap();
        attempts = gauge(&metrics, "retsu_collector_election_attempts_total{outcome=\"held\"}");
        attempts >= 3
    })
    .await;
    assert_eq!(backends.len(), 1, "one session serves every attempt, and survives the waits between them");
    assert!(looks > 300 && at_work * 20 < looks, "{looks} looks, {at_work} of them at a statement");
    eventually(LIMIT, "its only connection is in the pool", async || {
        let metrics = standby.metrics().await.unwrap();
        gauge(&metrics, "retsu_collector_pool_connections") == 1
            && gauge(&metrics, "retsu_collector_pool_idle_connections") == 1
    })
    .await;
    println!("{looks} looks at a standby, {attempts} attempts, {at_work} looks in the middle of a statement");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_on_the_leader_holds_xmin_back_between_refreshes_heartbeats_and_witnesses_included() {
    let database = queue_database().await;
    let observer = database.pool().await;
    // A role of its own tells its sessions from all others.
    let name = format!("leader_{}", database.name());
    let url = role(&database.url(), &name).await;
    let leader =
        Collector::start(&url, |config| _ = config.set(INTERVAL, 6).set(TIMEOUT, 20).set(ON_FAILURE, "step_down"));
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let holder: i32 = sqlx::query_scalar(holder).fetch_one(&observer).await.unwrap();

    // A slow refresh brings the witness on.
    slow_down(&observer, 4.0).await;
    let mut witnesses = HashSet::new();
    eventually(LIMIT, "a witness proves the lock more than once during one refresh", async || {
        let sessions = sessions(&observer, &name).await;
        let refreshing = sessions.iter().any(|session| session.pid == holder && session.transaction_age > Some(0.5));
        for session in sessions.into_iter().filter(|session| session.pid != holder) {
            assert_quiet(&session, 0);
            if refreshing && !session.statement.is_empty() {
                witnesses.insert(session.statement);
            }
        }
        witnesses.len() >= 3
    })
    .await;
    speed_up(&observer).await;

    let began = Instant::now();
    let (mut looks, mut all_idle, mut heartbeats) = (0, 0, HashSet::new());
    while began.elapsed() < Duration::from_secs(8) {
        let sessions = sessions(&observer, &name).await;
        for session in &sessions {
            assert_quiet(session, i64::from(session.pid == holder));
            if session.pid == holder {
                heartbeats.insert(session.statement.clone());
            }
        }
        looks += 1;
        all_idle += u32::from(sessions.iter().all(|session| session.state == "idle"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(leader.exports().await, "it still leads");
    assert!(heartbeats.len() >= 5, "the lock session was asked {} times", heartbeats.len());
    assert!(looks > 200 && all_idle * 10 > looks * 9, "{looks} looks, all sessions idle in {all_idle}");
    println!("{looks} looks at a leader, all idle in {all_idle}, {} statements seen", heartbeats.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_created_concurrently_while_a_leader_and_a_standby_run() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let configure = |config: &mut Config| {
        config.set(RETRY, 0.1).set(INTERVAL, 0.2).set(ON_FAILURE, "step_down");
    };
    let leader = Collector::start(&database.url(), configure);
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let standby = Collector::start(&database.url(), configure);
    standby.wait_until_serving(LIMIT).await;
    for round in 0..10 {
        let began = Instant::now();
        // Waits for every transaction that might use an older snapshot.
        let create = format!("CREATE INDEX CONCURRENTLY quiet_{round} ON queue_message (enqueued_at)");
        let create = sqlx::query(AssertSqlSafe(create)).execute(&observer);
        tokio::time::timeout(LIMIT, create).await.expect("the index is there within the limit").unwrap();
        println!("CREATE INDEX CONCURRENTLY took {:?}", began.elapsed());
    }
    let valid = "SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid::regclass::text LIKE 'quiet%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(valid).fetch_one(&observer).await.unwrap(), 10);
    assert!(leader.exports().await && !standby.exports().await);
}
