//! Streaming replication between two embedded servers.
//!
//! The binaries that are embedded lack `pg_basebackup`; the copy of a cluster that was stopped in order is a base
//! backup as well.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{Server, eventually, server};

const LIMIT: Duration = Duration::from_secs(60);

/// A primary and a hot standby that streams from it, with the same databases and passwords; gone when dropped.
#[derive(Debug)]
pub(crate) struct Replication {
    /// Serves writes, on timeline 1.
    pub(crate) primary: Server,
    /// Replays what the primary writes, until it is promoted.
    pub(crate) standby: Server,
}

/// What a server says that it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ServerIdentity {
    /// The cluster, the same on a primary and its standbys.
    pub(crate) system_identifier: u64,
    /// The history of writes; a promotion starts a new one. `None` on a hot standby.
    pub(crate) timeline: Option<u32>,
}

impl Replication {
    /// Starts both, with an empty database for queues, and waits until the standby streams.
    pub(crate) async fn start(database: &str) -> Self {
        let (mut primary, mut standby) = (server().await, server().await);
        primary.queue_database(database).await;
        primary.stop().await;
        standby.stop().await;
        copy_cluster(&primary, &standby);
        primary.start().await;
        standby.start().await;
        let replication = Self { primary, standby };
        let mut observer = PgConnection::connect(&replication.primary.url("postgres")).await.unwrap();
        eventually(LIMIT, "the standby streams", async || {
            let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            sqlx::query_scalar::<_, i64>(streaming).fetch_one(&mut observer).await.unwrap() == 1
        })
        .await;
        replication
    }

    /// The URL of a database on the standby.
    pub(crate) fn standby_url(&self, database: &str) -> String {
        // The copy has the passwords of its original.
        let mut url = url::Url::parse(&self.primary.url(database)).unwrap();
        url.set_port(Some(self.standby.port())).unwrap();
        url.into()
    }

    /// Makes the standby a primary on a timeline of its own. The old primary goes on and knows nothing of it.
    pub(crate) async fn promote(&self) {
        let mut standby = PgConnection::connect(&self.standby_url("postgres")).await.unwrap();
        assert!(sqlx::query_scalar::<_, bool>("SELECT pg_promote()").fetch_one(&mut standby).await.unwrap());
    }

    /// Waits until the standby has replayed all that the primary has written so far.
    pub(crate) async fn catch_up(&self) {
        let mut primary = PgConnection::connect(&self.primary.url("postgres")).await.unwrap();
        let written: String =
            sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text").fetch_one(&mut primary).await.unwrap();
        let mut standby = PgConnection::connect(&self.standby_url("postgres")).await.unwrap();
        eventually(LIMIT, "the standby has replayed what was written", async || {
            sqlx::query_scalar("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn")
                .bind(&written)
                .fetch_one(&mut standby)
                .await
                .unwrap()
        })
        .await;
    }
}

/// The identity of the server of `url`.
pub(crate) async fn server_identity(url: &str) -> ServerIdentity {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let (system_identifier, timeline): (i64, Option<i64>) = sqlx::query_as(
        "SELECT (SELECT system_identifier FROM pg_control_system()), CASE WHEN NOT pg_is_in_recovery() \
         THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    ServerIdentity {
        system_identifier: system_identifier.cast_unsigned(),
        timeline: timeline.map(|timeline| timeline.try_into().unwrap()),
    }
}

/// Makes the stopped `standby` a standby of the stopped `primary`.
fn copy_cluster(primary: &Server, standby: &Server) {
    let own = standby.data_dir().join("postgresql.auto.conf");
    let configuration = std::fs::read_to_string(&own).unwrap();
    for entry in std::fs::read_dir(standby.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }
    // With the owner, which under root is another.
    let copied = Command::new("cp").arg("-a").arg(primary.data_dir().join(".")).arg(standby.data_dir()).status();
    assert!(copied.unwrap().success(), "the cluster is copied");
    let url = url::Url::parse(&primary.url("postgres")).unwrap();
    let source = format!(
        "host=127.0.0.1 port={} user={} password={}",
        primary.port(),
        url.username(),
        url.password().unwrap_or_default()
    );
    std::fs::write(&own, format!("{configuration}primary_conninfo = '{source}'\n")).unwrap();
    make_standby(standby.data_dir());
}

/// Makes a stopped server start as a hot standby.
pub(crate) fn make_standby(data_dir: &Path) {
    std::fs::write(data_dir.join("standby.signal"), "").unwrap();
}

#[tokio::test]
async fn a_standby_replays_the_writes_of_its_primary_until_it_is_promoted_and_both_live_on() {
    let replication = Replication::start("queues").await;
    let (primary, standby) = (replication.primary.url("queues"), replication.standby_url("queues"));
    let [before, replica] = [server_identity(&primary).await, server_identity(&standby).await];
    assert_eq!((before.timeline, replica.timeline), (Some(1), None));
    assert_eq!(before.system_identifier, replica.system_identifier);

    let mut writer = PgConnection::connect(&primary).await.unwrap();
    sqlx::query("INSERT INTO queue (name) VALUES ('replayed')").execute(&mut writer).await.unwrap();
    replication.catch_up().await;
    let mut reader = PgConnection::connect(&standby).await.unwrap();
    let names: Vec<String> = sqlx::query_scalar("SELECT name FROM queue").fetch_all(&mut reader).await.unwrap();
    assert_eq!(names, ["replayed"]);

    replication.promote().await;
    let [old, new] = [server_identity(&primary).await, server_identity(&standby).await];
    assert_eq!(old, before, "the old primary knows nothing of it");
    assert_eq!(new, ServerIdentity { timeline: Some(2), ..before });
    sqlx::query("INSERT INTO queue (name) VALUES ('elsewhere')").execute(&mut reader).await.unwrap();
    let names: Vec<String> = sqlx::query_scalar("SELECT name FROM queue").fetch_all(&mut writer).await.unwrap();
    assert_eq!(names, ["replayed"], "each has a history of its own from here on");
}
