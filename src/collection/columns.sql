(relation, name, type) AS (
    VALUES ('queue', 'id', 'uuid'::regtype),
           ('queue', 'name', 'text'),
           ('queue', 'max_delivery_attempts', 'smallint'),
           ('queue_message', 'queue_id', 'uuid'),
           ('queue_message', 'priority', 'smallint'),
           ('queue_message', 'state', 'text'),
           ('queue_message', 'enqueued_at', 'timestamptz'),
           ('queue_message', 'expires_at', 'timestamptz'),
           ('queue_message', 'delivery_attempts', 'smallint'),
           ('queue_message', 'available_after', 'timestamptz'),
           ('queue_priority_state_shard', 'queue_id', 'uuid'),
           ('queue_priority_state_shard', 'priority', 'smallint'),
           ('queue_priority_state_shard', 'ready_count', 'bigint'),
           ('queue_priority_state_shard', 'in_flight_count', 'bigint')
)
