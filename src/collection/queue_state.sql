, exported AS (
    SELECT id, name
    FROM (SELECT id, name COLLATE "C" AS name FROM queue ORDER BY name, id LIMIT $1) AS first
    ORDER BY id
), stored AS (
    SELECT queue_id,
           (sum(ready_count) FILTER (WHERE priority = 3))::bigint AS ready_3,
           (sum(in_flight_count) FILTER (WHERE priority = 3))::bigint AS in_flight_3,
           (sum(ready_count) FILTER (WHERE priority = 2))::bigint AS ready_2,
           (sum(in_flight_count) FILTER (WHERE priority = 2))::bigint AS in_flight_2,
           (sum(ready_count) FILTER (WHERE priority = 1))::bigint AS ready_1,
           (sum(in_flight_count) FILTER (WHERE priority = 1))::bigint AS in_flight_1
    FROM queue_priority_state_shard
    WHERE ready_count <> 0 OR in_flight_count <> 0
    GROUP BY queue_id
), expired AS (
    SELECT queue_id,
           count(*) FILTER (WHERE priority = 3) AS ready_3,
           count(*) FILTER (WHERE priority = 2) AS ready_2,
           count(*) FILTER (WHERE priority = 1) AS ready_1
    FROM queue_message
    WHERE state = 'READY' AND expires_at <= now()
    GROUP BY queue_id
), elapsed AS (
    SELECT queue_id,
           count(*) FILTER (WHERE priority = 3) AS in_flight_3,
           count(*) FILTER (WHERE priority = 3 AND receivable) AS ready_3,
           min(enqueued_at) FILTER (WHERE priority = 3 AND receivable) AS oldest_3,
           count(*) FILTER (WHERE priority = 2) AS in_flight_2,
           count(*) FILTER (WHERE priority = 2 AND receivable) AS ready_2,
           min(enqueued_at) FILTER (WHERE priority = 2 AND receivable) AS oldest_2,
           count(*) FILTER (WHERE priority = 1) AS in_flight_1,
           count(*) FILTER (WHERE priority = 1 AND receivable) AS ready_1,
           min(enqueued_at) FILTER (WHERE priority = 1 AND receivable) AS oldest_1
    FROM (
        SELECT queue_id, priority, enqueued_at,
               expires_at > now() AND delivery_attempts < max_delivery_attempts AS receivable
        FROM queue_message
        JOIN queue ON queue.id = queue_id
        WHERE state = 'IN_FLIGHT' AND available_after <= now()
    ) AS message
    GROUP BY queue_id
)
SELECT (SELECT count(*) FROM queue) AS queues_found,
       now() AS database_time,
       (
           SELECT bool_and((
               SELECT atttypid
               FROM pg_attribute
               WHERE attrelid = to_regclass(relation) AND attname = column_read.name AND NOT attisdropped
           ) IS NOT DISTINCT FROM type)
           FROM column_read
       ) AS columns_fit,
       NULL::text AS name,
       NULL::bigint AS ready_3, NULL::bigint AS in_flight_3,
       NULL::timestamptz AS oldest_ready_3, NULL::timestamptz AS oldest_in_flight_3,
       NULL::bigint AS ready_2, NULL::bigint AS in_flight_2,
       NULL::timestamptz AS oldest_ready_2, NULL::timestamptz AS oldest_in_flight_2,
       NULL::bigint AS ready_1, NULL::bigint AS in_flight_1,
       NULL::timestamptz AS oldest_ready_1, NULL::timestamptz AS oldest_in_flight_1
UNION ALL
SELECT NULL, NULL, NULL, exported.name,
       coalesce(stored.ready_3, 0) - coalesce(expired.ready_3, 0) + coalesce(elapsed.ready_3, 0),
       coalesce(stored.in_flight_3, 0) - coalesce(elapsed.in_flight_3, 0),
       least(elapsed.oldest_3, CASE WHEN coalesce(stored.ready_3, 0) > coalesce(expired.ready_3, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 3 AND state = 'READY' AND expires_at > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END),
       CASE WHEN coalesce(stored.in_flight_3, 0) > coalesce(elapsed.in_flight_3, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 3 AND state = 'IN_FLIGHT' AND available_after > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END,
       coalesce(stored.ready_2, 0) - coalesce(expired.ready_2, 0) + coalesce(elapsed.ready_2, 0),
       coalesce(stored.in_flight_2, 0) - coalesce(elapsed.in_flight_2, 0),
       least(elapsed.oldest_2, CASE WHEN coalesce(stored.ready_2, 0) > coalesce(expired.ready_2, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 2 AND state = 'READY' AND expires_at > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END),
       CASE WHEN coalesce(stored.in_flight_2, 0) > coalesce(elapsed.in_flight_2, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 2 AND state = 'IN_FLIGHT' AND available_after > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END,
       coalesce(stored.ready_1, 0) - coalesce(expired.ready_1, 0) + coalesce(elapsed.ready_1, 0),
       coalesce(stored.in_flight_1, 0) - coalesce(elapsed.in_flight_1, 0),
       least(elapsed.oldest_1, CASE WHEN coalesce(stored.ready_1, 0) > coalesce(expired.ready_1, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 1 AND state = 'READY' AND expires_at > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END),
       CASE WHEN coalesce(stored.in_flight_1, 0) > coalesce(elapsed.in_flight_1, 0) THEN (
           SELECT enqueued_at
           FROM queue_message
           WHERE queue_id = exported.id AND priority = 1 AND state = 'IN_FLIGHT' AND available_after > now()
           ORDER BY enqueued_at
           LIMIT 1
       ) END
FROM exported
LEFT JOIN stored ON stored.queue_id = exported.id
LEFT JOIN expired ON expired.queue_id = exported.id
LEFT JOIN elapsed ON elapsed.queue_id = exported.id
ORDER BY queues_found NULLS LAST, name
