-- The archive: published events that are copied to the lake and then deleted from the outbox.

-- fragment: digest
-- A 128-bit digest of an event's archived columns. The same digest is computed from the lake's files, so that both are
-- compared end to end. Each text is preceded by its length, NULL by none; times are in microseconds.
md5(pg_catalog.convert_to(pg_catalog.concat(
    o.id, ';',
    length(o.aggregate_type), ':', o.aggregate_type,
    length(o.aggregate_id), ':', o.aggregate_id,
    length(o.event_type), ':', o.event_type,
    o.event_version, ';',
    length(o.payload::text), ':', o.payload,
    trunc(extract(epoch FROM o.occurred_at) * 1000000::numeric), ';',
    o.correlation_id, ';',
    o.causation_id, ';',
    o.seq, ';',
    trunc(extract(epoch FROM o.created_at) * 1000000::numeric), ';',
    length(o.partition_key), ':', o.partition_key,
    length(o.ordering_key), ':', o.ordering_key,
    length(o.headers::text), ':', o.headers,
    length(o.metadata::text), ':', o.metadata,
    trunc(extract(epoch FROM o.available_at) * 1000000::numeric), ';',
    o.publish_attempts, ';',
    o.failures, ';',
    trunc(extract(epoch FROM o.first_attempt_at) * 1000000::numeric), ';',
    length(o.stream), ':', o.stream,
    o.stream_seq, ';',
    trunc(extract(epoch FROM o.published_at) * 1000000::numeric), ';',
    length(o.publish_error), ':', o.publish_error
), 'UTF8'))

-- fragment: fit
-- Whether the lake can hold the event's times exactly: they are between $2 and $3 of each statement.
LEAST(o.occurred_at, o.created_at, o.available_at, o.first_attempt_at, o.published_at) > $2::timestamptz
AND GREATEST(o.occurred_at, o.created_at, o.available_at, o.first_attempt_at, o.published_at) < $3::timestamptz

-- name: days
-- Events that can be archived, and those that cannot, by day of publication. Reads the whole table, since no index
-- covers published events.
-- $1 published before, $2 and $3 times.
SELECT min(o.published_at) FILTER (WHERE :fit) AS first,
       max(o.published_at) FILTER (WHERE :fit) AS last,
       count(*) FILTER (WHERE :fit) AS fit,
       count(*) FILTER (WHERE NOT (:fit)) AS unfit
  FROM outbox_events o
 WHERE o.state = 'PUBLISHED' AND o.published_at < $1::timestamptz
 GROUP BY date_trunc('day', o.published_at)
 ORDER BY 1;

-- name: lock
-- One archive or erasure at a time; the lock ends with the session.
SELECT pg_try_advisory_lock(7181, hashtext(current_schema()::text)) AS locked;

-- name: begin
-- Opens the audit's record; every delete adds to it.
-- $1 actor, $2 reason, $3 selection.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, 'archive', $2::text, $3::text::jsonb, 0)
RETURNING id;

-- name: finish
-- $1 action, $2 outcome.
UPDATE operator_actions a SET outcome = $2::text WHERE a.id = $1::bigint RETURNING a.affected;

-- name: altered
-- An event whose time and state are as archived, but whose content differs from the lake's.
-- Index: the primary key.
-- $1 ids, $2 when published, $3 digests by the lake.
SELECT o.id::text AS id
  FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS k (id, published_at, digest)
  JOIN outbox_events o ON o.id = ANY (ARRAY[k.id])
 WHERE o.published_at = k.published_at AND o.state = 'PUBLISHED' AND :digest <> k.digest
 LIMIT 1;

-- name: delete
-- Deletes the events whose present content the lake has; one that was replayed or changed meanwhile stays,
-- and one that an earlier run has deleted is not counted. Index: the primary key.
-- $1 ids, $2 when published, $3 digests by the lake, $4 action.
WITH deleted AS (
    DELETE FROM outbox_events o
     USING unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS k (id, published_at, digest)
     WHERE o.id = ANY (ARRAY[k.id]) AND o.published_at = k.published_at AND o.state = 'PUBLISHED' AND :digest = k.digest
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM deleted)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM deleted)
)
SELECT count(*) AS count,
       (SELECT count(*) FROM outbox_events o WHERE o.id = ANY ($1::uuid[])) - count(*) AS stayed
  FROM deleted;

-- name: is_empty
-- Whether a partition is empty; its name replaces the table's.
SELECT NOT EXISTS (SELECT FROM outbox_events o) AS is_empty;
