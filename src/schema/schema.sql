-- Tables, rollup triggers and indexes of a Retsu queue, as far as the collector depends on them.
-- PostgreSQL 14 or newer.

CREATE TABLE queue (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    visibility_timeout_seconds integer NOT NULL DEFAULT 30,
    max_delivery_attempts smallint NOT NULL DEFAULT 5,
    default_message_ttl_seconds integer NOT NULL DEFAULT 345600,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT queue_pkey PRIMARY KEY (id),
    CONSTRAINT queue_name_key UNIQUE (name),
    CONSTRAINT queue_name_check CHECK (
        octet_length(name) BETWEEN 1 AND 64 AND name ~ '^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$'
    ),
    CONSTRAINT queue_visibility_timeout_seconds_check CHECK (visibility_timeout_seconds > 0),
    CONSTRAINT queue_max_delivery_attempts_check CHECK (max_delivery_attempts BETWEEN 1 AND 100),
    CONSTRAINT queue_default_message_ttl_seconds_check CHECK (default_message_ttl_seconds > 0)
);

CREATE TABLE queue_message (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    queue_id uuid NOT NULL,
    enqueue_order bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    payload bytea NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL DEFAULT 'READY',
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    delivery_attempts smallint NOT NULL DEFAULT 0,
    receipt_handle uuid,
    available_after timestamptz NOT NULL DEFAULT now(),
    last_delivered_at timestamptz,
    CONSTRAINT queue_message_pkey PRIMARY KEY (id),
    CONSTRAINT queue_message_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES queue (id) ON DELETE CASCADE,
    CONSTRAINT queue_message_priority_check CHECK (priority BETWEEN 1 AND 3),
    CONSTRAINT queue_message_state_check CHECK (
        (
            state = 'READY'
            AND receipt_handle IS NULL
            AND last_delivered_at IS NULL
            AND delivery_attempts = 0
        )
        OR (
            state = 'IN_FLIGHT'
            AND receipt_handle IS NOT NULL
            AND last_delivered_at IS NOT NULL
            AND delivery_attempts > 0
            AND available_after > last_delivered_at
        )
    )
);

-- Counts may go below zero: that is how drift shows, and a check here would fail the writer instead.
CREATE TABLE queue_priority_state_shard (
    queue_id uuid NOT NULL,
    priority smallint NOT NULL,
    shard smallint NOT NULL,
    ready_count bigint NOT NULL DEFAULT 0,
    in_flight_count bigint NOT NULL DEFAULT 0,
    CONSTRAINT queue_priority_state_shard_pkey PRIMARY KEY (queue_id, priority, shard),
    CONSTRAINT queue_priority_state_shard_queue_id_fkey
        FOREIGN KEY (queue_id) REFERENCES queue (id) ON DELETE CASCADE,
    CONSTRAINT queue_priority_state_shard_priority_check CHECK (priority BETWEEN 1 AND 3),
    CONSTRAINT queue_priority_state_shard_shard_check CHECK (shard BETWEEN 0 AND 31)
);

CREATE INDEX queue_message_ready_oldest_idx
    ON queue_message (queue_id, priority, enqueued_at)
    INCLUDE (expires_at)
    WHERE state = 'READY';

CREATE INDEX queue_message_ready_expiry_idx
    ON queue_message (expires_at, queue_id, priority)
    WHERE state = 'READY';

CREATE INDEX queue_message_in_flight_lease_idx
    ON queue_message (available_after, queue_id, priority)
    INCLUDE (delivery_attempts, expires_at)
    WHERE state = 'IN_FLIGHT';

CREATE INDEX queue_message_in_flight_oldest_idx
    ON queue_message (queue_id, priority, enqueued_at)
    INCLUDE (available_after, delivery_attempts, expires_at, enqueue_order)
    WHERE state = 'IN_FLIGHT';

-- The rollup. Each statement adds its net change per shard, in key order so that two statements cannot
-- deadlock over them. The join with queue leaves out a queue that is being deleted, whose shards are going too.
CREATE FUNCTION queue_message_rollup_insert() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO queue_priority_state_shard AS stored (queue_id, priority, shard, ready_count, in_flight_count)
    SELECT queue_id, priority, get_byte(uuid_send(id), 15) % 32,
           count(*) FILTER (WHERE state = 'READY'), count(*) FILTER (WHERE state = 'IN_FLIGHT')
    FROM new_rows
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3
    ON CONFLICT (queue_id, priority, shard) DO UPDATE
    SET ready_count = stored.ready_count + excluded.ready_count,
        in_flight_count = stored.in_flight_count + excluded.in_flight_count;
    RETURN NULL;
END
$$;

CREATE FUNCTION queue_message_rollup_delete() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO queue_priority_state_shard AS stored (queue_id, priority, shard, ready_count, in_flight_count)
    SELECT queue_id, priority, get_byte(uuid_send(gone.id), 15) % 32,
           -count(*) FILTER (WHERE state = 'READY'), -count(*) FILTER (WHERE state = 'IN_FLIGHT')
    FROM old_rows AS gone
    JOIN queue ON queue.id = gone.queue_id
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3
    ON CONFLICT (queue_id, priority, shard) DO UPDATE
    SET ready_count = stored.ready_count + excluded.ready_count,
        in_flight_count = stored.in_flight_count + excluded.in_flight_count;
    RETURN NULL;
END
$$;

CREATE FUNCTION queue_message_rollup_update() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO queue_priority_state_shard AS stored (queue_id, priority, shard, ready_count, in_flight_count)
    SELECT queue_id, priority, shard, sum(ready), sum(in_flight)
    FROM (
        SELECT queue_id, priority, get_byte(uuid_send(id), 15) % 32 AS shard,
               (state = 'READY')::integer AS ready, (state = 'IN_FLIGHT')::integer AS in_flight
        FROM new_rows
        UNION ALL
        SELECT queue_id, priority, get_byte(uuid_send(id), 15) % 32,
               -(state = 'READY')::integer, -(state = 'IN_FLIGHT')::integer
        FROM old_rows
    ) AS change
    JOIN queue ON queue.id = change.queue_id
    GROUP BY 1, 2, 3
    HAVING sum(ready) <> 0 OR sum(in_flight) <> 0
    ORDER BY 1, 2, 3
    ON CONFLICT (queue_id, priority, shard) DO UPDATE
    SET ready_count = stored.ready_count + excluded.ready_count,
        in_flight_count = stored.in_flight_count + excluded.in_flight_count;
    RETURN NULL;
END
$$;

CREATE FUNCTION queue_message_rollup_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM queue_priority_state_shard;
    RETURN NULL;
END
$$;

CREATE TRIGGER queue_message_rollup_insert AFTER INSERT ON queue_message
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_message_rollup_insert();

CREATE TRIGGER queue_message_rollup_delete AFTER DELETE ON queue_message
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_message_rollup_delete();

CREATE TRIGGER queue_message_rollup_update AFTER UPDATE ON queue_message
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_message_rollup_update();

CREATE TRIGGER queue_message_rollup_truncate AFTER TRUNCATE ON queue_message
    FOR EACH STATEMENT EXECUTE FUNCTION queue_message_rollup_truncate();
