//! The lock session: what an attempt leaves behind, whatever becomes of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use retsu_collector::collection::Collector;
use retsu_collector::config::{self, CollectorSettings, LockKey, Sources};
use retsu_collector::database::Database;
use retsu_collector::election::{
    Attempt, AttemptError, Candidacy, Elector, Liveness, LockSession, PoolerError, Refusal, Standalone, Status, Timing,
};
use retsu_collector::exposition::{Answer, Format, Metrics, PoolState, Publication, scrape};
use sqlx::{PgPool, Row};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{self, eventually, lock_holders, make_standby, open};

const LIMIT: Duration = Duration::from_secs(30);

/// For a thousand refreshes.
const REFRESHES: Duration = Duration::from_secs(300);

/// The defaults, and some database.
fn sources() -> Sources {
    Sources { environment: vec![("PGHOST".into(), "localhost".into())], ..Sources::default() }
}

pub(crate) fn settings(refresh_timeout: Duration) -> CollectorSettings {
    let defaults = config::load(&sources()).unwrap().settings.collector;
    CollectorSettings {
        collection_interval: Duration::from_millis(1),
        leadership_retry_interval: Duration::from_millis(50),
        refresh_timeout,
        ..defaults
    }
}

async fn attempt(database: &Database) -> Result<Attempt, AttemptError> {
    attempt_within(database, LIMIT).await
}

async fn attempt_within(database: &Database, limit: Duration) -> Result<Attempt, AttemptError> {
    let mut settings = settings(limit);
    // Or else the server would free, some seconds later, what an attempt has left behind.
    settings.lease.idle_session_timeout = Duration::from_secs(600);
    LockSession::attempt(database, &Candidacy::new(&settings, "candidate", settings.lease.fence)).await
}

async fn granted(database: &Database) -> LockSession {
    match attempt(database).await.unwrap() {
        Attempt::Granted(session) => session,
        Attempt::Held { .. } => panic!("the lock is held elsewhere"),
    }
}

/// Every connection that the pool can lend out at the same time, none of which may hold the lock.
async fn assert_no_borrower_holds_the_lock(database: &Database) {
    let mut borrowed = Vec::new();
    for _ in 0..10 {
        borrowed.push(database.acquire().await.unwrap());
    }
    let mut backends = HashSet::new();
    for connection in &mut borrowed {
        let row = sqlx::query(
            "SELECT pg_backend_pid(), \
             (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())",
        )
        .fetch_one(&mut **connection)
        .await
        .unwrap();
        backends.insert(row.get::<i32, _>(0));
        assert_eq!(row.get::<i64, _>(1), 0, "a borrower of the pool holds the lock");
    }
    assert_eq!(backends.len(), 10);
}

/// Times at which to end attempts: evenly over twice the time that one takes, on this machine as busy as it is now.
struct Ends {
    /// A running mean of attempts that came to their end.
    typical: Duration,
}

impl Ends {
    async fn measured(database: &Database, observer: &PgPool) -> Self {
        let mut ends = Self { typical: Duration::ZERO };
        for _ in 0..10 {
            let began = Instant::now();
            let session = granted(database).await;
            ends.completed(began);
            session.release().await;
            was_held(observer).await;
        }
        ends
    }

    /// Takes the time of an attempt that has just been granted the lock into account.
    fn completed(&mut self, began: Instant) {
        let took = began.elapsed();
        self.typical = if self.typical.is_zero() { took } else { (7 * self.typical + took) / 8 };
    }

    fn draw(&self) -> Duration {
        rand::rng().random_range(Duration::ZERO..2 * self.typical)
    }
}

/// Waits until the lock is free. Returns whether it was held before.
async fn was_held(observer: &PgPool) -> bool {
    let mut looks = 0;
    eventually(LIMIT, "the lock is freed", async || {
        looks += 1;
        lock_holders(observer).await == 0
    })
    .await;
    looks > 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_attempt_leaves_no_lock_and_no_locked_connection() {
    let lanes = join_all((0..4).map(|_| cancel_attempts(250, 3))).await;
    let (cancelled, held) = lanes.into_iter().fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1));
    println!("{cancelled} attempts cancelled, {held} of them with the lock");
}

