-- Which durables are consumed with these tables, and for which handler.

-- name: others
-- Durables that a worker with another handler consumed lately.
-- $1 own handler, $2 seconds since it last said so.
SELECT stream, durable, handler, subjects
  FROM sea_mq_consumers
 WHERE handler <> $1::text AND seen_at > clock_timestamp() - $2::float8 * interval '1 second'
 ORDER BY stream, durable, handler;

-- name: consume
-- Says that a durable is consumed for a handler. $1 stream, $2 durable, $3 handler, $4 subjects.
INSERT INTO sea_mq_consumers (stream, durable, handler, subjects)
VALUES ($1::text, $2::text, $3::text, $4::text[])
    ON CONFLICT (stream, durable, handler) DO UPDATE
   SET subjects = excluded.subjects, seen_at = clock_timestamp();

-- name: leave
-- Says that a worker stops consuming durables for its handler; another worker that goes on soon says so again.
-- $1 streams, $2 durables, one element for each, $3 handler.
UPDATE sea_mq_consumers c SET seen_at = '-infinity'
  FROM unnest($1::text[], $2::text[]) AS left_ (stream, durable)
 WHERE c.stream = left_.stream AND c.durable = left_.durable AND c.handler = $3::text;
