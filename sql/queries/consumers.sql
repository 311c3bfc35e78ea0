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
