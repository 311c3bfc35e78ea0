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
-- Events by state, time and content, the latest first by when they occurred.
-- Indexes: idx_outbox_unpublished where no published ones are asked for, idx_outbox_correlation, the primary key;
-- otherwise the whole table is read.
-- $1 states, $2 no published ones are among them, $3 ids, $4 event type, $5 ordering key,
-- $6 aggregate type, $7 aggregate id, $8 correlation id, $9 created since, $10 created before, $11 part of the error,
-- $12 id that they come after, $13 limit.
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
   AND ($6::text IS NULL OR o.aggregate_type = $6)
   AND ($7::text IS NULL OR o.aggregate_id = $7)
   AND ($8::uuid IS NULL OR o.correlation_id = $8)
   AND ($9::timestamptz IS NULL OR o.created_at >= $9)
   AND ($10::timestamptz IS NULL OR o.created_at < $10)
   AND ($11::text IS NULL OR strpos(lower(o.publish_error), lower($11)) > 0)
   AND ($12::uuid IS NULL
        OR o.occurred_at <= (SELECT b.occurred_at FROM outbox_events b WHERE b.id = $12))
   AND ($12::uuid IS NULL
        OR (o.occurred_at, o.seq) < (SELECT b.occurred_at, b.seq FROM outbox_events b WHERE b.id = $12))
 ORDER BY o.occurred_at DESC, o.seq DESC
 LIMIT $13::bigint;

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

-- name: outbox_summary
-- What unfinished events have in common: how many are in each state, of each type, ordering key and error, the most
-- frequent first, and since when the oldest waits. Numbers in errors count as alike.
-- Index: idx_outbox_unpublished; looks at no more than the oldest so many.
-- $1 limit of events, $2 limit of groups of a kind.
WITH seen AS MATERIALIZED (
    SELECT o.state, o.event_type, o.ordering_key, o.occurred_at,
           regexp_replace(o.publish_error, '[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+', '#', 'g') AS error
      FROM outbox_events o
     WHERE o.published_at IS NULL
     ORDER BY o.occurred_at
     LIMIT $1::bigint
), kinds AS (
    SELECT CASE WHEN GROUPING(state) = 0 THEN 'state' WHEN GROUPING(event_type) = 0 THEN 'type'
                WHEN GROUPING(ordering_key) = 0 THEN 'key' ELSE 'error' END AS kind,
           CASE WHEN GROUPING(state) = 0 THEN state WHEN GROUPING(event_type) = 0 THEN event_type
                WHEN GROUPING(ordering_key) = 0 THEN ordering_key ELSE error END AS name,
           count(*) AS count, min(occurred_at) AS oldest_at
      FROM seen
     GROUP BY GROUPING SETS ((state), (event_type), (ordering_key), (error))
)
SELECT kind, name, count, oldest_at
  FROM (SELECT k.*, row_number() OVER (PARTITION BY k.kind ORDER BY k.count DESC, k.name) AS place
          FROM kinds k WHERE k.name IS NOT NULL) ranked
 WHERE place <= $2::bigint OR kind = 'state'
 ORDER BY kind, place;

-- name: list_inbox
-- Messages by state, time and origin, the latest first.
-- Indexes: idx_inbox_unprocessed where processed ones are not asked for, the primary key; otherwise the whole
-- table is read.
-- $1 states, $2 no processed ones are among them, $3 ids, $4 consumer, $5 subject, $6 reason of the dead letter,
-- $7 received since, $8 received before, $9 part of the error, $10 id that they come after, $11 limit.
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
   AND ($6::text IS NULL OR i.dead_letter_reason = $6)
   AND ($7::timestamptz IS NULL OR i.received_at >= $7)
   AND ($8::timestamptz IS NULL OR i.received_at < $8)
   AND ($9::text IS NULL OR strpos(lower(i.last_error), lower($9)) > 0)
   AND ($10::uuid IS NULL
        OR i.received_at <= (SELECT b.received_at FROM inbox_messages b WHERE b.message_id = $10))
   AND ($10::uuid IS NULL
        OR (i.received_at, i.message_id) < (SELECT b.received_at, b.message_id
                                              FROM inbox_messages b WHERE b.message_id = $10))
 ORDER BY i.received_at DESC, i.message_id DESC
 LIMIT $11::bigint;

-- name: inbox_summary
-- The same of unprocessed messages: by state, subject, consumer and error.
-- Index: idx_inbox_unprocessed; looks at no more than the oldest so many.
-- $1 limit of messages, $2 limit of groups of a kind.
WITH seen AS MATERIALIZED (
    SELECT i.subject, i.consumer, i.received_at,
           CASE WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                WHEN i.locked_until > now() THEN 'HANDLING'
                ELSE 'WAITING' END AS state,
           regexp_replace(i.last_error, '[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+', '#', 'g') AS error
      FROM inbox_messages i
     WHERE i.processed_at IS NULL
     ORDER BY i.received_at
     LIMIT $1::bigint
), kinds AS (
    SELECT CASE WHEN GROUPING(state) = 0 THEN 'state' WHEN GROUPING(subject) = 0 THEN 'subject'
                WHEN GROUPING(consumer) = 0 THEN 'consumer' ELSE 'error' END AS kind,
           CASE WHEN GROUPING(state) = 0 THEN state WHEN GROUPING(subject) = 0 THEN subject
                WHEN GROUPING(consumer) = 0 THEN consumer ELSE error END AS name,
           count(*) AS count, min(received_at) AS oldest_at
      FROM seen
     GROUP BY GROUPING SETS ((state), (subject), (consumer), (error))
)
SELECT kind, name, count, oldest_at
  FROM (SELECT k.*, row_number() OVER (PARTITION BY k.kind ORDER BY k.count DESC, k.name) AS place
          FROM kinds k WHERE k.name IS NOT NULL) ranked
 WHERE place <= $2::bigint OR kind = 'state'
 ORDER BY kind, place;

-- name: audit
-- What operators did, the latest first. Index: the primary key; a row for each action of an operator.
-- $1 part of the actor's name, $2 action, $3 since, $4 before, $5 id below, $6 limit.
SELECT id, at, actor, action, reason, selection::text AS selection, affected
  FROM operator_actions
 WHERE ($1::text IS NULL OR strpos(lower(actor), lower($1)) > 0)
   AND ($2::text IS NULL OR action = $2)
   AND ($3::timestamptz IS NULL OR at >= $3)
   AND ($4::timestamptz IS NULL OR at < $4)
   AND ($5::bigint IS NULL OR id < $5)
 ORDER BY id DESC
 LIMIT $6::bigint;

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
-- The events of an ordering key that one of them waits for, the earliest first: unfinished ones, and dead ones where
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
