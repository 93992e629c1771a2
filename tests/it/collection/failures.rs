//! Each failure says what and where.

use retsu_collector::collection::CollectError;

use super::*;

impl Fixture {
    async fn failure(&mut self) -> CollectError {
        self.collector.refresh(&mut self.session).await.expect_err("the refresh fails")
    }
}

/// Fails a refresh after `change` and returns the kind and the text of the error.
async fn failure_after(change: &str) -> (&'static str, String) {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) VALUES ('emails')").await;
    // The statement is prepared and has run before: the failure must not depend on a first use.
    fixture.refresh().await;
    fixture.run(change).await;
    let error = fixture.failure().await;
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn drift_names_queue_priority_count_and_value() {
    let drift = |ready: i64, in_flight: i64| {
        format!("INSERT INTO queue_priority_state_shard SELECT id, 2, 5, {ready}, {in_flight} FROM queue")
    };
    let (kind, text) = failure_after(&drift(-3, 0)).await;
    assert_eq!(kind, "drift");
    assert_eq!(text, "the rollup has drifted: ready of queue \"emails\", priority MEDIUM, is -3");
    let (kind, text) = failure_after(&drift(7, i64::MIN)).await;
    assert_eq!(kind, "drift");
    assert!(text.ends_with("in_flight of queue \"emails\", priority MEDIUM, is -9223372036854775808"), "{text}");
    let expired = "ALTER TABLE queue_message DISABLE TRIGGER queue_message_rollup_insert;
         INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
         SELECT id, '', 3, now() - interval '1 day', now() - interval '1 hour' FROM queue";
    let (_, text) = failure_after(expired).await;
    assert!(text.ends_with("ready of queue \"emails\", priority HIGH, is -1"), "{text}");
}

#[tokio::test]
async fn a_sum_past_64_bits_fails_with_the_server_s_code() {
    let (kind, text) = failure_after(
        "INSERT INTO queue_priority_state_shard
         SELECT id, 2, n, 9223372036854775807, 0 FROM queue, generate_series(0, 1) AS n",
    )
    .await;
    assert_eq!(kind, "database");
    assert!(text.starts_with("SQLSTATE 22003"), "{text}");
}

#[tokio::test]
async fn missing_tables_and_columns_are_named() {
    for (change, kind, text) in [
        ("DROP TABLE queue CASCADE", "missing_table", "table queue does not exist"),
        ("ALTER TABLE queue_message RENAME TO moved", "missing_table", "table queue_message does not exist"),
        ("DROP TABLE queue_priority_state_shard", "missing_table", "table queue_priority_state_shard does not exist"),
        ("SET search_path TO pg_catalog", "missing_table", "table queue does not exist"),
        ("ALTER TABLE queue DROP max_delivery_attempts", "missing_column", "column queue.max_delivery_attempts does"),
        ("ALTER TABLE queue_message DROP expires_at", "missing_column", "column queue_message.expires_at does"),
        (
            "ALTER TABLE queue_priority_state_shard RENAME ready_count TO ready",
            "missing_column",
            "column queue_priority_state_shard.ready_count does",
        ),
    ] {
        let (found, message) = failure_after(change).await;
        assert_eq!(found, kind, "{change}: {message}");
        assert!(message.starts_with(text), "{change}: {message}");
    }
}

#[tokio::test]
async fn a_missing_privilege_names_the_table() {
    let mut fixture = Fixture::new().await;
    let role = format!("reader_{}", std::process::id());
    fixture.run(&format!("CREATE ROLE {role}; GRANT SELECT ON queue, queue_message TO {role}; SET ROLE {role}")).await;
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "missing_privilege");
    assert_eq!(error.to_string(), "no privilege SELECT on queue_priority_state_shard (column in_flight_count)");
    let column = format!(
        "RESET ROLE; GRANT SELECT ON queue_priority_state_shard TO {role}; REVOKE SELECT ON queue_message FROM {role};
         GRANT SELECT (queue_id, priority, state, enqueued_at, expires_at, available_after) ON queue_message TO {role};
         SET ROLE {role}"
    );
    fixture.run(&column).await;
    assert_eq!(fixture.failure().await.to_string(), "no privilege SELECT on queue_message (column delivery_attempts)");
    fixture
        .run(&format!("RESET ROLE; GRANT SELECT (delivery_attempts) ON queue_message TO {role}; SET ROLE {role}"))
        .await;
    fixture.refresh().await;
    fixture.run(&format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Both types that the server refuses in this query and those that it would coerce into another meaning.
#[tokio::test]
async fn a_wrong_column_type_names_column_and_types() {
    for (change, text) in [
        (
            "ALTER TABLE queue_message ALTER expires_at TYPE timestamp",
            "column queue_message.expires_at has type timestamp without time zone, expected timestamp with time zone",
        ),
        (
            "ALTER TABLE queue_message ALTER enqueued_at TYPE timestamp",
            "column queue_message.enqueued_at has type timestamp without time zone, expected timestamp with time zone",
        ),
        (
            "ALTER TABLE queue_priority_state_shard ALTER ready_count DROP DEFAULT, ALTER ready_count TYPE text",
            "column queue_priority_state_shard.ready_count has type text, expected bigint",
        ),
        (
            "ALTER TABLE queue_priority_state_shard ALTER in_flight_count TYPE double precision",
            "column queue_priority_state_shard.in_flight_count has type double precision, expected bigint",
        ),
        (
            "ALTER TABLE queue DROP CONSTRAINT queue_name_check, ALTER name TYPE integer USING 1",
            "column queue.name has type integer, expected text",
        ),
        (
            "ALTER TABLE queue ALTER name TYPE varchar(64)",
            "column queue.name has type character varying, expected text",
        ),
    ] {
        let (kind, message) = failure_after(change).await;
        assert_eq!((kind, &*message), ("column_type", text), "{change}");
    }
}

#[tokio::test]
async fn two_queues_of_one_name_fail_and_never_merge() {
    let (kind, text) =
        failure_after("ALTER TABLE queue DROP CONSTRAINT queue_name_key; INSERT INTO queue (name) VALUES ('emails')")
            .await;
    assert_eq!((kind, &*text), ("duplicate_queue", "two queues have the name \"emails\""));
}

#[tokio::test]
async fn a_queue_without_a_name_fails_as_unreadable() {
    let (kind, _) =
        failure_after("ALTER TABLE queue ALTER name DROP NOT NULL; INSERT INTO queue (name) VALUES (NULL)").await;
    assert_eq!(kind, "decode");
}

/// A session of its own that holds queue_message as an ALTER TABLE would.
async fn lock_messages(fixture: &Fixture) -> PgConnection {
    let mut other = PgConnection::connect(&fixture.database.url()).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE queue_message").execute(&mut other).await.unwrap();
    other
}

#[tokio::test]
async fn a_table_locked_elsewhere_is_given_up_long_before_the_refresh_timeout() {
    let mut fixture = Fixture::new().await;
    let mut other = lock_messages(&fixture).await;
    let started = std::time::Instant::now();
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "lock_timeout", "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
}

#[tokio::test]
async fn a_statement_slower_than_the_timeout_is_given_up_by_the_client() {
    let mut fixture = Fixture::new().await;
    fixture.run("SET lock_timeout = 0; SET statement_timeout = 0").await;
    let _other = lock_messages(&fixture).await;
    let limit = Duration::from_millis(200);
    let error = Collector::new(BUDGET, limit).refresh(&mut fixture.session).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    assert_eq!(error.to_string(), "no complete result within the refresh timeout of 200ms");
}

#[tokio::test]
async fn a_statement_that_the_server_cancels_is_told_from_a_timeout_of_ours() {
    let mut fixture = Fixture::new().await;
    fixture.run("SET lock_timeout = 0; SET statement_timeout = '100ms'").await;
    let _other = lock_messages(&fixture).await;
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "cancelled", "{error}");
}

#[tokio::test]
async fn a_terminated_backend_is_a_lost_connection_idle_or_at_work() {
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ '^WITH column_read'";
    let mut fixture = Fixture::new().await;
    fixture.run("SET lock_timeout = 0").await;
    let pool = fixture.database.pool().await;
    let other = lock_messages(&fixture).await;
    let ended = tokio::spawn({
        let pool = pool.clone();
        async move {
            while sqlx::query(terminate).fetch_optional(&pool).await.unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        }
    });
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "connection_lost", "at work: {error}");
    ended.await.unwrap();
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "connection_lost", "already gone: {error}");
    drop(other);

    let mut fixture = Fixture::new().await;
    fixture.refresh().await;
    let pool = fixture.database.pool().await;
    assert!(sqlx::query(terminate).fetch_optional(&pool).await.unwrap().is_some());
    let error = fixture.failure().await;
    assert_eq!(error.kind(), "connection_lost", "idle: {error}");
}

#[tokio::test]
async fn the_settings_of_the_session_are_those_the_query_wants() {
    let mut fixture = Fixture::new().await;
    for (name, expected) in [
        ("jit", "off"),
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_nestloop", "off"),
        ("max_parallel_workers_per_gather", "0"),
        ("lock_timeout", "2s"),
        ("statement_timeout", "30s"),
    ] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut fixture.session).await.unwrap();
        assert_eq!(value, expected, "{name}");
    }
    // A limit shorter than the lock timeout shortens it; one of no time at all switches nothing off.
    let collector = Collector::new(BUDGET, Duration::from_millis(700));
    collector.prepare(&mut fixture.session).await.unwrap();
    let value: String = sqlx::query_scalar("SHOW lock_timeout").fetch_one(&mut fixture.session).await.unwrap();
    assert_eq!(value, "700ms");
}
