-- $1 queues, $2 seed, $3 messages in all, $4 and $5 the first message of this part and the one after its last,
-- $6 to $9 the shares of in-flight, expired, elapsed and exhausted messages.
--
-- The number of a message grows with the number of its queue, so that one part touches each shard at most
-- once, and squared, so that the first queues are the busy ones. One queue in twenty stays empty. Every
-- expiry and every end of a lease is minutes away from now, on one side or the other.
INSERT INTO queue_message (
    id, queue_id, payload, priority, state, enqueued_at, expires_at,
    delivery_attempts, receipt_handle, available_after, last_delivered_at
)
SELECT md5(format('message %s of %s', i, $2))::uuid,
       queue_id,
       sha256(int8send(draw)),
       priority,
       CASE WHEN in_flight THEN 'IN_FLIGHT' ELSE 'READY' END,
       enqueued_at,
       CASE WHEN expired THEN now() - interval '1 hour' * (0.1 + fate)
            ELSE now() + interval '1 day' * (0.1 + fate) END,
       CASE WHEN NOT in_flight THEN 0
            WHEN exhausted THEN max_delivery_attempts
            ELSE greatest(1, max_delivery_attempts - 1) END,
       CASE WHEN in_flight THEN md5(format('receipt %s of %s', i, $2))::uuid END,
       CASE WHEN NOT in_flight THEN enqueued_at
            WHEN elapsed THEN delivered_at + interval '30 seconds'
            ELSE now() + interval '12 hours' * (0.1 + spread) END,
       CASE WHEN in_flight THEN delivered_at END
FROM generate_series($4, $5 - 1) AS i,
     hashint8extended(i, $2) AS draw,
     hashint8extended(draw, $2) AS second_draw,
     LATERAL (
         SELECT (draw & 65535) / 65536.0::float8 AS fate,
                ((draw >> 16) & 65535) / 65536.0::float8 AS spread,
                ((draw >> 32) & 65535) / 65536.0::float8 AS kind,
                ((draw >> 48) & 65535) / 65536.0::float8 AS urgency,
                (second_draw & 65535) / 65536.0::float8 AS expiry,
                ((second_draw >> 16) & 1048575) / 1048576.0::float8 AS age,
                floor(($1 - $1 / 20) * (i::float8 / $3) ^ 2)::bigint AS n
     ) AS drawn,
     LATERAL (
         SELECT kind < $6 AS in_flight,
                kind < $6 AND spread < $8 AS elapsed,
                kind < $6 AND fate < $9 AS exhausted,
                expiry < $7 AS expired,
                CASE WHEN urgency < 0.1 THEN 3 WHEN urgency < 0.7 THEN 2 ELSE 1 END AS priority,
                now() - interval '2 hours' - interval '2 days' * age AS enqueued_at,
                now() - interval '1 hour' * (0.1 + spread) AS delivered_at
     ) AS chosen,
     LATERAL (
         SELECT id AS queue_id, queue.max_delivery_attempts
         FROM queue
         WHERE id = md5(format('queue %s of %s', n, $2))::uuid
     ) AS home
