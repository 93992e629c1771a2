//! The facts about session mode that `docs/poolers.md` states.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::support::{PgBouncer, eventually, lock_holders, pooled, throughout};

const LIMIT: Duration = Duration::from_secs(30);
const LOCK: &str = "SELECT pg_advisory_lock(1919251571, 1901294689)";

async fn locked(pooler: &PgBouncer) -> PgConnection {
    let mut session = PgConnection::connect(&pooler.url()).await.unwrap();
    session.execute(LOCK).await.unwrap();
    session
}

#[tokio::test]
async fn the_start_up_parameter_of_the_driver_must_be_ignored_by_the_pooler() {
    let (_database, _observer, pooler) = pooled("session", &[("ignore_startup_parameters", "")]).await;
    let error = PgConnection::connect(&pooler.url()).await.unwrap_err().to_string();
    assert!(error.contains("unsupported startup parameter: extra_float_digits"), "{error}");
    let options: PgConnectOptions = pooler.url().parse().unwrap();
    PgConnection::connect_with(&options.clone().extra_float_digits(None)).await.unwrap();
    let options = options.extra_float_digits(None).options([("geqo", "off")]);
    let error = PgConnection::connect_with(&options).await.unwrap_err().to_string();
    assert!(error.contains("unsupported startup parameter: options"), "{error}");
}

#[tokio::test]
async fn the_lock_is_freed_by_the_reset_query_and_by_nothing_else() {
    let (_database, observer, pooler) = pooled("session", &[]).await;
    locked(&pooler).await.close().await.unwrap();
    eventually(LIMIT, "DISCARD ALL frees it", async || lock_holders(&observer).await == 0).await;
    drop(locked(&pooler).await);
    eventually(LIMIT, "also after a socket that just closed", async || lock_holders(&observer).await == 0).await;

    let (_database, observer, pooler) = pooled("session", &[("server_reset_query", "")]).await;
    locked(&pooler).await.close().await.unwrap();
    throughout(Duration::from_secs(2), "the server connection keeps it", async || lock_holders(&observer).await == 1)
        .await;
    // Whoever is lent that connection has the lock already.
    let mut stranger = PgConnection::connect(&pooler.url()).await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(sqlx::query_scalar::<_, i64>(held).fetch_one(&mut stranger).await.unwrap(), 1);
}

#[tokio::test]
async fn the_limit_of_an_idle_session_acts_through_the_pooler() {
    let (_database, observer, pooler) = pooled("session", &[]).await;
    let mut session = locked(&pooler).await;
    session.execute("SET idle_session_timeout = '500ms'").await.unwrap();
    eventually(LIMIT, "the lock is free", async || lock_holders(&observer).await == 0).await;
    session.execute("SELECT 1").await.unwrap_err();
}

#[tokio::test]
async fn tcp_settings_are_those_between_pooler_and_server() {
    let (_database, _observer, pooler) = pooled("session", &[]).await;
    let mut session = PgConnection::connect(&pooler.url()).await.unwrap();
    for (name, value) in [("tcp_user_timeout", "2500"), ("tcp_keepalives_idle", "1"), ("tcp_keepalives_count", "2")] {
        session.execute(AssertSqlSafe(format!("SET {name} = '{value}'"))).await.unwrap();
        let shown: String =
            sqlx::query_scalar(AssertSqlSafe(format!("SHOW {name}"))).fetch_one(&mut session).await.unwrap();
        assert_eq!(shown, value, "carried by the server's end");
    }
    let client: i32 = sqlx::query_scalar("SELECT inet_client_port()").fetch_one(&mut session).await.unwrap();
    let lent = pooler.log().lines().filter(|line| line.contains(&format!(":{client}"))).count();
    assert!(lent > 0, "port {client} is none of the pooler's: {}", pooler.log());
}
