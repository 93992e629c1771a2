//! What a real PgBouncer does to the election, in each of its modes.

mod program;
mod session_mode;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use retsu_collector::database::Database;
use retsu_collector::election::{Evidence, Path, PoolerError, probe};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::support::{PgBouncer, Proxy, Server, eventually, open, server};

/// What a probe may take on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(20);

/// Trials of each combination. `RETSU_TEST_POOLER_TRIALS=50` is the whole matrix of `make chaos`.
fn trials() -> usize {
    std::env::var("RETSU_TEST_POOLER_TRIALS").map_or(5, |trials| trials.parse().unwrap())
}

/// Connects and probes as an attempt does.
async fn probed(database: &Database, limit: Duration) -> Result<Path, PoolerError> {
    let mut candidate = database.acquire().await.unwrap();
    let outcome = probe(database, &mut candidate, limit).await;
    if outcome.is_err() {
        candidate.close_on_drop();
    }
    outcome
}

/// Clients that run short statements until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    statements: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts `clients`, each with a longest pause between two statements, in microseconds. They leave and come
    /// again after 20 statements, or else a pooler in session mode would never have a server connection for
    /// anybody else.
    async fn start(url: &str, clients: usize, longest_pause: impl Fn(usize) -> u64) -> Self {
        let (stop, statements) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients)
            .map(|client| {
                let longest_pause = longest_pause(client);
                let (url, stop, statements) = (url.to_owned(), Arc::clone(&stop), Arc::clone(&statements));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let Ok(mut client) = PgConnection::connect(&url).await else { continue };
                        for _ in 0..20 {
                            if sqlx::raw_sql("SELECT pg_sleep(0.001)").execute(&mut client).await.is_err() {
                                break;
                            }
                            statements.fetch_add(1, Ordering::Relaxed);
                            let pause = rand::rng().random_range(0..longest_pause);
                            tokio::time::sleep(Duration::from_micros(pause)).await;
                        }
                        _ = client.close().await;
                    }
                })
            })
            .collect();
        let load = Self { stop, statements, clients };
        if !load.clients.is_empty() {
            eventually(LIMIT, "the clients are at work", async || load.statements.load(Ordering::Relaxed) > 40).await;
        }
        load
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        // One that waits for a server connection gets it as soon as the others have left.
        join_all(self.clients).await;
    }
}

/// One combination of the matrix.
#[derive(Clone, Copy, Debug)]
struct Combination {
    mode: &'static str,
    pool_size: usize,
    round_robin: u8,
    clients: usize,
}

/// Probes again and again, each time with a new pool, and returns the outcomes with their times.
async fn run(server: &Server, url: &str, combination: Combination) -> Vec<(Result<Path, PoolerError>, Duration)> {
    let Combination { mode, pool_size, round_robin, clients } = combination;
    let (size, round_robin) = (pool_size.to_string(), round_robin.to_string());
    let settings = [("default_pool_size", &*size), ("server_round_robin", &*round_robin)];
    let pooler = PgBouncer::start(url, server.socket_dir(), mode, &settings).await;
    // In session mode nobody else has the backend in a pause: long ones only make everybody wait.
    let longest_pause = |client| if mode == "session" { 4000 } else { 500_u64 << (client % 8) };
    let load = Load::start(&pooler.url(), clients, longest_pause).await;
    let mut outcomes = Vec::new();
    for _ in 0..trials() {
        let database = open(&pooler.url());
        let began = Instant::now();
        outcomes.push((probed(&database, LIMIT).await, began.elapsed()));
        database.pool().close().await;
    }
    load.finish().await;
    outcomes
}

