-- Read-only queries of operators (Open Outbox, operator). A filter that is null matches everything. Lists are in
-- lists.sql.

-- name: outbox_depth_capped
-- QRY-050 for a gauge: as outbox_depth in depth.sql, with each number capped at a limit. Each order is that of one
-- index, which the planner then takes also while it expects no row.
-- Indexes: idx_outbox_unpublished, idx_outbox_dead, idx_outbox_due, idx_outbox_retry, both again for keys.
-- $1 limit.
WITH counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM (
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
                  ORDER BY available_at LIMIT $1::int)
                 LIMIT $1::int) x) AS waiting,
           (SELECT count(*) FROM (
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at > now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at > now()
                  ORDER BY available_at LIMIT $1::int)
                 LIMIT $1::int) x) AS scheduled,
           (SELECT count(*) FROM (SELECT FROM outbox_events
             WHERE published_at IS NULL AND occurred_at > now() AND is_open AND publish_error IS NULL
               AND available_at > now() AND created_at > clock_timestamp() AND available_at <= LEAST(created_at, '9999-12-31Z') + interval '1 minute'
             LIMIT $1::int) x) AS ahead,
           (SELECT count(*) FROM (SELECT FROM outbox_events
             WHERE NOT is_open AND published_at IS NULL
             ORDER BY ordering_key, seq LIMIT $1::int) x) AS dead
), since AS (
    (SELECT GREATEST(available_at, '0001-01-01Z') AS at FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT GREATEST(available_at, '0001-01-01Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
)
SELECT LEAST(waiting + scheduled + dead, $1::int) AS count,
       (SELECT occurred_at FROM outbox_events WHERE published_at IS NULL ORDER BY occurred_at LIMIT 1) AS oldest_at,
       waiting,
       (SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM since) AS waiting_seconds,
       scheduled, dead
  FROM (SELECT waiting + ahead AS waiting, GREATEST(scheduled - ahead, 0) AS scheduled, dead FROM counted) counted;

-- name: inbox_depth_capped
-- QRY-051 for a gauge, with capped numbers.
-- Indexes: idx_inbox_unprocessed, idx_inbox_dead_lettered.
-- $1 limit.
SELECT (SELECT count(*) FROM (SELECT FROM inbox_messages WHERE processed_at IS NULL LIMIT $1::int) x) AS count,
       (SELECT received_at FROM inbox_messages WHERE processed_at IS NULL ORDER BY received_at LIMIT 1) AS oldest_at,
       (SELECT count(*) FROM (SELECT FROM inbox_messages
                               WHERE processed_at IS NULL AND dead_lettered_at IS NULL LIMIT $1::int) x) AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - LEAST(GREATEST(received_at, '0001-01-01Z'), '9999-12-31Z'))::float8
          FROM inbox_messages
         WHERE processed_at IS NULL AND dead_lettered_at IS NULL ORDER BY received_at LIMIT 1) AS waiting_seconds,
       0 AS scheduled,
       (SELECT count(*) FROM (SELECT dead_letter_reason FROM inbox_messages WHERE dead_lettered_at IS NOT NULL
                               ORDER BY dead_lettered_at DESC LIMIT $1::int) x
         WHERE dead_letter_reason IS DISTINCT FROM 'CLOSED') AS dead;

-- name: read_ahead
-- Unprocessed messages of a consumer that it has not delivered yet: a worker has read them ahead of their delivery.
-- has_oldest: the inbox has the oldest message that the consumer has not delivered, processed or not.
-- Index: idx_inbox_unprocessed and the primary key. $1 stream, $2 durable, $3 sequence up to which it has delivered,
-- $4 limit, $5 id of the oldest message or null.
SELECT count(*) AS count, EXISTS (SELECT FROM inbox_messages WHERE message_id = $5::uuid) AS has_oldest
  FROM (SELECT FROM inbox_messages
         WHERE processed_at IS NULL AND stream = $1::text AND consumer = $2::text AND stream_seq > $3::bigint
         LIMIT $4::int) x;

-- fragment: largest
-- All groups by state, and the largest ones of each other kind.
SELECT kind, name, count, oldest_at
  FROM (SELECT k.*, row_number() OVER (PARTITION BY k.kind ORDER BY k.count DESC, k.name) AS place
          FROM kinds k WHERE k.name IS NOT NULL) ranked
 WHERE place <= $2::bigint OR kind = 'state'
 ORDER BY kind, place

-- name: outbox_summary
-- Unfinished events grouped by state, by type, by ordering key and by error, the largest groups first, with the time of
-- the oldest. Errors that differ only in numbers count as one, except for error codes.
-- Index: idx_outbox_unpublished; reads only the oldest events, up to a limit.
-- $1 limit of events, $2 limit of groups of a kind, $3 and $4 as in operators/records.py.
WITH seen AS MATERIALIZED (
    SELECT o.state, o.event_type, o.ordering_key, o.occurred_at AS at,
           regexp_replace(regexp_replace(o.publish_error, $3::text, '\1#', 'g'), $4::text, '\1', 'g') AS error
      FROM outbox_events o
     WHERE o.published_at IS NULL
     ORDER BY o.occurred_at
     LIMIT $1::bigint
), kinds AS (
    SELECT 'state' AS kind, state AS name, count(*) AS count, min(at) AS oldest_at FROM seen GROUP BY state
     UNION ALL
    SELECT 'type', event_type, count(*), min(at) FROM seen GROUP BY event_type
     UNION ALL
    SELECT 'key', ordering_key, count(*), min(at) FROM seen GROUP BY ordering_key
     UNION ALL
    SELECT 'error', error, count(*), min(at) FROM seen GROUP BY error
)
:largest;

