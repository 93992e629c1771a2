//! The collector on real tables: values against an oracle, and every failure by its name.

mod failures;
mod random;

use std::time::{Duration, SystemTime};

use retsu_collector::collection::{Collector, Priority, Snapshot};
use retsu_collector::schema;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use crate::{oracle, support};

const BUDGET: u32 = 10_000;
const LIMIT: Duration = Duration::from_secs(30);

/// A database with the schema, and a session prepared as the leader's is.
struct Fixture {
    database: support::Database,
    session: PgConnection,
    collector: Collector,
}

impl Fixture {
    async fn new() -> Self {
        let database = support::database().await;
        let mut session = PgConnection::connect(&database.url()).await.unwrap();
        schema::apply(&mut session).await.unwrap();
        let collector = Collector::new(BUDGET, LIMIT);
        collector.prepare(&mut session).await.unwrap();
        Self { database, session, collector }
    }

    async fn run(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut self.session).await.expect(sql);
    }

    async fn refresh(&mut self) -> Snapshot {
        self.collector.refresh(&mut self.session).await.unwrap()
    }
}

#[tokio::test]
async fn no_queues_is_a_success_and_not_a_failure() {
    let mut fixture = Fixture::new().await;
    let before = SystemTime::now();
    let snapshot = fixture.refresh().await;
    assert_eq!((snapshot.queues.len(), snapshot.queues_found, snapshot.queues_dropped()), (0, 0, 0));
    assert!(snapshot.duration > Duration::ZERO);
    let apart = match snapshot.database_time.duration_since(before) {
        Ok(later) => later,
        Err(earlier) => earlier.duration(),
    };
    assert!(apart < Duration::from_secs(60), "the server runs on this machine's clock");
}

#[tokio::test]
async fn an_empty_queue_is_three_priorities_of_zeros() {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) VALUES ('empty')").await;
    let snapshot = fixture.refresh().await;
    assert_eq!(snapshot.queues.len(), 1);
    assert_eq!(snapshot.queues[0].name, "empty");
    assert_eq!(snapshot.queues[0].priorities, [Default::default(); Priority::ALL.len()]);
}

#[tokio::test]
async fn queues_past_the_budget_are_found_and_dropped_by_name() {
    let mut fixture = Fixture::new().await;
    fixture
        .run("INSERT INTO queue (name) SELECT 'q' || lpad(n::text, 5, '0') FROM generate_series(0, 10000) AS n")
        .await;
    let snapshot = fixture.refresh().await;
    assert_eq!((snapshot.queues_found, snapshot.queues_dropped()), (10_001, 1));
    assert_eq!(snapshot.queues.first().unwrap().name, "q00000");
    assert_eq!(snapshot.queues.last().unwrap().name, "q09999", "the last by name is the one left out");
    fixture.run("DELETE FROM queue WHERE name = 'q00000'").await;
    let snapshot = fixture.refresh().await;
    assert_eq!((snapshot.queues.len(), snapshot.queues_dropped()), (10_000, 0));
}

#[tokio::test]
async fn queues_are_ordered_by_the_bytes_of_their_names() {
    let mut fixture = Fixture::new().await;
    let every_character = "abcdefghijklmnopqrstuvwxyz0123456789._-abcdefghijklmnopqrstuvwxy";
    assert_eq!(every_character.len(), 64);
    let mut names = ["a-b", "a.b", "a0b", "a_b", "ab", "a", "b", "0", every_character];
    for name in names {
        fixture.run(&format!("INSERT INTO queue (name) VALUES ('{name}')")).await;
    }
    names.sort_unstable();
    let snapshot = fixture.refresh().await;
    assert_eq!(snapshot.queues.iter().map(|queue| &*queue.name).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn counts_are_exact_up_to_the_last_of_64_bits() {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) VALUES ('huge')").await;
    fixture
        .run(
            "INSERT INTO queue_priority_state_shard (queue_id, priority, shard, ready_count, in_flight_count)
             SELECT id, 3, 0, 9007199254740993, 9223372036854775806 FROM queue
             UNION ALL SELECT id, 3, 1, 0, 1 FROM queue
             UNION ALL SELECT id, 1, 31, 9223372036854775807, -4 FROM queue
             UNION ALL SELECT id, 1, 30, -9223372036854775807, 4 FROM queue",
        )
        .await;
    let [high, medium, low] = fixture.refresh().await.queues[0].priorities;
    assert_eq!((high.ready, high.in_flight), (9_007_199_254_740_993, 9_223_372_036_854_775_807));
    assert_eq!((medium.ready, medium.in_flight), (0, 0));
    assert_eq!((low.ready, low.in_flight), (0, 0));
}

#[tokio::test]
async fn a_message_enqueued_in_the_future_has_no_negative_age() {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) VALUES ('early')").await;
    fixture
        .run(
            "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, '', level, at::timestamptz, 'infinity'
             FROM queue, (VALUES (3, 'infinity'), (2, '2200-01-01'), (1, '-infinity')) AS made (level, at)",
        )
        .await;
    let [high, medium, low] = fixture.refresh().await.queues[0].priorities;
    assert_eq!((high.ready, high.oldest_ready_age), (1, 0.0));
    assert_eq!((medium.ready, medium.oldest_ready_age), (1, 0.0));
    assert!(low.oldest_ready_age > 1e12 && low.oldest_ready_age.is_finite());
}