/// Every pool size, with and without round robin, idle and busy.
async fn matrix(mode: &'static str, name: &str, is_right: impl Fn(&Result<Path, PoolerError>) -> bool) {
    let server = server().await;
    let url = server.database("pooled").await;
    for pool_size in [1, 5, 20] {
        let combinations = [(0, 0), (1, 0), (0, 20), (1, 20)].map(|(round_robin, clients)| Combination {
            mode,
            pool_size,
            round_robin,
            clients,
        });
        let outcomes = join_all(combinations.map(|combination| run(&server, &url, combination))).await;
        for (combination, outcomes) in combinations.iter().zip(outcomes) {
            let slowest = outcomes.iter().map(|(_, took)| *took).max().unwrap();
            let wrong: Vec<_> = outcomes.iter().filter(|(outcome, _)| !is_right(outcome)).collect();
            println!(
                "{combination:?}: {} of {} {name}, slowest {slowest:?}",
                outcomes.len() - wrong.len(),
                outcomes.len()
            );
            assert!(wrong.is_empty(), "{combination:?}: {wrong:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_is_never_missed() {
    matrix("transaction", "refused", |outcome| matches!(outcome, Err(PoolerError::TransactionPooler(_)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_statement_mode_is_never_missed() {
    matrix("statement", "refused", |outcome| matches!(outcome, Err(PoolerError::StatementPooler(_)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_is_accepted_every_time() {
    matrix("session", "accepted", |outcome| matches!(outcome, Ok(Path::SessionPooler))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_connection_is_never_taken_for_a_pooled_one() {
    let server = server().await;
    let url = server.database("direct").await;
    let mut socket = url::Url::parse("postgres:///direct").unwrap();
    let password = url::Url::parse(&url).unwrap().password().unwrap_or_default().to_owned();
    socket
        .query_pairs_mut()
        .append_pair("host", &server.socket_dir().to_string_lossy())
        .append_pair("port", &server.port().to_string())
        .append_pair("user", "postgres")
        .append_pair("password", &password);
    let socket = socket.to_string();
    for clients in [0, 20] {
        let load = Load::start(&url, clients, |_| 4000).await;
        for (url, trials) in [(&url, trials().max(50)), (&socket, 10)] {
            for trial in 0..trials {
                let database = open(url);
                let outcome = probed(&database, LIMIT).await;
                assert!(matches!(outcome, Ok(Path::Direct)), "trial {trial} with {clients} clients: {outcome:?}");
                database.pool().close().await;
            }
        }
        load.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_without_a_server_connection_to_lend_is_named_and_not_judged() {
    let server = server().await;
    let url = server.database("exhausted").await;
    for mode in ["session", "transaction"] {
        let settings = [("default_pool_size", "1")];
        let pooler = PgBouncer::start(&url, server.socket_dir(), mode, &settings).await;
        let mut holder = PgConnection::connect(&pooler.url()).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut holder).await.unwrap();
        let database = open(&pooler.url());
        let began = Instant::now();
        let error = probed(&database, Duration::from_secs(2)).await.unwrap_err();
        assert!(matches!(error, PoolerError::Exhausted { .. }), "{mode}: {error}");
        assert!(error.to_string().contains("default_pool_size") && !error.is_refusal(), "{error}");
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        holder.close().await.unwrap();
        let outcome = probed(&database, LIMIT).await;
        match mode {
            "session" => assert!(matches!(outcome, Ok(Path::SessionPooler)), "{outcome:?}"),
            _ => assert!(matches!(outcome, Err(PoolerError::TransactionPooler(_))), "{outcome:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_moved_is_enough_to_refuse_whichever_it_is() {
    let server = server().await;
    let url = server.database("moved").await;
    let settings = [("server_round_robin", "1")];
    let pooler = PgBouncer::start(&url, server.socket_dir(), "transaction", &settings).await;
    // Several server connections, which the pooler then lends in turn.
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = PgConnection::connect(&pooler.url()).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut client).await.unwrap();
        clients.push(client);
    }
    for client in &mut clients {
        sqlx::raw_sql("COMMIT").execute(client).await.unwrap();
    }
    // The candidate is in one mode, what it is compared with in the other: neither can meet the other's backend.
    for (candidate_url, others_url) in
        [(pooler.url(), pooler.session_mode_url()), (pooler.session_mode_url(), pooler.url())]
    {
        let database = open(&candidate_url);
        let mut candidate = database.acquire().await.unwrap();
        database.pool().set_connect_options(others_url.parse().unwrap());
        let outcome = probe(&database, &mut candidate, LIMIT).await;
        let Err(PoolerError::TransactionPooler(Evidence::Moved(from, to))) = outcome else { panic!("{outcome:?}") };
        assert_ne!(from, to);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_about_a_pooler_is_not_kept_when_its_mode_changes() {
    let server = server().await;
    let url = server.database("reloaded").await;
    let mut pooler = PgBouncer::start(&url, server.socket_dir(), "session", &[]).await;
    let database = open(&pooler.url());
    let mut candidate = database.acquire().await.unwrap();
    assert_eq!(probe(&database, &mut candidate, LIMIT).await.unwrap(), Path::SessionPooler);
    pooler.reload("pool_mode", "transaction");
    eventually(LIMIT, "the very same connection is refused", async || {
        matches!(probe(&database, &mut candidate, LIMIT).await, Err(PoolerError::TransactionPooler(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_from_before_the_address_was_changed_is_neither_used_nor_kept() {
    let server = server().await;
    let url = server.database("changed").await;
    let pooler = PgBouncer::start(&url, server.socket_dir(), "transaction", &[]).await;
    let (proxy, through) = Proxy::start(&pooler.url()).await;
    let database = open(&through);
    let mut borrowed = Vec::new();
    for _ in 0..3 {
        borrowed.push(database.acquire().await.unwrap());
    }
    drop(borrowed);
    eventually(LIMIT, "three connections lie idle", async || database.pool().num_idle() == 3).await;
    // What is connected stays connected through the pooler.
    proxy.retarget(server.port());
    let error = probed(&database, LIMIT).await.unwrap_err();
    assert!(matches!(error, PoolerError::AddressChanged), "{error}");
    assert_eq!(database.pool().num_idle(), 0);
    assert_eq!(probed(&database, LIMIT).await.unwrap(), Path::Direct);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_connection_is_probed_once_and_the_probe_leaves_nothing_behind() {
    let server = server().await;
    let url = server.database("once").await;
    let mut observer = PgConnection::connect(&url).await.unwrap();
    let sessions = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
    let database = open(&url);
    let mut candidate = database.acquire().await.unwrap();
    assert_eq!(probe(&database, &mut candidate, LIMIT).await.unwrap(), Path::Direct);
    let others = async |observer: &mut PgConnection| -> i64 {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = \
             'client backend' AND pid <> pg_backend_pid()";
        sqlx::query_scalar(others).fetch_one(observer).await.unwrap()
    };
    eventually(LIMIT, "the candidate alone is left", async || others(&mut observer).await == 1).await;
    let before: i64 = sqlx::query_scalar(sessions).fetch_one(&mut observer).await.unwrap();
    for _ in 0..20 {
        assert_eq!(probe(&database, &mut candidate, LIMIT).await.unwrap(), Path::Direct);
    }
    let after: i64 = sqlx::query_scalar(sessions).fetch_one(&mut observer).await.unwrap();
    assert_eq!(after, before, "no further session was opened");
    assert_eq!(others(&mut observer).await, 1);
    drop(candidate);

    for micros in (0..40_000).step_by(500) {
        let database = open(&url);
        let mut candidate = database.acquire().await.unwrap();
        _ = tokio::time::timeout(Duration::from_micros(micros), probe(&database, &mut candidate, LIMIT)).await;
        candidate.close_on_drop();
    }
    eventually(LIMIT, "a probe that is cancelled leaves no session", async || others(&mut observer).await <= 1).await;
}