/// Cancels at least `wanted` attempts at one lock, at least `with_lock` of them when the server has just granted it:
/// only those prove anything. Returns how many of both.
async fn cancel_attempts(wanted: u32, with_lock: u32) -> (u32, u32) {
    let server = support::database().await;
    let (database, observer) = (open(&server.url()), server.pool().await);
    let mut ends = Ends::measured(&database, &observer).await;
    let (mut attempts, mut cancelled, mut held) = (0, 0, 0);
    while cancelled < wanted || held < with_lock {
        attempts += 1;
        assert!(attempts < 10 * wanted, "{cancelled} of {attempts} cancelled, only {held} with the lock");
        let began = Instant::now();
        match tokio::time::timeout(ends.draw(), attempt(&database)).await {
            Err(_) => {
                cancelled += 1;
                // Each time: the next attempt that wins would close the connection that a lock was left on.
                held += u32::from(was_held(&observer).await);
                if cancelled % 50 == 0 {
                    assert_no_borrower_holds_the_lock(&database).await;
                }
            }
            Ok(Ok(Attempt::Granted(session))) => {
                ends.completed(began);
                session.release().await;
            }
            // The one before it is still being closed.
            Ok(Ok(Attempt::Held { .. })) => {}
            Ok(Err(error)) => panic!("attempt {attempts}: {error}"),
        }
    }
    assert_no_borrower_holds_the_lock(&database).await;
    (cancelled, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_times_out_leaves_no_lock() {
    let server = support::database().await;
    let (database, observer) = (open(&server.url()), server.pool().await);
    let mut ends = Ends::measured(&database, &observer).await;
    let (mut in_probe, mut in_attempt) = (0, 0);
    while in_probe < 20 || in_attempt < 20 {
        let (limit, began) = (ends.draw(), Instant::now());
        match attempt_within(&database, limit).await {
            Err(AttemptError::Probe(PoolerError::Timeout(_))) => in_probe += 1,
            Err(AttemptError::Timeout(_)) => in_attempt += 1,
            Err(error) => panic!("{error}"),
            // The one before it is still being closed.
            Ok(Attempt::Held { .. }) => {}
            Ok(Attempt::Granted(session)) => {
                ends.completed(began);
                session.release().await;
            }
        }
        was_held(&observer).await;
    }
    println!("{in_probe} timed out in the probe, {in_attempt} after it; one takes {:?}", ends.typical);
    assert_no_borrower_holds_the_lock(&database).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_fails_after_the_grant_leaves_no_lock() {
    let server = support::database().await;
    let observer = server.pool().await;
    // The term is taken with it, once the lock is granted. Nothing that is missing is looked for before.
    let rename = "ALTER FUNCTION pg_catalog.pg_current_xact_id() RENAME TO pg_current_xact_id_elsewhere";
    sqlx::query(rename).execute(&observer).await.unwrap();
    let database = open(&server.url());
    for _ in 0..20 {
        let error = attempt(&database).await.unwrap_err();
        assert!(error.to_string().contains("taking a term"), "{error}");
        eventually(LIMIT, "the lock is freed", async || lock_holders(&observer).await == 0).await;
    }
    eventually(LIMIT, "every lock is freed", async || lock_holders(&observer).await == 0).await;
    assert_no_borrower_holds_the_lock(&database).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_gives_its_connection_back_and_uses_it_again() {
    let server = support::database().await;
    let (leader, standby) = (open(&server.url()), open(&server.url()));
    let session = granted(&leader).await;
    for _ in 0..5 {
        assert!(matches!(attempt(&standby).await.unwrap(), Attempt::Held { .. }));
        eventually(LIMIT, "the connection is back", async || standby.pool().num_idle() == 1).await;
        assert_eq!(standby.pool().size(), 1);
    }
    session.release().await;
    eventually(LIMIT, "the standby is granted the lock", async || {
        matches!(attempt(&standby).await.unwrap(), Attempt::Granted(_))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_leaves_nine_connections_to_others_and_moves_without_a_trace() {
    let server = support::database().await;
    let (first, second, observer) = (open(&server.url()), open(&server.url()), server.pool().await);
    let session = granted(&first).await;
    let mut others = Vec::new();
    for _ in 0..9 {
        others.push(first.acquire().await.unwrap());
    }
    assert!(first.pool().try_acquire().is_none(), "the lock session counts as one of ten");
    drop(others);
    // Dropped, not released: the way of a panic or a cancellation.
    drop(session);
    eventually(LIMIT, "the lock is freed", async || lock_holders(&observer).await == 0).await;
    let session = granted(&second).await;
    assert_no_borrower_holds_the_lock(&first).await;
    session.release().await;
    eventually(LIMIT, "the lock is freed", async || lock_holders(&observer).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_one_level_deep_after_a_thousand_ticks() {
    let server = support::database().await;
    let (database, observer) = (open(&server.url()), server.pool().await);
    retsu_collector::schema::apply(&mut observer.acquire().await.unwrap()).await.unwrap();
    let collector = Collector::new(100, LIMIT);
    let mut session = granted(&database).await;
    for _ in 0..1000 {
        collector.refresh(&mut session).await.unwrap();
    }
    assert_eq!(lock_holders(&observer).await, 1);
    let mut unlock = async || -> bool {
        sqlx::query_scalar("SELECT pg_advisory_unlock($1, $2)")
            .bind(LockKey::RETSU.0)
            .bind(LockKey::RETSU.1)
            .fetch_one(&mut *session)
            .await
            .unwrap()
    };
    assert_eq!((unlock().await, unlock().await), (true, false), "levels of the lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_grow_even_over_an_immediate_restart() {
    let mut server = support::server().await;
    let url = server.database("terms").await;
    let mut terms = Vec::new();
    for _ in 0..3 {
        let database = open(&url);
        for _ in 0..3 {
            let session = granted(&database).await;
            terms.push(session.term());
            session.release().await;
            eventually(LIMIT, "the lock is freed", async || lock_holders(database.pool()).await == 0).await;
        }
        database.pool().close().await;
        server.restart_immediate().await;
    }
    assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "{terms:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_standby_is_refused_by_name() {
    let mut server = support::server().await;
    let url = server.database("replica").await;
    server.stop().await;
    make_standby(server.data_dir());
    server.start().await;
    let error = attempt(&open(&url)).await.unwrap_err();
    assert!(matches!(error, AttemptError::Refused(Refusal::HotStandby)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_tries_the_lock_once_and_never_again_in_a_thousand_ticks() {
    let mut server = support::server().await;
    let url = server.queue_database("ticks").await;
    let observer = PgPool::connect(&url).await.unwrap();
    sqlx::query("ALTER SYSTEM SET log_statement = 'all'").execute(&observer).await.unwrap();
    server.restart_fast().await;
    let database = open(&url);
    let publication = Arc::new(Publication::default());
    let metrics =
        Arc::new(Metrics::new(LIMIT, LockKey::RETSU, [], || PoolState { size: 0, idle: 0, max: 10 }).unwrap());
    let elector = Elector {
        database,
        collector: Collector::new(100, LIMIT),
        timing: Timing::new(&settings(LIMIT)).unwrap(),
        settings: settings(LIMIT),
        publication: Arc::clone(&publication),
        metrics: Arc::clone(&metrics),
        status: watch::channel(Status::starting()).0,
        liveness: Arc::new(Liveness::new(LIMIT)),
        identity: "ticks".to_owned(),
        platform: Arc::new(Standalone::default()),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(elector.run(stop.clone()));
    let text = Answer { format: Format::Text, gzip: false };
    let refreshes = || -> u32 {
        let exposition = String::from_utf8(scrape(&metrics, &publication, text).parts.concat()).unwrap();
        let count = "queue_state_collection_duration_seconds_count{outcome=\"success\"} ";
        exposition.lines().find_map(|line| line.strip_prefix(count)?.parse().ok()).unwrap_or(0)
    };
    eventually(REFRESHES, "a thousand refreshes", async || refreshes() >= 1000).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    let log = std::fs::read_to_string(server.data_dir().join("start.log")).unwrap();
    let statements = |text: &str| log.lines().filter(|line| line.contains("LOG:") && line.contains(text)).count();
    assert!(statements("WITH column_read") >= 1000, "the log has the refreshes");
    assert_eq!(statements("pg_try_advisory_lock"), 1);
}