#[tokio::test]
async fn names_that_the_schema_would_refuse_are_read_as_they_are() {
    let mut fixture = Fixture::new().await;
    fixture.run("ALTER TABLE queue DROP CONSTRAINT queue_name_check").await;
    let long = "long ".repeat(1_000);
    let mut names =
        ["", " ", "\"quoted\"\\", "new\nline", "tab\t", "{a=\"b\"} 1", "naïve 待ち行列 \u{1F980}", "\u{202e}", &long];
    for name in names {
        sqlx::query("INSERT INTO queue (name) VALUES ($1)").bind(name).execute(&mut fixture.session).await.unwrap();
    }
    names.sort_unstable();
    let snapshot = fixture.refresh().await;
    assert_eq!(snapshot.queues.iter().map(|queue| &*queue.name).collect::<Vec<_>>(), names);
}

/// The oldest-ready seek passes 200,000 expired messages once, not once for each of them or each queue.
#[tokio::test]
async fn an_expired_backlog_in_front_is_passed_once() {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) SELECT 'q' || n FROM generate_series(1, 1000) AS n").await;
    fixture
        .run(
            "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, '', 2, now() - interval '1 day' + n * interval '1 millisecond', now() - interval '1 hour'
             FROM queue, generate_series(1, 200000) AS n
             WHERE name = 'q1'",
        )
        .await;
    fixture
        .run(
            "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, '', 2, now() - interval '1 minute', now() + interval '1 day' FROM queue",
        )
        .await;
    // Statistics from before the backlog, none at all, and fresh ones.
    for statistics in ["", "ANALYZE", "VACUUM ANALYZE"] {
        fixture.run(statistics).await;
        let snapshot = fixture.refresh().await;
        let [_, medium, _] = snapshot.queues.iter().find(|queue| queue.name == "q1").unwrap().priorities;
        assert_eq!(medium.ready, 1);
        assert!((60.0..120.0).contains(&medium.oldest_ready_age), "{}", medium.oldest_ready_age);
        assert!(snapshot.duration < Duration::from_secs(5), "{:?} {statistics}", snapshot.duration);
    }
}

/// Statistics that say one row where there are thousands must not turn a join into a loop over both sides.
#[tokio::test]
async fn statistics_of_an_emptier_past_do_not_make_a_refresh_quadratic() {
    let mut fixture = Fixture::new().await;
    for table in ["queue", "queue_message", "queue_priority_state_shard"] {
        fixture.run(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await;
    }
    let one_queue = "INSERT INTO queue (name) VALUES ('first');
         INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
         SELECT id, '', 2, now(), now() + interval '1 day' FROM queue, generate_series(1, 2000)";
    fixture.run(one_queue).await;
    fixture.run("ANALYZE").await;
    fixture.run("INSERT INTO queue (name) SELECT 'q' || n FROM generate_series(1, 9999) AS n").await;
    fixture
        .run(
            "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, '', 2, now() - interval '1 day', now() + n * interval '1 hour'
             FROM queue, (VALUES (-1), (1)) AS expiry (n)",
        )
        .await;
    let snapshot = fixture.refresh().await;
    assert_eq!(snapshot.queues.iter().map(|queue| queue.priorities[1].ready).sum::<u64>(), 12_000);
    assert!(snapshot.duration < Duration::from_secs(3), "{:?}", snapshot.duration);
}
