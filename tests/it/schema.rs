//! The schema: applied once, compared afterwards; loaded with the same data for the same seed.

use retsu_collector::schema::{self, Applied, Load, LoadError, SchemaError};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use crate::{oracle, support};

async fn session(database: &support::Database) -> PgConnection {
    PgConnection::connect(&database.url()).await.unwrap()
}

#[tokio::test]
async fn applying_twice_changes_nothing() {
    let database = support::database().await;
    let mut session = session(&database).await;
    assert_eq!(schema::apply(&mut session).await.unwrap(), Applied::Created);
    assert_eq!(schema::apply(&mut session).await.unwrap(), Applied::Unchanged);
    sqlx::raw_sql("CREATE INDEX more ON queue_message (enqueued_at)").execute(&mut session).await.unwrap();
    assert_eq!(schema::apply(&mut session).await.unwrap(), Applied::Unchanged, "further indexes are accepted");
    let schemas: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname ~ 'retsu'")
        .fetch_one(&mut session)
        .await
        .unwrap();
    assert_eq!(schemas, 0, "the comparison leaves nothing behind");
}

#[tokio::test]
async fn two_at_once_create_it_once() {
    let database = support::database().await;
    let (mut first, mut second) = (session(&database).await, session(&database).await);
    let (first, second) = tokio::join!(schema::apply(&mut first), schema::apply(&mut second));
    let mut outcomes = [first.unwrap(), second.unwrap()];
    outcomes.sort_by_key(|outcome| *outcome == Applied::Unchanged);
    assert_eq!(outcomes, [Applied::Created, Applied::Unchanged]);
}

#[tokio::test]
async fn tables_of_another_shape_are_refused_and_left_alone() {
    let changes = [
        ("column", "queue.owner", "ALTER TABLE queue ADD owner text"),
        ("column", "queue_message.payload", "ALTER TABLE queue_message ALTER payload DROP NOT NULL"),
        (
            "column",
            "queue_priority_state_shard.ready_count",
            "ALTER TABLE queue_priority_state_shard ALTER ready_count TYPE integer",
        ),
        ("constraint", "queue_name_key", "ALTER TABLE queue DROP CONSTRAINT queue_name_key"),
        ("index", "queue_message_ready_oldest_idx", "DROP INDEX queue_message_ready_oldest_idx"),
        (
            "trigger",
            "queue_message_rollup_insert",
            "ALTER TABLE queue_message DISABLE TRIGGER queue_message_rollup_insert",
        ),
        (
            "trigger",
            "second",
            "CREATE TRIGGER second AFTER TRUNCATE ON queue_message EXECUTE FUNCTION queue_message_rollup_truncate()",
        ),
        ("column", "queue_message.available_after", "DROP TABLE queue_message"),
        (
            "function",
            "queue_message_rollup_truncate",
            "CREATE OR REPLACE FUNCTION queue_message_rollup_truncate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        ),
    ];
    let database = support::database().await;
    let mut session = session(&database).await;
    for (expected_kind, expected_object, change) in changes {
        sqlx::raw_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public").execute(&mut session).await.unwrap();
        schema::apply(&mut session).await.unwrap();
        sqlx::raw_sql(change).execute(&mut session).await.unwrap();
        match schema::apply(&mut session).await {
            Err(SchemaError::Shape { kind, object, .. }) => {
                assert_eq!((&*kind, &*object), (expected_kind, expected_object));
            }
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_search_path_without_a_schema_is_refused() {
    let database = support::database().await;
    let mut session = session(&database).await;
    sqlx::raw_sql("SET search_path TO nowhere").execute(&mut session).await.unwrap();
    assert!(matches!(schema::apply(&mut session).await, Err(SchemaError::NoSchema)));
}

#[tokio::test]
async fn a_load_is_the_same_for_the_same_seed_and_reports_its_progress() {
    let mut digests = Vec::new();
    for seed in [7, 7, u64::MAX] {
        let database = support::database().await;
        let mut session = session(&database).await;
        schema::apply(&mut session).await.unwrap();
        let load = Load { queues: 100, messages: 30_000, seed, ..Load::default() };
        let mut reports = Vec::new();
        schema::load(&mut session, &load, |done, total| reports.push((done, total))).await.unwrap();
        assert_eq!(reports.first(), Some(&(0, 30_000)));
        assert_eq!(reports.last(), Some(&(30_000, 30_000)));
        assert!(reports.is_sorted());
        assert_eq!(oracle::drifted_shards(&mut session).await, 0);
        let (queues, empty, kinds): (i64, i64, i64) = sqlx::query_as(
            "SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM queue_message WHERE queue_id = queue.id)),
                    (SELECT count(DISTINCT (priority, state, expires_at <= now(), available_after <= now()))
                     FROM queue_message)
             FROM queue",
        )
        .fetch_one(&mut session)
        .await
        .unwrap();
        assert_eq!((queues, empty, kinds), (100, 5, 18), "every kind of message, and empty queues");
        let digest: String = sqlx::query_scalar(
            "SELECT md5(string_agg((id, queue_id, payload, priority, state, expires_at - enqueued_at, delivery_attempts,
                                    receipt_handle, available_after - enqueued_at)::text, '' ORDER BY id))
             FROM queue_message",
        )
        .fetch_one(&mut session)
        .await
        .unwrap();
        digests.push(digest);
        let again = schema::load(&mut session, &load, |_, _| ()).await;
        assert!(matches!(again, Err(LoadError::NotEmpty)));
    }
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
}

#[tokio::test]
async fn names_and_rows_that_retsu_refuses_are_refused() {
    let database = support::database().await;
    let mut session = session(&database).await;
    schema::apply(&mut session).await.unwrap();
    let long = format!("a{}z", "._-".repeat(21).chars().take(62).collect::<String>());
    for name in ["a", "0", "a.b_c-9", &long] {
        sqlx::query("INSERT INTO queue (name) VALUES ($1)").bind(name).execute(&mut session).await.unwrap();
    }
    for name in ["", "A", "-a", "a-", "a b", "a\n", "é", &format!("{long}0")] {
        let refused = sqlx::query("INSERT INTO queue (name) VALUES ($1)").bind(name).execute(&mut session).await;
        assert!(refused.is_err(), "{name:?}");
    }
    let ready = "INSERT INTO queue_message (queue_id, payload, priority, expires_at";
    let values = "SELECT id, '', 1, now()";
    for (columns, more) in [
        (", delivery_attempts)", ", 1"),
        (", receipt_handle)", ", gen_random_uuid()"),
        (", last_delivered_at)", ", now()"),
        (", state)", ", 'IN_FLIGHT'"),
        (", state)", ", 'DONE'"),
        (
            ", state, receipt_handle, last_delivered_at, delivery_attempts, available_after)",
            ", 'IN_FLIGHT', gen_random_uuid(), now(), 1, now()",
        ),
    ] {
        let insert = format!("{ready}{columns} {values}{more} FROM queue LIMIT 1");
        assert!(sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut session).await.is_err(), "{columns} {more}");
    }
}