-- name: inbox_summary
-- The same for unprocessed messages: by state, subject, consumer and error.
-- Index: idx_inbox_unprocessed; reads only the oldest messages, up to a limit.
-- $1 limit of messages, $2 limit of groups of a kind, $3 and $4 as in operators/records.py.
WITH seen AS MATERIALIZED (
    SELECT i.subject, i.consumer, i.received_at AS at,
           CASE WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                WHEN i.locked_until > now() THEN 'HANDLING'
                ELSE 'WAITING' END AS state,
           regexp_replace(regexp_replace(i.last_error, $3::text, '\1#', 'g'), $4::text, '\1', 'g') AS error
      FROM inbox_messages i
     WHERE i.processed_at IS NULL
     ORDER BY i.received_at
     LIMIT $1::bigint
), kinds AS (
    SELECT 'state' AS kind, state AS name, count(*) AS count, min(at) AS oldest_at FROM seen GROUP BY state
     UNION ALL
    SELECT 'subject', subject, count(*), min(at) FROM seen GROUP BY subject
     UNION ALL
    SELECT 'consumer', consumer, count(*), min(at) FROM seen GROUP BY consumer
     UNION ALL
    SELECT 'error', error, count(*), min(at) FROM seen GROUP BY error
)
:largest;

-- name: discarded
-- Actor and reason of an event's `outbox discard`. Reads the table, which has one row for each operator action.
-- $1 id.
SELECT a.at, a.actor, a.reason, one.event->>'event_type'::text AS event_type, one.event->>'error'::text AS error
  FROM operator_actions a
 CROSS JOIN LATERAL jsonb_array_elements(a.selection->'discarded'::text) AS one (event)
 WHERE a.action = 'discard' AND one.event->>'id'::text = $1::text
 ORDER BY a.id DESC
 LIMIT 1;

-- name: session_is_held
-- Whether a connection holds the lock of a worker's session. Reads the server's locks, and takes none.
-- $1 session.
SELECT EXISTS (
    SELECT FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 7184::oid AND l.objsubid = 2
       AND l.objid = ('x' || $1::text)::bit(32)::bigint::oid
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
);

-- name: ids_between
-- Events and messages with an id in a range, such as ids with the same prefix. Indexes: both primary keys.
-- $1 lowest id, $2 highest id, $3 limit for each side.
(SELECT 'outbox' AS side, o.id, o.state, o.event_type AS name, o.created_at AS at
   FROM outbox_events o WHERE o.id BETWEEN $1::uuid AND $2::uuid ORDER BY o.id LIMIT $3::bigint)
 UNION ALL
(SELECT 'inbox', i.message_id,
        CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
             WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
             WHEN i.locked_until > now() THEN 'HANDLING'
             ELSE 'WAITING' END,
        i.subject, i.received_at
   FROM inbox_messages i WHERE i.message_id BETWEEN $1::uuid AND $2::uuid ORDER BY i.message_id LIMIT $3::bigint);

-- name: earlier_of_key
-- The earlier events of its ordering key that an event waits for, the earliest first: unfinished ones, and dead ones if
-- these hold their key.
-- Indexes: idx_outbox_ordering, idx_outbox_dead.
-- $1 ordering key, $2 seq, $3 limit, $4 dead ones hold their key.
SELECT e.id, e.state, e.last_error
  FROM (
    (SELECT o.id, o.seq, o.state, o.publish_error AS last_error
       FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = $1::text AND o.seq < $2::bigint
      ORDER BY o.seq
      LIMIT $3::bigint)
     UNION ALL
    (SELECT o.id, o.seq, o.state, o.publish_error
       FROM outbox_events o
      WHERE $4::boolean AND NOT o.is_open AND o.published_at IS NULL
        AND o.ordering_key = $1::text AND o.seq < $2::bigint
      ORDER BY o.seq
      LIMIT $3::bigint)
  ) e
 ORDER BY e.seq
 LIMIT $3::bigint;

-- name: conflicts
-- Messages that arrived under a known id with other content, and were dead-lettered under an id of their own: the
-- latest among the latest 10000 dead-lettered messages. Index: idx_inbox_dead_lettered.
-- $1 reason, $2 their error, $3 limit.
SELECT x.message_id
  FROM (SELECT message_id, dead_letter_reason, last_error, dead_lettered_at
          FROM inbox_messages WHERE dead_lettered_at IS NOT NULL
         ORDER BY dead_lettered_at DESC LIMIT 10000) x
 WHERE x.dead_letter_reason = $1::text AND x.last_error = $2::text
 ORDER BY x.dead_lettered_at DESC
 LIMIT $3::bigint;
