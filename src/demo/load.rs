//! Producers and consumers, so that the gauges move: messages wait, are received, acknowledged, received
//! again after their lease, and expire.

use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use sqlx::{PgPool, Row};
use tokio::task::JoinSet;
use tokio::time::sleep;

const NAMES: [&str; 8] = ["billing", "emails", "exports", "imports", "orders", "reports", "search", "webhooks"];

const CREATE_QUEUES: &str = "
    INSERT INTO queue (name, visibility_timeout_seconds, max_delivery_attempts, default_message_ttl_seconds)
    SELECT name, 5, 3, 60 FROM unnest($1::text[]) AS name
    ON CONFLICT (name) DO NOTHING";

/// One message in eight expires before most consumers come to it.
const ENQUEUE: &str = "
    INSERT INTO queue_message (queue_id, payload, priority, state, delivery_attempts, expires_at, available_after)
    SELECT queue.id, convert_to('demo', 'UTF8'), 1 + floor(3 * random() ^ 2), 'READY', 0,
           now() + make_interval(secs => CASE WHEN random() < 0.125 THEN 2
                                              ELSE queue.default_message_ttl_seconds END),
           now()
    FROM queue, generate_series(1, $2)
    WHERE queue.name = $1";

/// What counts as ready: READY, or under a lease that has elapsed with attempts left; not expired.
const RECEIVE: &str = "
    WITH candidate AS (
        SELECT message.id, queue.visibility_timeout_seconds
        FROM queue_message AS message
        JOIN queue ON queue.id = message.queue_id
        WHERE queue.name = $1
          AND message.expires_at > now()
          AND (message.state = 'READY'
               OR message.available_after <= now() AND message.delivery_attempts < queue.max_delivery_attempts)
        ORDER BY message.priority DESC, message.enqueue_order
        LIMIT $2
        FOR UPDATE OF message SKIP LOCKED
    )
    UPDATE queue_message AS message
    SET state = 'IN_FLIGHT', receipt_handle = gen_random_uuid(), last_delivered_at = now(),
        delivery_attempts = message.delivery_attempts + 1,
        available_after = now() + make_interval(secs => candidate.visibility_timeout_seconds)
    FROM candidate
    WHERE message.id = candidate.id
    RETURNING message.id::text, message.receipt_handle::text";

const ACKNOWLEDGE: &str = "
    DELETE FROM queue_message AS message
    USING unnest($1::text[], $2::text[]) AS done (id, receipt_handle)
    WHERE message.id = done.id::uuid AND message.receipt_handle = done.receipt_handle::uuid";

/// Expired messages and those without an attempt left stay a while, so that the gauges have to leave them out.
const REMOVE_DEAD: &str = "
    DELETE FROM queue_message AS message
    USING queue
    WHERE queue.id = message.queue_id
      AND (message.expires_at <= now() - interval '5 seconds'
           OR message.state = 'IN_FLIGHT'
              AND message.available_after <= now() - interval '5 seconds'
              AND message.delivery_attempts >= queue.max_delivery_attempts)";

/// The names of `count` queues.
pub(super) fn queue_names(count: u32) -> Vec<String> {
    (0..count as usize)
        .map(|n| match n / NAMES.len() {
            0 => NAMES[n].to_owned(),
            round => format!("{}-{}", NAMES[n % NAMES.len()], round + 1),
        })
        .collect()
}

/// Creates the queues and starts the load on them. A task ends only with an error.
///
/// # Errors
/// The queues cannot be created.
pub(super) async fn start(pool: &PgPool, queues: u32) -> Result<JoinSet<sqlx::Error>, sqlx::Error> {
    let names = queue_names(queues);
    sqlx::query(CREATE_QUEUES).bind(&names).execute(pool).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(until_error(pool.clone(), names.clone(), produce));
    for _ in 0..4 {
        tasks.spawn(until_error(pool.clone(), names.clone(), consume));
    }
    tasks.spawn(until_error(pool.clone(), names, async |pool, _| {
        sqlx::query(REMOVE_DEAD).execute(pool).await?;
        Ok(Duration::from_secs(1))
    }));
    Ok(tasks)
}

/// Repeats a step on a random queue, with the pause that the step asks for.
async fn until_error<S>(pool: PgPool, names: Vec<String>, step: S) -> sqlx::Error
where
    S: AsyncFn(&PgPool, &str) -> Result<Duration, sqlx::Error>,
{
    loop {
        // Most of the load is on the first queues.
        let skewed = rand::rng().random::<f64>().powi(2);
        let queue = &names[(skewed * names.len() as f64) as usize % names.len()];
        match step(&pool, queue).await {
            Ok(pause) => sleep(pause).await,
            Err(error) => return error,
        }
    }
}

fn a_while(millis: Range<u64>) -> Duration {
    Duration::from_millis(rand::rng().random_range(millis))
}

async fn produce(pool: &PgPool, queue: &str) -> Result<Duration, sqlx::Error> {
    let messages = rand::rng().random_range(1..=40);
    sqlx::query(ENQUEUE).bind(queue).bind(messages).execute(pool).await?;
    Ok(a_while(50..300))
}

async fn consume(pool: &PgPool, queue: &str) -> Result<Duration, sqlx::Error> {
    let received = sqlx::query(RECEIVE).bind(queue).bind(20_i64).fetch_all(pool).await?;
    sleep(a_while(50..400)).await;
    // One consumer in five forgets what it received, and the leases elapse.
    if !received.is_empty() && rand::rng().random_ratio(4, 5) {
        let column = |index: usize| received.iter().map(|row| row.try_get(index)).collect::<Result<Vec<String>, _>>();
        sqlx::query(ACKNOWLEDGE).bind(column(0)?).bind(column(1)?).execute(pool).await?;
    }
    Ok(Duration::from_millis(20))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn queue_names_are_distinct_and_start_plain() {
        let names = super::queue_names(100);
        assert_eq!((names[0].as_str(), names[8].as_str()), ("billing", "billing-2"));
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 100);
    }
}
