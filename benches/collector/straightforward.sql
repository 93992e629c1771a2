-- The definitions of docs/collection.md, one lateral subquery for each value of each queue and priority.
SELECT queue.name,
       level.priority,
       stored.ready - expired.messages + elapsed.receivable AS ready,
       stored.in_flight - elapsed.messages AS in_flight,
       coalesce(date_part('epoch', now() - least(oldest_ready.enqueued_at, elapsed.enqueued_at)), 0) AS oldest_ready_age,
       coalesce(date_part('epoch', now() - oldest_in_flight.enqueued_at), 0) AS oldest_in_flight_age
FROM queue
CROSS JOIN (VALUES (3), (2), (1)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(ready_count), 0)::bigint AS ready, coalesce(sum(in_flight_count), 0)::bigint AS in_flight
    FROM queue_priority_state_shard
    WHERE queue_id = queue.id AND priority = level.priority
) AS stored
CROSS JOIN LATERAL (
    SELECT count(*) AS messages
    FROM queue_message
    WHERE queue_id = queue.id AND priority = level.priority AND state = 'READY' AND expires_at <= now()
) AS expired
CROSS JOIN LATERAL (
    SELECT count(*) AS messages,
           count(*) FILTER (WHERE expires_at > now() AND delivery_attempts < max_delivery_attempts) AS receivable,
           min(enqueued_at) FILTER (WHERE expires_at > now() AND delivery_attempts < max_delivery_attempts)
               AS enqueued_at
    FROM queue_message
    WHERE queue_id = queue.id AND priority = level.priority AND state = 'IN_FLIGHT' AND available_after <= now()
) AS elapsed
LEFT JOIN LATERAL (
    SELECT enqueued_at
    FROM queue_message
    WHERE queue_id = queue.id AND priority = level.priority AND state = 'READY' AND expires_at > now()
    ORDER BY enqueued_at
    LIMIT 1
) AS oldest_ready ON true
LEFT JOIN LATERAL (
    SELECT enqueued_at
    FROM queue_message
    WHERE queue_id = queue.id AND priority = level.priority AND state = 'IN_FLIGHT' AND available_after > now()
    ORDER BY enqueued_at
    LIMIT 1
) AS oldest_in_flight ON true
ORDER BY queue.name COLLATE "C", level.priority DESC
