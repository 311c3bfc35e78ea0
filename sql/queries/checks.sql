-- Statements of the worker's periodic checks.

-- Progress of each consumer at the last check, and the messages that it missed.

-- name: standing
-- $1 stream, $2 durable.
SELECT standing::text AS standing FROM sea_mq_standings WHERE stream = $1::text AND durable = $2::text;

-- name: replace
-- Replaces the last check, and returns a row, unless another worker has done so meanwhile.
-- $1 stream, $2 durable, $3 the last check or null, $4 this check, $5 number of missed messages, $6 and $7 their first
-- and last sequence.
INSERT INTO sea_mq_standings AS s (stream, durable, standing, missed, missed_first_seq, missed_last_seq, missed_at)
VALUES ($1::text, $2::text, $4::jsonb, $5::bigint, $6::bigint, $7::bigint,
        CASE WHEN $5::bigint > 0 THEN clock_timestamp() END)
    ON CONFLICT (stream, durable) DO UPDATE
   SET standing = excluded.standing,
       missed = s.missed + excluded.missed,
       missed_first_seq = coalesce(excluded.missed_first_seq, s.missed_first_seq),
       missed_last_seq = coalesce(excluded.missed_last_seq, s.missed_last_seq),
       missed_at = coalesce(excluded.missed_at, s.missed_at)
 WHERE s.standing = $3::jsonb
RETURNING s.stream;

-- name: recorded
-- $1 message ids. Index: the primary key.
SELECT message_id::text AS message_id FROM inbox_messages WHERE message_id = ANY ($1::uuid[]);

-- name: missed
-- Missed messages that workers detected and no operator has acknowledged.
SELECT stream, durable, missed_first_seq AS first_seq, missed_last_seq AS last_seq, missed AS count,
       extract(epoch FROM clock_timestamp() - missed_at)::float8 AS seconds
  FROM sea_mq_standings
 WHERE missed_at IS NOT NULL
 ORDER BY stream, durable;

-- The durables that are consumed with these tables, and their handlers.

-- name: others
-- Durables that a worker with another handler consumed recently.
-- $1 own handler, $2 seconds since its last record.
SELECT stream, durable, handler, subjects
  FROM sea_mq_consumers
 WHERE handler <> $1::text AND seen_at > clock_timestamp() - $2::float8 * interval '1 second'
 ORDER BY stream, durable, handler;

-- name: record
-- Records that a durable is consumed for a handler. $1 stream, $2 durable, $3 handler, $4 subjects.
INSERT INTO sea_mq_consumers (stream, durable, handler, subjects)
VALUES ($1::text, $2::text, $3::text, $4::text[])
    ON CONFLICT (stream, durable, handler) DO UPDATE
   SET subjects = excluded.subjects, seen_at = clock_timestamp();

-- name: remove
-- Removes the records of a worker that stops; another worker that consumes the same durables soon writes them again.
-- $1 streams, $2 durables, $3 handlers, one element for each.
UPDATE sea_mq_consumers c SET seen_at = '-infinity'
  FROM unnest($1::text[], $2::text[], $3::text[]) AS removed (stream, durable, handler)
 WHERE c.stream = removed.stream AND c.durable = removed.durable AND c.handler = removed.handler;

-- Positions of published events in their stream, from a bounded sample.

-- name: acknowledged
-- Of the PUBLISHED rows of a stream: the highest sequence, the number of rows that share their sequence with another
-- row, and a random choice of ids, sequences and times of publication. It reads the last pages of the table, which usually have the latest
-- rows, and the same number of random pages: a small table completely, some thousand rows of a large one.
-- Index: none.
-- $1 stream, $2 pages, $3 number of rows to return.
WITH size AS MATERIALIZED (
    SELECT pg_catalog.pg_relation_size('outbox_events'::regclass) / current_setting('block_size')::bigint AS own,
           (SELECT sum(pg_catalog.pg_relation_size(t.relid))::bigint
              FROM pg_catalog.pg_partition_tree('outbox_events'::regclass) t WHERE t.isleaf)
           / current_setting('block_size')::bigint AS leaves
), looked AS MATERIALIZED (
    SELECT o.id, o.stream_seq, o.published_at
      FROM outbox_events o TABLESAMPLE SYSTEM (
               least(100::float8, 100::float8 * $2::bigint::float8
                   / greatest(1::bigint, (SELECT own FROM size), (SELECT leaves FROM size))::float8))
     WHERE o.state = 'PUBLISHED' AND o.stream = $1::text
     UNION
    SELECT o.id, o.stream_seq, o.published_at
      FROM outbox_events o
     WHERE (SELECT own FROM size) > $2::bigint
       AND o.ctid >= ('(' || greatest(0::bigint, (SELECT own FROM size) - $2::bigint)::text || ',0)')::tid
       AND o.state = 'PUBLISHED' AND o.stream = $1::text
)
SELECT (SELECT max(stream_seq) FROM looked) AS greatest,
       (SELECT count(*) - pg_catalog.count(DISTINCT stream_seq) FROM looked) AS shared,
       ARRAY(SELECT l.id::text || ' ' || l.stream_seq::text || ' ' || extract(epoch FROM l.published_at)::text
               FROM looked l ORDER BY random() LIMIT $3::bigint) AS some;
