//! Embedded PostgreSQL servers and fresh databases on them.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retsu_collector::config::{DatabaseSettings, DatabaseSource};
use retsu_collector::database;
use retsu_collector::demo::server::{EmbeddedServer, NEWEST_POSTGRESQL, Ready, ServerOptions, ShutdownMode};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use tokio::sync::OnceCell;

use super::{Collector, EXECUTABLE};

/// The version that this run of the tests is for.
pub(crate) fn postgresql_version() -> String {
    std::env::var("RETSU_TEST_POSTGRESQL_VERSION").unwrap_or_else(|_| NEWEST_POSTGRESQL.to_owned())
}

/// A database of its own on the server that all tests of this process share. It is empty.
pub(crate) async fn database() -> Database {
    // Its process ends with this one: a static is never dropped, but its pipe closes.
    static SHARED: OnceCell<Server> = OnceCell::const_new();
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let shared = SHARED.get_or_init(server).await;
    let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let url = shared.database(&name).await;
    Database { name, url, socket_dir: shared.ready.socket_dir.to_string_lossy().into_owned() }
}

/// A [`database`] with the tables of a queue.
pub(crate) async fn queue_database() -> Database {
    let database = database().await;
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    retsu_collector::schema::apply(&mut connection).await.unwrap();
    database
}

/// How many sessions of the observer's database hold an advisory lock.
pub(crate) async fn lock_holders(observer: &PgPool) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_one(observer)
    .await
    .unwrap()
}

/// Waits until a collector has ended, and fails the test as soon as anybody holds an advisory lock meanwhile.
pub(crate) async fn exit_without_lock(collector: &mut Collector, observer: &PgPool, limit: Duration) -> ExitStatus {
    super::eventually(limit, "the process has ended", async || {
        assert_eq!(lock_holders(observer).await, 0, "the lock is taken");
        !collector.is_running()
    })
    .await;
    // What was taken at the very end would still be there.
    assert_eq!(lock_holders(observer).await, 0, "the lock is taken");
    collector.wait_exit(limit).await
}

/// The pool of the program itself, of ten connections.
pub(crate) fn open(url: &str) -> database::Database {
    database::Database::open(DatabaseSettings {
        source: DatabaseSource::Url(url.to_owned().into()),
        max_connections: 10,
        acquire_timeout: Duration::from_secs(20),
    })
    .unwrap()
}

/// Creates a role that may read everything on the server of `url`, and returns the same URL for it. The name must be
/// unique on that server.
pub(crate) async fn role(url: &str, name: &str) -> String {
    let mut superuser = PgConnection::connect(url).await.unwrap();
    let create = format!("CREATE ROLE {name} LOGIN PASSWORD 'role' IN ROLE pg_read_all_data");
    superuser.execute(AssertSqlSafe(create)).await.unwrap();
    superuser.close().await.unwrap();
    let mut url = url::Url::parse(url).unwrap();
    url.set_username(name).unwrap();
    url.set_password(Some("role")).unwrap();
    url.into()
}

/// Makes a refresh of queue state wait for `seconds` every time it reads the queues, which it does twice, until
/// [`speed_up`].
pub(crate) async fn slow_down(observer: &PgPool, seconds: f32) {
    // One message is one transaction: no refresh meets a database without the relation.
    let statements = format!(
        "ALTER TABLE queue RENAME TO queue_fast; \
         CREATE VIEW queue AS SELECT * FROM queue_fast WHERE (SELECT pg_sleep({seconds}) IS NOT NULL)"
    );
    observer.execute(sqlx::raw_sql(AssertSqlSafe(statements))).await.unwrap();
}

/// Ends what [`slow_down`] began.
pub(crate) async fn speed_up(observer: &PgPool) {
    observer.execute("DROP VIEW queue; ALTER TABLE queue_fast RENAME TO queue").await.unwrap();
}

/// A server of its own, for tests that restart it.
pub(crate) async fn server() -> Server {
    let options = ServerOptions::new(postgresql_version());
    let (process, ready) = EmbeddedServer::start(Path::new(EXECUTABLE), &options).await.unwrap();
    Server { process, ready }
}

/// One database.
#[derive(Debug)]
pub(crate) struct Database {
    name: String,
    url: String,
    socket_dir: String,
}

impl Database {
    /// Its name, unique in this process.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, as the superuser over TCP.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Its URL, as the superuser over the Unix socket.
    pub(crate) fn socket_url(&self) -> String {
        let url = url::Url::parse(&self.url).unwrap();
        let (user, password, port) = (url.username(), url.password().unwrap(), url.port().unwrap());
        format!("postgres://{user}:{password}@{}:{port}/{}", self.socket_dir.replace('/', "%2F"), self.name)
    }

