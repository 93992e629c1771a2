-- $1 queues, $2 seed. Every number is drawn from a hash of the queue's number and the seed.
INSERT INTO queue (id, name, visibility_timeout_seconds, max_delivery_attempts, default_message_ttl_seconds)
SELECT md5(format('queue %s of %s', n, $2))::uuid,
       format('%s.%s-%s',
              (ARRAY['billing', 'emails', 'exports', 'imports', 'orders', 'reports', 'search', 'webhooks'])
                  [1 + (draw & 7)],
              (ARRAY['ap', 'eu', 'sa', 'us'])[1 + ((draw >> 3) & 3)],
              n),
       30 * (1 + ((draw >> 8) & 15)),
       1 + ((draw >> 16) & 7),
       86400 * (1 + ((draw >> 24) & 7))
FROM generate_series(0, $1 - 1) AS n,
     hashint8extended(n, $2) AS draw
