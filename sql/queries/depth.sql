-- Queue depth (QRY-050, QRY-051): psql -f sql/queries/depth.sql
-- The schema is the search_path's, as in PGOPTIONS='-c search_path=orders'; it is the context's own database,
-- so that a context needs no parameter.
-- count and oldest_at are the queries' own answer. It includes what nobody works on any more, dead events and
-- dead-lettered messages, which would keep an alert on age ringing for ever; so that waiting and waiting_seconds tell
-- the backlog without them, and dead tells them alone: count = waiting + dead.

-- name: outbox_depth
-- QRY-050: events that are not published, and since when the oldest is. Exact; 3 pages for each 1000 events, and
-- besides the table's own of what came or changed since the last vacuum.
-- Indexes: idx_outbox_unpublished, idx_outbox_dead.
WITH counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM outbox_events WHERE published_at IS NULL) AS count,
           (SELECT count(*) FROM outbox_events WHERE NOT is_open AND published_at IS NULL) AS dead
)
SELECT count,
       (SELECT occurred_at FROM outbox_events WHERE published_at IS NULL ORDER BY occurred_at LIMIT 1) AS oldest_at,
       count - dead AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - occurred_at)::float8 FROM outbox_events
         WHERE published_at IS NULL AND is_open ORDER BY occurred_at LIMIT 1) AS waiting_seconds,
       dead
  FROM counted;

-- name: inbox_depth
-- QRY-051: messages that are not processed, and since when the oldest is.
-- Index: idx_inbox_unprocessed. Exact; 0.1 ms for each 1000 messages.
SELECT count(*) AS count, min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL) AS waiting,
       extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE dead_lettered_at IS NULL))::float8
           AS waiting_seconds,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) AS dead
  FROM inbox_messages
 WHERE processed_at IS NULL;
