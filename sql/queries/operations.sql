-- What operators ask and do (Open Outbox, operator). Reading changes nothing. Every change is made in the same
-- transaction as its record in operator_actions.
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

-- name: begin_action
-- Opens the record of an action that takes several steps; each of them adds what it has changed.
-- $1 actor, $2 action, $3 reason, $4 selection.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, $2::text, $3::text, $4::text::jsonb, 0)
RETURNING id;

-- name: replay
-- PUBLISHED or DEAD -> PENDING: a new lifecycle, with the same id and the same place in the order of its key.
-- An event that the stream may still remember is due when its duplicate window is over; stream and stream_seq stay,
-- so that the relay can tell the earlier copy from the new one.
-- Index: the primary key.
-- $1 ids, $2 duplicate window in seconds, $3 action.
WITH replayed AS (
    UPDATE outbox_events o
       SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0, publish_error = NULL,
           first_attempt_at = NULL,
           available_at = GREATEST(now(), o.published_at + $2::float8 * interval '1 second')
     WHERE o.id = ANY ($1::uuid[]) AND o.state IN ('PUBLISHED', 'DEAD')
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM replayed)
     WHERE a.id = $3::bigint
)
SELECT count(*) AS count FROM replayed;

-- name: bury_due
-- First of three steps by which an operator ends events that wait: the lifecycle knows no PENDING -> DEAD, and only
-- what is due can be claimed. Locks them. Index: the primary key.
-- $1 ids.
UPDATE outbox_events o
   SET available_at = LEAST(o.available_at, now())
 WHERE o.id = ANY ($1::uuid[]) AND o.state = 'PENDING'
RETURNING o.id;

-- name: bury_claim
-- Second step: PENDING -> CLAIMED.
-- $1 ids, $2 actor.
UPDATE outbox_events o
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = 'operator ' || $2::text,
       publish_attempts = o.publish_attempts + 1
 WHERE o.id = ANY ($1::uuid[]);

-- name: bury
-- Third step: CLAIMED -> DEAD.
-- $1 ids, $2 error, $3 action.
WITH buried AS (
    UPDATE outbox_events o
       SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL, publish_error = left($2::text, 2000)
     WHERE o.id = ANY ($1::uuid[])
    RETURNING 1
)
UPDATE operator_actions a
   SET affected = a.affected + (SELECT count(*) FROM buried)
 WHERE a.id = $3::bigint;

-- name: redriven
-- Opens a dead-lettered message, so that it is handled when it comes again; last_error keeps the reason, and
-- dead_letter_begun_at tells that its dead letter may still be in the stream.
-- open: it is not processed; reopened: it was dead-lettered.
-- Index: the primary key.
-- $1 message id, $2 actor, $3 reason.
WITH reopened AS (
    UPDATE inbox_messages i
       SET dead_lettered_at = NULL, dead_letter_reason = NULL, attempts = 0
     WHERE i.message_id = $1::uuid AND i.dead_lettered_at IS NOT NULL AND i.processed_at IS NULL
    RETURNING 1
), recorded AS (
    INSERT INTO operator_actions (actor, action, reason, selection, affected)
    SELECT $2::text, 'redrive', $3::text, pg_catalog.jsonb_build_object('message_id', $1::uuid), count(*)
      FROM reopened
)
SELECT NOT EXISTS (SELECT FROM inbox_messages i
                    WHERE i.message_id = $1::uuid AND i.processed_at IS NOT NULL) AS open,
       EXISTS (SELECT FROM reopened) AS reopened;

-- name: outbox_pages
-- How many pages the table has.
SELECT pg_relation_size('outbox_events'::regclass) / current_setting('block_size')::bigint AS count;

-- name: inbox_pages
-- How many pages the table has.
SELECT pg_relation_size('inbox_messages'::regclass) / current_setting('block_size')::bigint AS count;

-- name: prune_outbox
-- Deletes published events from a range of pages; reads no index and needs none.
-- $1 first page, $2 page behind the last, $3 published before, $4 action.
WITH pruned AS (
    DELETE FROM outbox_events o
     WHERE o.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
       AND o.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
       AND o.published_at < $3::timestamptz
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned;

-- name: prune_inbox
-- Deletes processed messages in the same way; dead-lettered ones and those still to be handled stay.
-- $1 first page, $2 page behind the last, $3 processed before, $4 action.
WITH pruned AS (
    DELETE FROM inbox_messages i
     WHERE i.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
       AND i.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
       AND i.processed_at < $3::timestamptz
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned;

-- name: audit
-- What operators did, the latest first.
-- $1 limit.
SELECT id, at, actor, action, reason, selection::text AS selection, affected
  FROM operator_actions
 ORDER BY id DESC
 LIMIT $1::bigint;
