-- What operators ask (Open Outbox, operator). Reading changes nothing.
-- In filters, a null parameter means: any.

-- name: outbox_depth_capped
-- QRY-050 for a gauge: as outbox_depth in depth.sql, but each number ends at a limit, whatever the backlog is.
-- Indexes: idx_outbox_unpublished, idx_outbox_dead.
-- $1 limit.
SELECT (SELECT count(*) FROM (SELECT FROM outbox_events WHERE published_at IS NULL LIMIT $1::int) x) AS count,
       (SELECT occurred_at FROM outbox_events WHERE published_at IS NULL ORDER BY occurred_at LIMIT 1) AS oldest_at,
       (SELECT count(*) FROM (SELECT FROM outbox_events
                               WHERE published_at IS NULL AND is_open LIMIT $1::int) x) AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - occurred_at)::float8 FROM outbox_events
         WHERE published_at IS NULL AND is_open ORDER BY occurred_at LIMIT 1) AS waiting_seconds,
       (SELECT count(*) FROM (SELECT FROM outbox_events
                               WHERE NOT is_open AND published_at IS NULL LIMIT $1::int) x) AS dead;

-- name: inbox_depth_capped
-- QRY-051 for a gauge, in the same way.
-- Indexes: idx_inbox_unprocessed, idx_inbox_dead_lettered.
-- $1 limit.
SELECT (SELECT count(*) FROM (SELECT FROM inbox_messages WHERE processed_at IS NULL LIMIT $1::int) x) AS count,
       (SELECT received_at FROM inbox_messages WHERE processed_at IS NULL ORDER BY received_at LIMIT 1) AS oldest_at,
       (SELECT count(*) FROM (SELECT FROM inbox_messages
                               WHERE processed_at IS NULL AND dead_lettered_at IS NULL LIMIT $1::int) x) AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - received_at)::float8 FROM inbox_messages
         WHERE processed_at IS NULL AND dead_lettered_at IS NULL ORDER BY received_at LIMIT 1) AS waiting_seconds,
       (SELECT count(*) FROM (SELECT FROM inbox_messages
                               WHERE dead_lettered_at IS NOT NULL LIMIT $1::int) x) AS dead;

-- name: list_outbox
-- Events by state, time and content, the latest first.
-- Indexes: idx_outbox_unpublished where published ones are not asked for, idx_outbox_correlation, the primary key;
-- otherwise the whole table is read.
-- $1 states, $2 no published ones are among them, $3 ids, $4 event type, $5 ordering key, $6 correlation id,
-- $7 created since, $8 created before, $9 part of the error, $10 seq below, $11 limit.
SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
       o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at,
       o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
       o.publish_error AS last_error
  FROM outbox_events o
 WHERE o.state = ANY ($1::text[])
   AND (NOT $2::boolean OR o.published_at IS NULL)
   AND ($3::uuid[] IS NULL OR o.id = ANY ($3))
   AND ($4::text IS NULL OR o.event_type = $4)
   AND ($5::text IS NULL OR o.ordering_key = $5)
   AND ($6::uuid IS NULL OR o.correlation_id = $6)
   AND ($7::timestamptz IS NULL OR o.created_at >= $7)
   AND ($8::timestamptz IS NULL OR o.created_at < $8)
   AND ($9::text IS NULL OR strpos(lower(o.publish_error), lower($9)) > 0)
   AND ($10::bigint IS NULL OR o.seq < $10)
 ORDER BY o.seq DESC
 LIMIT $11::bigint;

-- name: show_outbox
-- All of one event. Index: the primary key.
-- $1 id.
SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
       o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at,
       o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
       o.publish_error AS last_error, o.causation_id, o.partition_key, o.first_attempt_at,
       o.payload::text AS payload, o.headers::text AS headers, o.metadata::text AS metadata
  FROM outbox_events o
 WHERE o.id = $1::uuid;

-- name: list_inbox
-- Messages by state, time and origin, the latest first.
-- Indexes: idx_inbox_unprocessed where processed ones are not asked for, the primary key; otherwise the whole
-- table is read.
-- $1 states, $2 no processed ones are among them, $3 ids, $4 consumer, $5 subject, $6 received since,
-- $7 received before, $8 part of the error, $9 id that they come after, $10 limit.
SELECT *
  FROM (
    SELECT i.message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.received_at, i.processed_at, i.attempts,
           i.last_error, i.locked_until, i.locked_by, i.dead_letter_reason, i.dead_letter_begun_at,
           i.dead_lettered_at,
           CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
                WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                WHEN i.locked_until > now() THEN 'HANDLING'
                ELSE 'WAITING' END AS state
      FROM inbox_messages i
     WHERE NOT $2::boolean OR i.processed_at IS NULL
  ) i
 WHERE i.state = ANY ($1::text[])
   AND ($3::uuid[] IS NULL OR i.message_id = ANY ($3))
   AND ($4::text IS NULL OR i.consumer = $4)
   AND ($5::text IS NULL OR i.subject = $5)
   AND ($6::timestamptz IS NULL OR i.received_at >= $6)
   AND ($7::timestamptz IS NULL OR i.received_at < $7)
   AND ($8::text IS NULL OR strpos(lower(i.last_error), lower($8)) > 0)
   AND ($9::uuid IS NULL
        OR (i.received_at, i.message_id) < (SELECT b.received_at, b.message_id
                                              FROM inbox_messages b WHERE b.message_id = $9))
 ORDER BY i.received_at DESC, i.message_id DESC
 LIMIT $10::bigint;

-- name: audit
-- What operators did, the latest first.
-- $1 limit.
SELECT id, at, actor, action, reason, selection::text AS selection, affected
  FROM operator_actions
 ORDER BY id DESC
 LIMIT $1::bigint;

-- name: ids_between
-- Events and messages whose id lies in a range, as those that begin alike do. Indexes: both primary keys.
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
-- The unfinished events of an ordering key that stand before one of them, the earliest first.
-- Index: idx_outbox_ordering.
-- $1 ordering key, $2 seq, $3 limit.
SELECT o.id, o.state, o.publish_error AS last_error
  FROM outbox_events o
 WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = $1::text AND o.seq < $2::bigint
 ORDER BY o.seq
 LIMIT $3::bigint;