    /// The directory of the server's Unix socket.
    pub(crate) fn socket_dir(&self) -> &str {
        &self.socket_dir
    }

    /// A pool of the superuser.
    pub(crate) async fn pool(&self) -> PgPool {
        PgPoolOptions::new().max_connections(5).connect(&self.url).await.unwrap()
    }
}

/// A server that a test may stop and start; gone when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    process: EmbeddedServer,
    ready: Ready,
}

impl Server {
    /// The URL of a database that exists.
    pub(crate) fn url(&self, database: &str) -> String {
        let mut url = url::Url::parse(&self.ready.url).unwrap();
        url.set_path(database);
        url.into()
    }

    /// Creates a database and returns its URL.
    pub(crate) async fn database(&self, name: &str) -> String {
        let mut connection = PgConnection::connect(&self.ready.url).await.unwrap();
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        self.url(name)
    }

    /// Creates a database with the tables of a queue and returns its URL.
    pub(crate) async fn queue_database(&self, name: &str) -> String {
        let url = self.database(name).await;
        let mut connection = PgConnection::connect(&url).await.unwrap();
        retsu_collector::schema::apply(&mut connection).await.unwrap();
        url
    }

    /// Its data directory.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.ready.data_dir
    }

    /// The directory of its Unix socket.
    pub(crate) fn socket_dir(&self) -> &Path {
        &self.ready.socket_dir
    }

    /// Process id of the postmaster.
    pub(crate) fn pid(&self) -> u32 {
        self.ready.pid
    }

    /// TCP port on the loopback addresses; stays the same over every restart.
    pub(crate) fn port(&self) -> u16 {
        self.ready.port
    }

    /// Ends every session in order and starts again.
    pub(crate) async fn restart_fast(&mut self) {
        self.ready = self.process.restart(ShutdownMode::Fast).await.unwrap();
    }

    /// Stops as in a crash and starts with recovery.
    pub(crate) async fn restart_immediate(&mut self) {
        self.ready = self.process.restart(ShutdownMode::Immediate).await.unwrap();
    }

    /// Stops; the data stay.
    pub(crate) async fn stop(&mut self) {
        self.process.stop(ShutdownMode::Fast).await.unwrap();
    }

    /// Starts again after [`stop`](Self::stop).
    pub(crate) async fn start(&mut self) {
        self.ready = self.process.resume().await.unwrap();
    }

    /// Ends it and waits until it and its directory are gone.
    pub(crate) async fn end(self) {
        self.process.end().await.unwrap();
    }
}

#[tokio::test]
async fn every_database_is_fresh_and_reachable_over_tcp_and_the_socket() {
    let (first, second) = (database().await, database().await);
    assert_ne!(first.name(), second.name());
    let over_socket = format!("{}?host={}", first.url(), first.socket_dir());
    for (url, local) in [(first.url(), false), (over_socket, true)] {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let (name, socket): (String, bool) =
            sqlx::query_as("SELECT current_database()::text, inet_server_addr() IS NULL")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!((name.as_str(), socket), (first.name(), local));
    }
}

#[tokio::test]
async fn a_server_keeps_port_and_data_over_every_kind_of_restart() {
    let mut server = server().await;
    let url = server.database("kept").await;
    let (port, mut pid) = (server.port(), server.pid());
    for step in 0..3 {
        match step {
            0 => server.restart_fast().await,
            1 => server.restart_immediate().await,
            _ => {
                server.stop().await;
                assert!(PgConnection::connect(&url).await.is_err());
                server.start().await;
            }
        }
        assert_eq!(server.port(), port);
        assert_ne!(std::mem::replace(&mut pid, server.pid()), server.pid());
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await.unwrap();
        assert!(version.starts_with(postgresql_version().split('.').next().unwrap()), "{version}");
    }
    let directory = server.ready.data_dir.parent().unwrap().to_owned();
    assert!(directory.exists());
    server.end().await;
    assert!(!directory.exists());
}

#[tokio::test]
async fn dropping_a_server_in_the_middle_of_its_start_leaves_nothing() {
    let options = ServerOptions::new(postgresql_version());
    let process = EmbeddedServer::spawn(Path::new(EXECUTABLE), &options).unwrap();
    super::eventually(LIMIT, "the server has begun", async || options.data_dir.exists()).await;
    drop(process);
    super::eventually(LIMIT, "its directory is gone", async || !options.data_dir.exists()).await;
    let mark = options.data_dir.to_string_lossy().into_owned();
    super::eventually(LIMIT, "its processes are gone", async || super::processes_with(&mark).is_empty()).await;
}

const LIMIT: Duration = Duration::from_secs(60);
