//! Random data and random changes, each step compared with the oracle and the rollup with plain counts.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// Offsets from `now()`, in seconds. Inside the transaction `now()` stands still, so 0 is exactly on the
/// boundary of an expiry or a lease.
const OFFSETS: [i32; 7] = [-86_400, -61, -1, 0, 1, 61, 86_400];

/// A change to some of the rows, chosen at random.
fn change(random: &mut StdRng) -> String {
    let mut offset = || OFFSETS[random.random_range(0..OFFSETS.len())];
    let (enqueued, expires, available) = (offset(), offset(), offset());
    let part = format!("get_byte(uuid_send(id), 1) % 7 = {}", random.random_range(0..7));
    let priority = random.random_range(1..=3);
    let count = random.random_range(1..40);
    let queue = random.random_range(0..40);
    match random.random_range(0..20) {
        0..=5 => format!(
            "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, '', 1 + (n + {priority}) % 3, now() + {enqueued} * interval '1 second' - n * interval '1 minute',
                    now() + {expires} * interval '1 second'
             FROM queue, generate_series(1, {count}) AS n
             WHERE ascii(right(name, 1)) % 4 = {queue} % 4"
        ),
        6..=9 => format!(
            "UPDATE queue_message
             SET state = 'IN_FLIGHT', receipt_handle = gen_random_uuid(),
                 last_delivered_at = now() + {available} * interval '1 second' - interval '1 microsecond',
                 available_after = now() + {available} * interval '1 second', delivery_attempts = {count} % 5 + 1
             WHERE {part}"
        ),
        10 => format!(
            "UPDATE queue_message
             SET state = 'READY', receipt_handle = NULL, last_delivered_at = NULL, delivery_attempts = 0
             WHERE {part}"
        ),
        11 => format!("UPDATE queue_message SET priority = {priority} WHERE {part}"),
        12 => format!("UPDATE queue_message SET id = gen_random_uuid() WHERE {part}"),
        13 => format!("UPDATE queue_message SET expires_at = now() + {expires} * interval '1 second' WHERE {part}"),
        14 => format!(
            "UPDATE queue_message SET queue_id = (SELECT id FROM queue ORDER BY md5(name || {queue}) LIMIT 1) WHERE {part}"
        ),
        15 => format!("DELETE FROM queue_message WHERE {part}"),
        16 => format!("DELETE FROM queue WHERE {part} AND ascii(right(name, 1)) % 4 = {queue} % 4"),
        17 => format!(
            "INSERT INTO queue (name, max_delivery_attempts)
             SELECT 'queue-' || n, 1 + n % 4 FROM generate_series({queue}, {queue} + 8) AS n
             ON CONFLICT DO NOTHING"
        ),
        18 => format!("UPDATE queue SET max_delivery_attempts = {count} % 4 + 1 WHERE {part}"),
        _ if random.random_bool(0.2) => "TRUNCATE queue_message".to_owned(),
        _ => format!(
            "INSERT INTO queue_message (id, queue_id, payload, priority, enqueued_at, expires_at)
             SELECT id, queue_id, payload, {priority}, enqueued_at, expires_at FROM queue_message WHERE {part}
             ON CONFLICT (id) DO UPDATE SET priority = excluded.priority"
        ),
    }
}

#[tokio::test]
async fn every_random_state_agrees_with_the_oracle_and_the_rollup_with_plain_counts() {
    let seed = std::env::var("RETSU_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("RETSU_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut fixture = Fixture::new().await;
    let mut seen_messages = 0;
    for round in 0..40 {
        fixture.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        for step in 0..6 {
            let change = change(&mut random);
            fixture.run(&change).await;
            let at = format!("seed {seed}, round {round}, step {step}: {change}");
            assert_eq!(oracle::drifted_shards(&mut fixture.session).await, 0, "{at}");
            let max_queues = [1, 7, BUDGET][random.random_range(0..3)];
            let collector = Collector::new(max_queues, LIMIT);
            let snapshot = collector.refresh(&mut fixture.session).await.expect(&at);
            let mut expected = oracle::queue_states(&mut fixture.session).await;
            assert_eq!(snapshot.queues_found, expected.len() as u64, "{at}");
            expected.truncate(max_queues as usize);
            assert_eq!(snapshot.queues, expected, "{at}");
            seen_messages += expected.iter().flat_map(|queue| queue.priorities).map(|state| state.ready).sum::<u64>();
        }
        fixture.run(if random.random_bool(0.2) { "ROLLBACK" } else { "COMMIT" }).await;
    }
    assert!(seen_messages > 0, "seed {seed} made no messages");
}

/// Statements of several sessions at once touch the same shards in their own order: none may deadlock or
/// lose a change.
#[tokio::test]
async fn the_rollup_survives_concurrent_writers() {
    let mut fixture = Fixture::new().await;
    fixture.run("INSERT INTO queue (name) SELECT 'queue-' || n FROM generate_series(1, 20) AS n").await;
    let pool = fixture.database.pool().await;
    let writers = (0..4).map(|writer| {
        let pool = pool.clone();
        tokio::spawn(async move {
            for step in 0..20 {
                let insert = format!(
                    "INSERT INTO queue_message (queue_id, payload, priority, enqueued_at, expires_at)
                     SELECT id, '', 1 + n % 3, now(), now() + interval '1 hour'
                     FROM queue, generate_series(1, 5) AS n ORDER BY md5(name || {writer})"
                );
                sqlx::raw_sql(AssertSqlSafe(insert)).execute(&pool).await.unwrap();
                let part = (writer + step) % 5;
                let take = format!(
                    "WITH taken AS (
                         SELECT id FROM queue_message
                         WHERE state = 'READY' AND get_byte(uuid_send(id), 1) % 5 = {part}
                         FOR UPDATE SKIP LOCKED
                     )
                     UPDATE queue_message
                     SET state = 'IN_FLIGHT', receipt_handle = gen_random_uuid(), last_delivered_at = now(),
                         available_after = now() + interval '1 minute', delivery_attempts = 1
                     FROM taken WHERE taken.id = queue_message.id"
                );
                sqlx::raw_sql(AssertSqlSafe(take)).execute(&pool).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(oracle::drifted_shards(&mut fixture.session).await, 0);
    let total: u64 =
        fixture.refresh().await.queues.iter().flat_map(|queue| queue.priorities).map(|s| s.ready + s.in_flight).sum();
    assert_eq!(total, 4 * 20 * 20 * 5);
}
