//! Queue state by the definitions: every row of the base tables is fetched and counted here, one by one.
//! Shares nothing with the collector's query, and never reads the rollup.

use std::collections::HashMap;

use retsu_collector::collection::{PriorityState, QueueState};
use sqlx::Row;
use sqlx::postgres::PgConnection;

/// The state of every queue, ordered by the bytes of its name. Inside a REPEATABLE READ transaction it sees
/// the same rows at the same `now()` as any other statement of the transaction.
pub(crate) async fn queue_states(session: &mut PgConnection) -> Vec<QueueState> {
    let now: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
        .fetch_one(&mut *session)
        .await
        .unwrap();
    let mut attempts = HashMap::new();
    let mut states = HashMap::new();
    for row in
        sqlx::query("SELECT id::text, name, max_delivery_attempts FROM queue").fetch_all(&mut *session).await.unwrap()
    {
        let id: String = row.get(0);
        attempts.insert(id.clone(), row.get::<i16, _>(2));
        states.insert(id, QueueState { name: row.get(1), priorities: [PriorityState::default(); 3] });
    }
    let messages = sqlx::query(
        "SELECT queue_id::text, priority, state, (extract(epoch FROM enqueued_at) * 1000000)::bigint,
                (extract(epoch FROM expires_at) * 1000000)::bigint,
                (extract(epoch FROM available_after) * 1000000)::bigint, delivery_attempts
         FROM queue_message",
    );
    for row in messages.fetch_all(&mut *session).await.unwrap() {
        let queue: String = row.get(0);
        let state = &mut states.get_mut(&queue).unwrap().priorities[match row.get::<i16, _>(1) {
            3 => 0,
            2 => 1,
            1 => 2,
            other => panic!("priority {other}"),
        }];
        let age = (now - row.get::<i64, _>(3)).max(0) as f64 / 1e6;
        let expired = row.get::<i64, _>(4) <= now;
        let elapsed = row.get::<i64, _>(5) <= now;
        let exhausted = row.get::<i16, _>(6) >= attempts[&queue];
        let (ready, live) = match row.get::<String, _>(2).as_str() {
            "READY" => (!expired, false),
            "IN_FLIGHT" => (elapsed && !expired && !exhausted, !elapsed),
            other => panic!("state {other}"),
        };
        if ready {
            state.ready += 1;
            state.oldest_ready_age = state.oldest_ready_age.max(age);
        }
        if live {
            state.in_flight += 1;
            state.oldest_in_flight_age = state.oldest_in_flight_age.max(age);
        }
    }
    let mut states: Vec<_> = states.into_values().collect();
    states.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    states
}

/// How many shards of the rollup differ from plain counts of the messages; a shard without messages may be
/// absent or zero.
pub(crate) async fn drifted_shards(session: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*)
         FROM (
             SELECT queue_id, priority, ('x' || right(id::text, 2))::bit(8)::integer % 32 AS shard,
                    sum((state = 'READY')::integer) AS ready, sum((state = 'IN_FLIGHT')::integer) AS in_flight
             FROM queue_message
             GROUP BY 1, 2, 3
         ) AS plain
         FULL JOIN queue_priority_state_shard AS stored USING (queue_id, priority, shard)
         WHERE coalesce(ready, 0) <> coalesce(ready_count, 0)
            OR coalesce(in_flight, 0) <> coalesce(in_flight_count, 0)",
    )
    .fetch_one(session)
    .await
    .unwrap()
}
